"""Where the first addresses come from: the configuration's list of multiaddrs, files, variables and host names."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from swarm.errors import ConfigError
from swarm.net.dial import by_peer, split_multiaddr

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 2**18
MAX_ADDRESSES = 256
_KINDS = "a multiaddr /ip4/HOST/tcp/PORT/p2p/PEER_ID, file:PATH, env:NAME or hosts:HOST:PORT/p2p/PEER_ID,..."


class Bootstraps:
    """The addresses behind the entries of `network.bootstrap`; files are read again when they change."""

    def __init__(self, entries: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Raises `ConfigError` for an entry that is none of the kinds, or a variable that is unset or names no peer.

        A file need not exist yet.
        """
        variables = os.environ if environment is None else environment
        self._sources: list[_File | tuple[str, ...]] = []
        self._grouped: tuple[tuple[str, ...], dict[str, tuple[str, ...]]] = ((), {})
        for entry in entries:
            kind, _, rest = entry.partition(":")
            if kind == "file":
                self._sources.append(_File(Path(rest)))
            elif kind == "env":
                self._sources.append(_checked(_variable(rest, variables)))
            elif kind == "hosts":
                self._sources.append(_checked(map(_host, rest.split(","))))
            elif entry.startswith("/"):
                self._sources.append(_checked([entry]))
            else:
                raise ConfigError(f"a bootstrap must be {_KINDS}; got {entry!r}")

    def multiaddrs(self) -> tuple[str, ...]:
        """Every address as it stands now, in the order of the entries."""
        found = [
            address
            for source in self._sources
            for address in (source.multiaddrs() if isinstance(source, _File) else source)
        ]
        return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]

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
