"""Filter and rate limit for addresses that strangers report.

A record costs its author nothing and may name any machine, so a node must not become a tool for attacking others. In a
private run, on this machine or local network, all reported addresses are used. Pure but for the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import islice

from swarm.net.addresses.dial import Backoff, host_of
from swarm.net.bandwidth import MAX_COUNTED, RatePerName

MAX_NAMED, MAX_ADDRESSES, MAX_OF_ONE_HOST = 24, 8, 2
"""Per peer: TCP and QUIC at a few interfaces."""
DIALS_PER_S, DIALS_AT_ONCE = 2.0, 16.0
"""For all peers that only strangers report; a single reporter gets a quarter."""
FREE_FAILURES = 4
HOST_PAUSE_S, MAX_HOST_PAUSE_S = 5.0, 600.0
"""After more than `FREE_FAILURES` failed dials in a row a host is paused; each further pause is twice as long."""
WILDCARDS = ("0.0.0.0", "::")
# NAT64 gateways map these to any IPv4 address, including private ones.
TRANSLATED = ip_network("64:ff9b::/96")


class ReportedAddresses:
    """Decides which reported addresses may be dialled, and how often."""

    def __init__(self) -> None:
        """No dials yet."""
        self._all = RatePerName(DIALS_PER_S, DIALS_AT_ONCE)
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
        return self._reporters.take(reporter, now) and self._all.take("", now)

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
