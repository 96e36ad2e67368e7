"""Being reached behind a router: what the daemon is told, and what its addresses say about it.

The daemon asks its peers whether they can dial it (AutoNAT), asks the router for a port (UPnP), and reserves a place at
relays, through which others then dial it under a `/p2p-circuit` address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from swarm.net.config import NetworkSettings
from swarm.net.dial import by_peer

CIRCUIT = "/p2p-circuit"
MAX_RELAYS = 3
"""Places reserved at once: the daemon wants one at each relay it is given, and every one must be up at its start."""
MAX_CIRCUITS_TOLD = 4
RELAY_ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([\w.:-]+)/(tcp/\d{1,5}|udp/\d{1,5}/quic-v1)")
RENEW_AFTER_S = 5.0


def nat_arguments(settings: NetworkSettings, relays: Sequence[str] = (), behind_nat: bool = False) -> tuple[str, ...]:
    """The daemon's arguments for reachability; `relays` are multiaddrs, one a relay, as `usable_relays` gives them.

    `behind_nat` says that AutoNAT has found that out before, so that a new daemon need not wait for it again.
    """
    # Without -relay the daemon cannot dial through relays either.
    arguments = [f"-natPortMap={int(settings.nat_port_map)}", "-autonat=1", "-relay=1"]
    if settings.serve_relay:
        return (
            *arguments,
            # A relay serves, and answers AutoNAT, once it believes to be public: the first one has nobody to ask.
            "-forceReachabilityPublic=1",
            "-relayService=1",
            f"-relayMaxReservations={settings.relay_reservations}",
            f"-relayMaxCircuits={settings.relay_circuits_per_peer}",
            f"-relayDataLimit={settings.relay_circuit_bytes}",
            f"-relayTimeLimit={settings.relay_circuit_s}s",
        )
    arguments.append("-relayService=0")
    if relays and wants_relay(settings):
        # With discovery the daemon waits for four candidates, or three minutes, before it asks the first.
        arguments += ["-autoRelay=1", "-relayDiscovery=0", f"-trustedRelays={','.join(relays[:MAX_RELAYS])}"]
        if behind_nat or settings.relay == "always":
            arguments.append("-forceReachabilityPrivate=1")
    return tuple(arguments)


def wants_relay(settings: NetworkSettings) -> bool:
    """Whether this node should ever reserve places at relays; one that announces an address of its own is reachable."""
    return not settings.serve_relay and (
        settings.relay == "always" or (settings.relay == "auto" and not settings.announce)
    )


def usable_relays(settings: NetworkSettings) -> tuple[str, ...]:
    """One multiaddr of each trusted relay, or of each bootstrap, that the daemon can read: it exits on any other."""
    relays = by_peer(settings.trusted_relays or settings.bootstrap)
    readable = {peer_id: [address for address in each if _is_plain(address)] for peer_id, each in relays.items()}
    return tuple(f"{addresses[0]}/p2p/{peer_id}" for peer_id, addresses in readable.items() if addresses)


def relay_of(address: str) -> str | None:
    """Peer id of the relay that `address` leads through; None for a direct address."""
    return address.partition(CIRCUIT)[0].rpartition("/p2p/")[2] if CIRCUIT in address else None


def is_public(address: str) -> bool:
    """Whether `address` is a direct one with an IP of the whole internet."""
    parts = address.split("/")
    if CIRCUIT in address or len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return False
    try:
        return ip_address(parts[2]).is_global
    except ValueError:
        return False


def to_tell(multiaddrs: Iterable[str]) -> tuple[str, ...]:
    """The addresses in the order of their use to others: public, through relays (a few), then those of a local net."""
    ordered = list(multiaddrs)
    public = [address for address in ordered if is_public(address)]
    circuits = [address for address in ordered if relay_of(address)]
    local = [address for address in ordered if address not in public and address not in circuits]
    return (*public, *circuits[:MAX_CIRCUITS_TOLD], *local)


def reachability(settings: NetworkSettings, addresses: Sequence[str], connected: frozenset[str]) -> str | None:
    """In words, whether strangers can reach a node with these own addresses; None when nothing tells."""
    relays = sorted({relay for address in addresses if (relay := relay_of(address))})
    if relays:
        return f"behind NAT, reachable through relay {' and '.join(relays)}"
    if settings.serve_relay or settings.announce or any(map(is_public, addresses)):
        return "public"
    # In a local network without any NAT all addresses are private too.
    outside = {peer_id for peer_id, each in by_peer(settings.bootstrap).items() if any(map(is_public, each))}
    return "behind NAT, not reachable" if outside & connected else None


class RelayWatch:
    """Notices that all places at relays are lost for good although a relay is there.

    The daemon asks a relay only once an hour: after a relay's restart a node would stay unreachable that long.
    """

    def __init__(self, relays: Iterable[str]) -> None:
        """Watch over places at these relays (peer ids)."""
        self._relays = frozenset(relays)
        self._had_place = False
        self._back_since: float | None = None

    def lost(self, addresses: Iterable[str], connected: frozenset[str], now: float) -> bool:
        """Look at own addresses and connections; true when only another daemon can get a place again."""
        if any(map(relay_of, addresses)):
            self._had_place = True
            self._back_since = None
        elif not self._had_place or not self._relays & connected:
            self._back_since = None
        elif self._back_since is None:
            self._back_since = now
        return self._back_since is not None and now - self._back_since >= RENEW_AFTER_S


def _is_plain(address: str) -> bool:
    found = RELAY_ADDRESS.fullmatch(address)
    if found is None or int(found[3].split("/")[1]) > 65_535:
        return False
    if found[1] not in ("ip4", "ip6"):
        return True
    try:
        return ip_address(found[2]).version == int(found[1][2])
    except ValueError:
        return False
