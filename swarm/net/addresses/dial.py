"""Dialling: multiaddrs, a cheap TCP probe before the daemon dials, and back-off."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network

from swarm.errors import ConfigError, IdentityError
from swarm.lru import LruDict
from swarm.net.records.identity import public_key_of

PROBE_TIMEOUT_S = 5.0
MAX_PAUSE_S = 60.0
MAX_PAUSES = 4_096
"""Untrusted peers may invent names, so their number is bounded."""
TCP_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")


def split_multiaddr(multiaddr: str) -> tuple[str, str]:
    """Address and peer id of a multiaddr that ends in `/p2p/PEER_ID`. Raises `ConfigError`."""
    address, separator, peer_id = multiaddr.rpartition("/p2p/")
    if not separator or not address.startswith("/"):
        raise ConfigError(f"a peer's address must look like /ip4/HOST/tcp/PORT/p2p/PEER_ID, got {multiaddr!r}")
    try:
        public_key_of(peer_id)
    except IdentityError as error:
        raise ConfigError(f"{multiaddr!r} contains no valid peer id: {error}") from error
    return address, peer_id


def by_peer(multiaddrs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Addresses by peer id, in order. Raises `ConfigError`."""
    addresses: dict[str, tuple[str, ...]] = {}
    for multiaddr in multiaddrs:
        address, peer_id = split_multiaddr(multiaddr)
        addresses[peer_id] = (*addresses.get(peer_id, ()), address)
    return addresses


def host_of(address: str) -> str:
    """The part of a multiaddr that identifies a machine or network: the IPv4 address, the IPv6 /64, or the name."""
    parts = address.split("/")
    host = parts[2] if len(parts) > 2 else ""
    try:
        version = ip_address(host).version
    except ValueError:
        return host
    return str(ip_network(f"{host}/64", strict=False)) if version == 6 else host


def is_quic(address: str) -> bool:
    """Whether a direct `address` takes datagrams."""
    return address.split("/")[3:4] == ["udp"] and "p2p-circuit" not in address


def tcp_end(address: str) -> tuple[str, int] | None:
    """IP and port to which the first hop of a multiaddr connects; None for one by name or without TCP.

    Raises `ValueError` for an invalid one.
    """
    parts = address.split("/")
    if len(parts) < 5 or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp":
        return None
    return plain_ip(parts[2]), int(parts[4])


def plain_ip(ip: str | bytes) -> str:
    """An IP in the one way that it is written, of IPv4 within IPv6 that of IPv4. Raises `ValueError`."""
    found = ip_address(ip)
    return str((found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found)


async def probe(address: str) -> str | None:
    """The reason why `address` cannot be reached; None if a port is open there, or if only a dial can tell.

    Used because the daemon caches a failed dial for minutes and reports less detail.
    """
    parts = address.split("/")
    if len(parts) != 5 or parts[1] not in TCP_HOSTS or parts[3] != "tcp" or not parts[4].isdecimal():
        return None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts[2], int(parts[4]))
    except TimeoutError:
        return f"no answer in {PROBE_TIMEOUT_S:g} s"
    except socket.gaierror as error:
        return f"unknown host ({error.strerror})"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)
    except (ValueError, OverflowError) as error:
        # A stranger's record may contain a host or port that the resolver rejects.
        return f"not an address ({error})"
    writer.close()
    return None


def unreachable(multiaddrs: Iterable[str]) -> dict[str, str]:
    """Probe the addresses of several peers. Returns the problem of each multiaddr that failed.

    Takes seconds; call it on a thread without a running event loop. Raises `ConfigError`.
    """

    async def ask(addresses: list[str]) -> list[str | None]:
        return await asyncio.gather(*map(probe, addresses))

    asked = list(multiaddrs)
    problems = asyncio.run(ask([split_multiaddr(multiaddr)[0] for multiaddr in asked]))
    return {multiaddr: problem for multiaddr, problem in zip(asked, problems, strict=True) if problem is not None}


class Backoff:
    """Exponential back-off by name: the first pause is `first_s`, then it doubles up to `longest_s`."""

    def __init__(self, first_s: float, longest_s: float = MAX_PAUSE_S) -> None:
        """The first pause is `first_s` even if `longest_s` is shorter."""
        self._first_s = first_s
        self._longest_s = max(first_s, longest_s)
        self._pauses = LruDict[str, tuple[float, float]](MAX_PAUSES)

    def failed(self, name: str, now: float) -> None:
        """Record a failure."""
        pause_s, _ = self._pauses.get(name, (self._first_s / 2, 0.0))
        pause_s = min(2 * pause_s, self._longest_s)
        self._pauses[name] = (pause_s, now + pause_s)

    def succeeded(self, name: str) -> None:
        """Reset the back-off."""
        self._pauses.pop(name, None)

    def wait_s(self, name: str, now: float) -> float:
        """Seconds until `name` may be tried again; 0 if it may be tried now."""
        return max(0.0, self._pauses.get(name, (0.0, now))[1] - now)
