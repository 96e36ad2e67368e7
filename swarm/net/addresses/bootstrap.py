"""Bootstrap addresses from the configuration: multiaddrs, files, environment variables and DNS names.

`/dnsaddr/NAME` stands for the multiaddrs in the TXT records `dnsaddr=MULTIADDR` of `_dnsaddr.NAME`, which may refer to
further names. An entry that ends in `/p2p/PEER_ID` selects that peer only.

Source: the dnsaddr protocol of the multiaddr specification.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from swarm.errors import ConfigError, PeerUnreachable
from swarm.files import at_home, replace_file
from swarm.net.addresses.dial import address_problem, by_peer, split_multiaddr

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 2**18
MAX_ADDRESSES = 256
LOOK_UP_EVERY_S = 60.0
"""Minimum interval between two look-ups of a name."""
_KINDS = (
    "a multiaddr /ip4/HOST/tcp/PORT/p2p/PEER_ID, /dnsaddr/NAME, file:PATH, env:NAME or hosts:HOST:PORT/p2p/PEER_ID,..."
)


DNSADDR = "/dnsaddr/"
TIMEOUT_S = 5.0
MAX_LOOK_UPS = 16
"""Per entry, including the names that its records refer to."""
MAX_NAME_CHARS = 253


class Bootstraps:
    """The addresses behind the entries of `network.bootstrap`.

    The files are reread when they change; the names are resolved by `look_up` and `look_again`.
    """

    def __init__(self, entries: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Raises `ConfigError` for an entry of no known kind, and a variable that is unset or has a bad address.

        A file need not exist yet.
        """
        variables = os.environ if environment is None else environment
        self._sources: list[_File | _Name | tuple[str, ...]] = []
        self._grouped: tuple[tuple[str, ...], dict[str, tuple[str, ...]]] = ((), {})
        for entry in map(str.strip, entries):  # as from `$(cat FILE)` in quotes
            kind, _, rest = entry.partition(":")
            if kind == "file":
                self._sources.append(_File(entry, Path(rest)))
            elif kind == "env":
                self._sources.append(_checked(_variable(rest, variables)))
            elif kind == "hosts":
                self._sources.append(_checked(map(_host, rest.split(","))))
            elif entry.startswith(DNSADDR):
                check_name(entry)
                self._sources.append(_Name(entry))
            elif entry.startswith("/"):
                self._sources.append(_checked([entry]))
            else:
                raise ConfigError(f"a bootstrap must be {_KINDS}; got {entry!r}")

    def multiaddrs(self) -> tuple[str, ...]:
        """All current addresses, in the order of the entries."""
        found = [
            address
            for source in self._sources
            for address in (source if isinstance(source, tuple) else source.multiaddrs())
        ]
        return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]

    def look_up(self) -> dict[str, str]:
        """Resolve names without addresses; may take seconds. Returns `problems`."""
        for source in self._names():
            if not source.multiaddrs():
                source.look_up()
        return self.problems()

    def look_again(self) -> None:
        """Resolve the names again on a background thread, at most every `LOOK_UP_EVERY_S`."""
        for source in self._names():
            source.look_again()

    def problems(self) -> dict[str, str]:
        """Why a name or a file gave no addresses, by entry."""
        sources = [source for source in self._sources if isinstance(source, _Name | _File)]
        return {source.entry: source.problem for source in sources if source.problem is not None}

    def _names(self) -> list[_Name]:
        return [source for source in self._sources if isinstance(source, _Name)]

    def by_peer(self) -> dict[str, tuple[str, ...]]:
        """Addresses by peer id."""
        multiaddrs = self.multiaddrs()
        if multiaddrs != self._grouped[0]:
            self._grouped = (multiaddrs, by_peer(multiaddrs))
        return dict(self._grouped[1])


