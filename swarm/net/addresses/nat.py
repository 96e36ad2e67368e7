"""NAT traversal: the daemon's arguments, reservations at relays, and reachability as judged by addresses.

The daemon asks the router for a port (UPnP), and carries and accepts relayed connections. This module makes the relay
reservations instead of the daemon's autorelay, which waits up to three minutes before the first request, and an hour
after a relay's restart.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address

from swarm.net.addresses.dial import Backoff, by_peer
from swarm.net.config import NetworkSettings

CIRCUIT = "/p2p-circuit"
MAX_RESERVATIONS = 3
RENEW_EVERY_S = 60.0
"""A relay drops a reservation when the connection breaks, and after an hour."""
REFUSED_PAUSE_S = 15.0
MIN_RELAYED_S = 10.0
"""Minimum age of a relayed connection before it is replaced: by then it is in use and public addresses are known."""
RETRY_UPGRADE_S = 60.0
MAX_RETRY_UPGRADE_S = 3_600.0
"""Some routers cannot be traversed, so the pause between attempts doubles."""


def nat_arguments(settings: NetworkSettings) -> tuple[str, ...]:
    """The daemon's arguments for NAT traversal."""
    # Without -relay the daemon cannot dial through relays; with -autonat it dials every asker, at any port.
    arguments = (f"-natPortMap={int(settings.nat_port_map)}", "-autonat=0", "-relay=1")
    if not settings.serve_relay:
        return (*arguments, "-relayService=0")
    return (
        *arguments,
        # A relay serves only if it believes that it is public, and no one tells it.
        "-forceReachabilityPublic=1",
        "-relayService=1",
        f"-relayMaxReservations={settings.relay_reservations}",
        f"-relayMaxCircuits={settings.relay_circuits_per_peer}",
        f"-relayDataLimit={settings.relay_circuit_bytes}",
        f"-relayTimeLimit={settings.relay_circuit_s}s",
    )


def candidates(settings: NetworkSettings, bootstraps: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Relays for this node's reservations, with their addresses: the trusted relays, or else the bootstraps."""
    named = by_peer(settings.trusted_relays) if settings.trusted_relays else dict(bootstraps)
    if settings.relay == "off" or settings.serve_relay:
        return {}
    if settings.relay == "auto":
        if settings.announce:
            return {}
        # A local bootstrap does not indicate a NAT, and no outside peer could use a circuit through it.
        return {peer_id: each for peer_id, each in named.items() if any(map(_may_be_public, each))}
    return named


class Reservations:
    """This node's reservations at relays. Pure: the session sends the requests."""

    def __init__(self) -> None:
        """None yet; up to `MAX_RESERVATIONS`."""
        self._relays: Mapping[str, tuple[str, ...]] = {}
        self._held: dict[str, float] = {}
        self._refused = Backoff(REFUSED_PAUSE_S)

    def due(self, relays: Mapping[str, tuple[str, ...]], connected: frozenset[str], now: float) -> list[str]:
        """Those of the current `relays`, given with their addresses, to ask now for a reservation or a renewal."""
        self._relays = relays
        usable = connected & self._relays.keys()
        self._held = {peer_id: since for peer_id, since in self._held.items() if peer_id in usable}
        old = [peer_id for peer_id, since in self._held.items() if now - since >= RENEW_EVERY_S]
        new = [
            peer_id
            for peer_id in self._relays
            if peer_id in usable and peer_id not in self._held and self._refused.wait_s(peer_id, now) <= 0
        ]
        return old + new[: MAX_RESERVATIONS - len(self._held)]

    def granted(self, relay: str, now: float) -> None:
        """Record that a relay granted a reservation."""
        self._held[relay] = now
        self._refused.succeeded(relay)

    def refused(self, relay: str, now: float) -> None:
        """Record that a relay refused."""
        self._held.pop(relay, None)
        self._refused.failed(relay, now)

    def addresses(self, connected: frozenset[str]) -> tuple[str, ...]:
        """One relayed address for each relay that holds a reservation."""
        held = [peer_id for peer_id in self._held if peer_id in connected]
        return tuple(f"{_best(self._relays[peer_id])}/p2p/{peer_id}{CIRCUIT}" for peer_id in held)


class DirectUpgrades:
    """Relayed connections to replace by direct ones. If both ends know a public UDP address, they can dial each other
    at the same time, which opens both routers. Pure: the session disconnects, and both ends dial.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._tried = Backoff(RETRY_UPGRADE_S, MAX_RETRY_UPGRADE_S)

    def due(
        self,
        observed: Mapping[str, Sequence[str]],
        own: Sequence[str],
        addresses_of: Callable[[str], Sequence[str]],
        now: float,
    ) -> list[str]:
        """Peers to disconnect now, given the remote ends of all connections and the peers' known addresses."""
        relayed = [peer_id for peer_id, ends in observed.items() if ends and all(map(relay_of, ends))]
        self._since = {peer_id: self._since.get(peer_id, now) for peer_id in relayed}
        if not any(map(_is_public_udp, own)):
            return []
        found = []
        for peer_id, since in self._since.items():
            waited = now - since >= MIN_RELAYED_S and self._tried.wait_s(peer_id, now) <= 0
            if waited and any(map(_is_public_udp, addresses_of(peer_id))):
                self._tried.failed(peer_id, now)
                found.append(peer_id)
        return found


def _is_public_udp(address: str) -> bool:
    return is_public(address) and "/quic-v1" in address


def relay_of(address: str) -> str | None:
    """Peer id of the relay in `address`; None for a direct address."""
    return address.partition(CIRCUIT)[0].rpartition("/p2p/")[2] if CIRCUIT in address else None


def is_public(address: str) -> bool:
    """Whether `address` is direct and has a globally routable IP."""
    parts = address.split("/")
    if CIRCUIT in address or len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return False
    try:
        return ip_address(parts[2]).is_global
    except ValueError:
        return False


def is_own_ip(address: str) -> bool:
    """Whether the IP of a direct `address` is this machine's; own addresses include the router's if peers saw it."""
    version, host = address.split("/")[1:3]
    with socket.socket(socket.AF_INET6 if version == "ip6" else socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((host, 0))
        except OSError:
            return False
    return True


def most_reachable_first(multiaddrs: Iterable[str]) -> tuple[str, ...]:
    """Sorted by usefulness to others: public, relayed, perhaps forwarded by the router, local."""

    def rank(address: str) -> int:
        if relay_of(address):
            return 1
        return (0 if is_own_ip(address) else 2) if is_public(address) else 3

    return tuple(sorted(multiaddrs, key=rank))


def reachability(
    settings: NetworkSettings,
    bootstraps: Mapping[str, tuple[str, ...]],
    addresses: Sequence[str],
    connected: frozenset[str],
) -> str | None:
    """A description of this node's reachability for other machines; None if unknown."""
    public = [address for address in addresses if is_public(address)]
    if settings.serve_relay or settings.announce or any(map(is_own_ip, public)):
        return "public"
    if relays := sorted({relay for address in addresses if (relay := relay_of(address))}):
        return f"behind NAT, reachable through relay {' and '.join(relays)}"
    if public:
        return "behind NAT, reachable only if the router forwards a port"
    # Without NAT, addresses in a local network are private too.
    outside = {peer_id for peer_id, each in bootstraps.items() if any(map(is_public, each))}
    return "behind NAT, not reachable" if outside & connected else None


def _may_be_public(address: str) -> bool:
    return is_public(address) or address.startswith("/dns")


def _best(addresses: Sequence[str]) -> str:
    return next(filter(_may_be_public, addresses), addresses[0])
