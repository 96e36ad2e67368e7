"""Where the first addresses come from: the configuration's list of multiaddrs, files, variables and names."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from swarm.errors import ConfigError, PeerUnreachable
from swarm.net.addresses.dial import by_peer, split_multiaddr
from swarm.net.addresses.dnsaddr import DNSADDR, check_name, look_up

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 2**18
MAX_ADDRESSES = 256
LOOK_UP_EVERY_S = 60.0
"""Names are looked up again no sooner than this."""
_KINDS = (
    "a multiaddr /ip4/HOST/tcp/PORT/p2p/PEER_ID, /dnsaddr/NAME, file:PATH, env:NAME or hosts:HOST:PORT/p2p/PEER_ID,..."
)


class Bootstraps:
    """The addresses behind the entries of `network.bootstrap`.

    Files are read again when they change, and names are looked up when `look_up` or `look_again` is called.
    """

    def __init__(self, entries: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Raises `ConfigError` for an entry that is none of the kinds, or a variable that is unset or names no peer.

        A file need not exist yet.
        """
        variables = os.environ if environment is None else environment
        self._sources: list[_File | _Name | tuple[str, ...]] = []
        self._grouped: tuple[tuple[str, ...], dict[str, tuple[str, ...]]] = ((), {})
        for entry in entries:
            kind, _, rest = entry.partition(":")
            if kind == "file":
                self._sources.append(_File(Path(rest)))
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
        """Every address as it stands now, in the order of the entries."""
        found = [
            address
            for source in self._sources
            for address in (source if isinstance(source, tuple) else source.multiaddrs())
        ]
        return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]

    def look_up(self) -> dict[str, str]:
        """Look names up that nothing is known of yet, which may take seconds; what is wrong with each that failed."""
        for source in self._names():
            if not source.multiaddrs():
                source.look_up()
        return self.problems()

    def look_again(self) -> None:
        """Look names up on a thread of their own, unless that was done a moment ago."""
        for source in self._names():
            source.look_again()

    def problems(self) -> dict[str, str]:
        """By entry, why a name gave no addresses."""
        return {source.entry: source.problem for source in self._names() if source.problem is not None}

    def _names(self) -> list[_Name]:
        return [source for source in self._sources if isinstance(source, _Name)]

    def by_peer(self) -> dict[str, tuple[str, ...]]:
        """Addresses of each peer that is named."""
        multiaddrs = self.multiaddrs()
        if multiaddrs != self._grouped[0]:
            self._grouped = (multiaddrs, by_peer(multiaddrs))
        return dict(self._grouped[1])


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()
        self._read_at: tuple[int, int] | None = None
        self._multiaddrs: tuple[str, ...] = ()

    def multiaddrs(self) -> tuple[str, ...]:
        """The file's addresses; those read last when it cannot be read now."""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._read_at:
                self._read_at = (stat.st_mtime_ns, stat.st_size)
                self._multiaddrs = read_addresses(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.debug("the addresses in %s cannot be read: %s", self._path, error)
        return self._multiaddrs


class _Name:
    def __init__(self, entry: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.entry = entry
        self.problem: str | None = None
        self._clock = clock
        self._multiaddrs: tuple[str, ...] = ()
        self._looked_at: float | None = None

    def multiaddrs(self) -> tuple[str, ...]:
        """What was found last."""
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
    """The multiaddrs in a file, one a line, `#` starts a comment; lines that name no peer are left out with a warning.

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
            split_multiaddr(address)
        except ConfigError as error:
            logger.warning("%s: %s", path, error)
            continue
        found.append(address)
    return tuple(found[:MAX_ADDRESSES])


def write_addresses(path: Path, multiaddrs: Iterable[str], comment: str) -> None:
    """Replace a file that `read_addresses` reads, at once or not at all. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text("\n".join([f"# {comment}", *multiaddrs, ""]))
    draft.replace(path)


def _variable(name: str, variables: Mapping[str, str]) -> list[str]:
    if name not in variables:
        raise ConfigError(f"the environment variable {name} of the bootstrap env:{name} must be set")
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
    by_peer(addresses)
    return addresses