class _File:
    def __init__(self, entry: str, path: Path) -> None:
        self.entry = entry
        self._path = at_home(path)
        self._read_at: tuple[int, int] | None = None
        self._multiaddrs: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        """Why there are no addresses now."""
        if self.multiaddrs():
            return None
        try:
            self._path.open("rb").close()
        except FileNotFoundError:
            return f"there is no file {self._path.absolute()} yet"
        except (OSError, ValueError) as error:
            return f"{self._path} cannot be read: {(getattr(error, 'strerror', None) or str(error)).lower()}"
        return f"there is no address in {self._path}"

    def multiaddrs(self) -> tuple[str, ...]:
        """The file's addresses; the last ones read if it cannot be read now."""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._read_at:
                self._read_at = (stat.st_mtime_ns, stat.st_size)
                self._multiaddrs = read_addresses(self._path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:  # ValueError: NUL in its name
            logger.debug("cannot read the bootstrap addresses in %s, keeping the last ones: %s", self._path, error)
        return self._multiaddrs


class _Name:
    def __init__(self, entry: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.entry = entry
        self.problem: str | None = None
        self._clock = clock
        self._multiaddrs: tuple[str, ...] = ()
        self._looked_at: float | None = None

    def multiaddrs(self) -> tuple[str, ...]:
        """The result of the last successful look-up."""
        return self._multiaddrs

    def look_up(self) -> None:
        self._looked_at = self._clock()
        self._find()

    def _find(self) -> None:
        try:
            self._multiaddrs, self.problem = look_up(self.entry), None
        except PeerUnreachable as error:
            logger.debug("%s: %s", self.entry, error)
            self.problem = str(error)

    def look_again(self) -> None:
        if self._looked_at is None or self._clock() - self._looked_at >= LOOK_UP_EVERY_S:
            self._looked_at = self._clock()
            threading.Thread(target=self._find, name="swarm-names", daemon=True).start()


def read_addresses(path: Path) -> tuple[str, ...]:
    """The multiaddrs in a file: one per line, `#` starts a comment. Invalid lines are skipped with a warning.

    Raises `OSError`.
    """
    found = []
    with path.open("rb") as file:
        lines = file.read(MAX_FILE_BYTES).decode(errors="replace").splitlines()
    for line in lines:
        address = line.partition("#")[0].strip()
        if not address:
            continue
        try:
            check_multiaddr(address)
        except ConfigError as error:
            logger.warning("skipped a line of %s: %s", path, error)
            continue
        found.append(address)
    return tuple(found[:MAX_ADDRESSES])


def write_addresses(path: Path, multiaddrs: Iterable[str], comment: str) -> None:
    """Replace the file atomically, in the format of `read_addresses`. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "\n".join([f"# {comment}", *multiaddrs, ""]).encode())


def _variable(name: str, variables: Mapping[str, str]) -> list[str]:
    if name not in variables:
        raise ConfigError(f"the bootstrap env:{name} needs the environment variable {name}, which is not set")
    return [address for address in re.split(r"[,\s]+", variables[name]) if address]


def _host(entry: str) -> str:
    host, separator, peer_id = entry.strip().partition("/p2p/")
    name, colon, port = host.rpartition(":")
    if not (separator and colon and name and port.isdecimal()):
        raise ConfigError(f"a bootstrap's host must look like HOST:PORT/p2p/PEER_ID, got {entry!r}")
    kind = "ip4" if re.fullmatch(r"[0-9.]+", name) else "dns4"
    return f"/{kind}/{name}/tcp/{port}/p2p/{peer_id}"


def _checked(multiaddrs: Iterable[str]) -> tuple[str, ...]:
    addresses = tuple(multiaddrs)
    for address in addresses:
        check_multiaddr(address)
    return addresses


def check_multiaddr(multiaddr: str) -> None:
    """Raises `ConfigError` for what names no peer, or no place to dial: a daemon would try it forever."""
    address, _ = split_multiaddr(multiaddr)
    place = address.partition("/p2p/")[0]  # of a relayed address, the relay's
    if problem := address_problem("/".join(place.split("/")[:5]), 1):
        raise ConfigError(f"{multiaddr!r} is no address of a peer: before /p2p/ it {problem}")


def check_name(entry: str) -> None:
    """Raises `ConfigError` unless `entry` is `/dnsaddr/NAME` or `/dnsaddr/NAME/p2p/PEER_ID`."""
    name, peer_id = _parts(entry)
    if not 0 < len(name) <= MAX_NAME_CHARS or any(not 0 < len(label) < 64 for label in name.split(".")) or "/" in name:
        raise ConfigError(f"a name to look up must look like /dnsaddr/NAME or /dnsaddr/NAME/p2p/PEER_ID, got {entry!r}")
    if peer_id is not None:
        split_multiaddr(entry)


def look_up(entry: str) -> tuple[str, ...]:
    """The multiaddrs of a `/dnsaddr/` entry, each ending in `/p2p/PEER_ID`. May take seconds.

    Raises `PeerUnreachable`, with a one-line message, if the look-up fails or yields no peer.
    """
    _, peer_id = _parts(entry)
    found: list[str] = []
    problems: list[str] = []
    waiting, asked = [entry], {entry}
    while waiting:
        try:
            named = list(_named(_parts(waiting.pop(0))[0]))
        except PeerUnreachable as problem:
            problems.append(str(problem))
            continue
        found += (address for address in named if not address.startswith(DNSADDR))
        further = [address for address in named if address.startswith(DNSADDR) and address not in asked]
        further = further[: MAX_LOOK_UPS - len(asked)]
        waiting += further
        asked |= set(further)
    wanted = [address for address in found if peer_id is None or address.endswith(f"/p2p/{peer_id}")]
    if not wanted:
        raise PeerUnreachable(
            "; ".join(problems) or "its TXT records contain no multiaddr" + (" of this peer" if peer_id else "")
        )
    return tuple(dict.fromkeys(wanted))


def _named(name: str) -> Iterator[str]:
    for text in _texts(f"_dnsaddr.{name}"):
        kind, _, address = text.partition("=")
        if kind != "dnsaddr":
            continue
        try:
            check_name(address) if address.startswith(DNSADDR) else check_multiaddr(address)
        except ConfigError as error:
            logger.debug("ignored a TXT record of %s: %s", name, error)
            continue
        yield address


def _texts(name: str) -> list[str]:
    # Imported lazily: only users of DNS names need it.
    import dns.exception
    import dns.resolver

    try:
        # A new resolver each time: the machine may have moved to another network.
        answer = dns.resolver.Resolver().resolve(name, "TXT", lifetime=TIMEOUT_S, search=False)
    except dns.resolver.NXDOMAIN as error:
        raise PeerUnreachable(f"{name} does not exist") from error
    except dns.resolver.NoAnswer as error:
        raise PeerUnreachable(f"{name} has no TXT records") from error
    except dns.exception.Timeout as error:
        raise PeerUnreachable(f"no DNS server answered for {name} within {TIMEOUT_S:g} s") from error
    except (dns.exception.DNSException, OSError) as error:
        raise PeerUnreachable(f"{name} cannot be looked up: {' '.join(str(error).split())}") from error
    return [b"".join(record.strings).decode(errors="replace") for record in answer]


def _parts(entry: str) -> tuple[str, str | None]:
    """Name and peer id of an entry."""
    name, separator, peer_id = entry.removeprefix(DNSADDR).partition("/p2p/")
    return name, peer_id if separator else None
