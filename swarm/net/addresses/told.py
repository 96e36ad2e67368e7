"""Where strangers say that peers are: what of it is dialled, and how often.

A record costs its author nothing and may name anybody's machine: this node must be no means to reach others with. In a
private run, one that its user has placed on this machine or net, all is as the peers say. Pure but for the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import islice

from swarm.net.addresses.dial import Backoff, host_of
from swarm.net.bandwidth import MAX_COUNTED, Rates

MAX_NAMED, MAX_ADDRESSES, MAX_OF_ONE_HOST = 24, 8, 2
"""Of one peer: by TCP and by QUIC, at a few interfaces."""
DIALS_PER_S, DIALS_AT_ONCE = 2.0, 16.0
"""Of peers that only strangers have told of; and a quarter of that of those that one peer has told of."""
FREE_FAILURES = 4
HOST_PAUSE_S, MAX_HOST_PAUSE_S = 5.0, 600.0
"""A host at which more dials than these have failed in a row is left alone for this time, twice as long each time."""
WILDCARDS = ("0.0.0.0", "::")
# Gateways take what is inside for an IPv4 address, of whatever net they are in.
TRANSLATED = ip_network("64:ff9b::/96")


class Told:
    """What strangers tell of where peers are."""

    def __init__(self) -> None:
        """Nothing has been dialled yet."""
        self._all = Rates(DIALS_PER_S, DIALS_AT_ONCE)
        self._tellers = Rates(DIALS_PER_S / 4, DIALS_AT_ONCE / 4)
        self._failures: Counter[str] = Counter()
        self._pauses = Backoff(HOST_PAUSE_S, MAX_HOST_PAUSE_S)

    def choose(self, addresses: Iterable[str], now: float) -> tuple[str, ...]:
        """Those of a peer's addresses that may be dialled now in a public run."""
        found: list[str] = []
        hosts: Counter[str] = Counter()
        for address in islice(addresses, MAX_NAMED):
            host = host_of(address)
            if hosts[host] < MAX_OF_ONE_HOST and may_be_outside(address) and self._pauses.wait_s(host, now) <= 0:
                hosts[host] += 1
                found.append(address)
        return tuple(found[:MAX_ADDRESSES])

    def may_dial(self, teller: str, now: float) -> bool:
        """Whether one more peer may be dialled that `teller` has told of; then it is counted."""
        return self._tellers.take(teller, now) and self._all.take("", now)

    def failed(self, addresses: Iterable[str], now: float) -> None:
        """None of these led to the peer."""
        for host in set(map(host_of, addresses)):
            self._failures[host] += 1
            if self._failures[host] > FREE_FAILURES:
                self._pauses.failed(host, now)
        if len(self._failures) > MAX_COUNTED:
            self._failures.clear()

    def succeeded(self, addresses: Iterable[str]) -> None:
        """One of these did."""
        for host in map(host_of, addresses):
            self._failures.pop(host, None)
            self._pauses.succeeded(host)


def may_be_outside(address: str) -> bool:
    """Whether the first hop of an address is an IP of the whole internet, or a name that may stand for one."""
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return is_name(address)
    return _is_global(parts[2])


def is_name(address: str) -> bool:
    """Whether a multiaddr begins with a name that a dial has to look up."""
    parts = address.split("/")
    return len(parts) > 2 and parts[1] in ("dns", "dns4", "dns6") and parts[2] != ""


def with_ips(address: str, ips: Iterable[str]) -> list[str]:
    """A multiaddr that begins with a name, for each public IP that the name stands for."""
    kind, rest = address.split("/")[1], address.split("/")[3:]
    allowed = {"dns4": (4,), "dns6": (6,)}.get(kind, (4, 6))
    public = [ip_address(ip) for ip in ips if _is_global(ip)]
    return ["/".join(["", f"ip{ip.version}", str(ip), *rest]) for ip in public if ip.version in allowed]


def is_private_run(given: Sequence[str], own: Sequence[str], observed: Mapping[str, Sequence[str]]) -> bool:
    """Whether a run is within this machine or its net, as far as can be told.

    `given` are the addresses that the user has named, which decide if they are IPs. Otherwise it is for no address that
    this node has, and no other end of a connection, is of the whole internet.
    """
    ips = [parts[2] for address in given if (parts := address.split("/"))[1:2] in (["ip4"], ["ip6"])]
    named = [ip for ip in ips if ip not in WILDCARDS]
    if named:
        return not any(map(_is_global, named))
    seen = [*own, *(end for ends in observed.values() for end in ends)]
    return not any(may_be_outside(address) and not is_name(address) for address in seen)


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
