"""Multiaddrs: parsing, validation, a TCP probe, back-off, and a filter for those that untrusted peers report.

A record costs its author nothing and may name any machine, so a node must not become a tool for attacking others. In a
private run, on this machine or local network, all reported addresses are used. Pure but for the clock and `probe`.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import islice

from swarm.errors import ConfigError, IdentityError
from swarm.lru import LruDict
from swarm.net.bandwidth import MAX_COUNTED, RatePerName, TokenBucket
from swarm.net.records.identity import public_key_of

PROBE_TIMEOUT_S = 5.0
MAX_PAUSE_S = 60.0
MAX_PAUSES = 4_096
"""Untrusted peers may invent names, so their number is bounded."""
TCP_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
MAX_NAMED, MAX_ADDRESSES, MAX_OF_ONE_HOST = 24, 8, 2
"""Per peer: TCP and QUIC at a few interfaces."""
DIALS_PER_S, DIALS_AT_ONCE = 2.0, 16.0
"""For all peers that only other peers report; a single reporter gets a quarter."""
FREE_FAILURES = 4
HOST_PAUSE_S, MAX_HOST_PAUSE_S = 5.0, 600.0
"""After more than `FREE_FAILURES` failed dials in a row a host is paused; each further pause is twice as long."""
WILDCARDS = ("0.0.0.0", "::")
# NAT64 gateways map these to any IPv4 address, including private ones.
TRANSLATED = ip_network("64:ff9b::/96")
MAX_PORT = 2**16 - 1
_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_UPON = frozenset({"ws", "wss", "tls", "quic", "quic-v1", "webtransport"})
"""Components that may follow a port."""


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
        ip = plain_ip(host.partition("%")[0])
    except ValueError:
        return host.lower().removesuffix(".")
    return str(ip_network(f"{ip}/64", strict=False)) if ":" in ip else ip


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
        # An untrusted record may contain a host or port that the resolver rejects.
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


class ReportedAddresses:
    """Decides which reported addresses may be dialled, and how often."""

    def __init__(self) -> None:
        self._all = TokenBucket(DIALS_PER_S, DIALS_AT_ONCE)
        self._reporters = RatePerName(DIALS_PER_S / 4, DIALS_AT_ONCE / 4)
        self._failures: Counter[str] = Counter()
        self._pauses = Backoff(HOST_PAUSE_S, MAX_HOST_PAUSE_S)

    def choose(self, addresses: Iterable[str], now: float) -> tuple[str, ...]:
        """The addresses of one peer that may be dialled now in a public run."""
        found: list[str] = []
        hosts: Counter[str] = Counter()
        for address in islice(addresses, MAX_NAMED):
            host = host_of(address)
            if hosts[host] < MAX_OF_ONE_HOST and may_be_public(address) and self._pauses.wait_s(host, now) <= 0:
                hosts[host] += 1
                found.append(address)
        return tuple(found[:MAX_ADDRESSES])

    def may_dial(self, reporter: str, now: float) -> bool:
        """Whether one more peer reported by `reporter` may be dialled; if so, the dial is counted."""
        return self._reporters.take(reporter, now) and self._all.take(now)

    def failed(self, addresses: Iterable[str], now: float) -> None:
        """Record that no address led to the peer."""
        for host in set(map(host_of, addresses)):
            self._failures[host] += 1
            if self._failures[host] > FREE_FAILURES:
                self._pauses.failed(host, now)
        if len(self._failures) > MAX_COUNTED:
            self._failures.clear()

    def succeeded(self, addresses: Iterable[str]) -> None:
        """Record that one of the addresses led to the peer."""
        for host in map(host_of, addresses):
            self._failures.pop(host, None)
            self._pauses.succeeded(host)


def may_be_public(address: str) -> bool:
    """Whether the first hop of an address is a globally routable IP, or a name that may resolve to one."""
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return is_name(address)
    return _is_global(parts[2])


def is_name(address: str) -> bool:
    """Whether a multiaddr begins with a DNS name."""
    parts = address.split("/")
    return len(parts) > 2 and parts[1] in ("dns", "dns4", "dns6") and parts[2] != ""


def _is_global(host: str) -> bool:
    try:
        ip: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if ip in TRANSLATED or ip.teredo or ip.sixtofour:
            return False
        ip = ip.ipv4_mapped or ip
    return ip.is_global and not ip.is_multicast


def with_ips(address: str, ips: Iterable[str], allowed: Callable[[str], bool] = _is_global) -> list[str]:
    """A multiaddr that begins with a name, rewritten for each of its `ips` that is allowed."""
    kind, rest = address.split("/")[1], address.split("/")[3:]
    versions = {"dns4": (4,), "dns6": (6,)}.get(kind, (4, 6))
    found = map(ip_address, filter(allowed, ips))
    return ["/".join(["", f"ip{ip.version}", str(ip), *rest]) for ip in found if ip.version in versions]


def is_private_run(given: Sequence[str], own: Sequence[str], observed: Mapping[str, Sequence[str]]) -> bool:
    """Whether the run appears to be confined to this machine or local network.

    If the user's addresses `given` contain IPs, these decide. Otherwise the run is private if no own address and no
    remote end of a connection has a globally routable IP.
    """
    ips = [parts[2] for address in given if (parts := address.split("/"))[1:2] in (["ip4"], ["ip6"])]
    named = [ip for ip in ips if ip not in WILDCARDS]
    if named:
        return not any(map(_is_global, named))
    seen = [*own, *(end for ends in observed.values() for end in ends)]
    return not any(may_be_public(address) and not is_name(address) for address in seen)


def address_problem(address: str, least_port: int = 0) -> str | None:
    """The problem of a user's multiaddr without a peer id; None if a node can listen or be reached there."""
    like = "must look like /ip4/HOST/tcp/PORT"
    parts = address.split("/")
    start, kind, host, transport, port, *further = parts if len(parts) >= 5 else [""] * 5
    if start or transport not in ("tcp", "udp") or not port.isascii() or not port.isdecimal():
        return like
    if "p2p" in further:
        return f"{like}, without /p2p/PEER_ID, which is added"
    if not least_port <= int(port[:6]) <= MAX_PORT:
        return f"{like} with a port from {least_port} to {MAX_PORT}"
    if not set(further) <= _UPON:
        return like
    try:
        if kind == "ip4":
            IPv4Address(host)
        elif kind == "ip6" and "%" not in host:  # a zone may be any text
            IPv6Address(host)
        elif kind not in ("dns", "dns4", "dns6") or _NAME.fullmatch(host) is None:
            return like
    except ValueError as error:
        return f"{like}: {error}"
    return None
