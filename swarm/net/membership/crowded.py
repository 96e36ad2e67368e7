"""Crowded bootstraps: when to leave a bootstrap alone that has hung up.

A daemon with more than 512 connections closes all but 256 of those that are older than two minutes. Whoever dials again
at once is safe for two minutes, so if all do, a bootstrap of thousands is connected with all of them and shakes hands
all the time. A node that does without it leaves its place to newcomers.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from swarm.net.addresses.dial import Backoff, host_of

ENOUGH_HOSTS = 8
"""A node does without a bootstrap while it is connected with members at this many hosts that it has dialled itself. Who
dials a node, and how many peers one machine plays, is an attacker's choice."""
KEPT_S = 600.0
"""A bootstrap that ends an older connection has restarted rather than made room, and is dialled at once."""
FIRST_PAUSE_S, MAX_PAUSE_S = 300.0, 1_800.0
"""The pause doubles with every connection that is closed early. It is bounded, so that a node whose members all turn
out to be an attacker's still meets its bootstraps."""
APART = (0.5, 1.0)
"""Factor of a node's pauses: a bootstrap hangs up on hundreds of nodes at once, which must not return together."""


class CrowdedBootstraps:
    """Pauses of bootstraps that have hung up. Pure: `Dialling` says what is connected, and applies the pauses."""

    def __init__(self) -> None:
        """No bootstrap has been connected yet."""
        apart = random.uniform(*APART)
        self._pauses = Backoff(apart * FIRST_PAUSE_S, apart * MAX_PAUSE_S)
        self._since: dict[str, float] = {}
        self._carriers: frozenset[str] = frozenset()
        """Relays of this node's own addresses when they were last connected."""

    def judge(self, bootstraps: Collection[str], connected: frozenset[str], relays: frozenset[str], now: float) -> None:
        """Note which bootstraps are connected and which have hung up; `relays` carry connections to this node now."""
        self._carriers = (self._carriers - connected) | relays
        for peer_id in bootstraps:
            if peer_id in connected:
                self._since.setdefault(peer_id, now)
            elif (since := self._since.pop(peer_id, None)) is not None:
                # Without its relay others cannot dial this node.
                if now - since >= KEPT_S or peer_id in self._carriers:
                    self._pauses.succeeded(peer_id)
                else:
                    self._pauses.failed(peer_id, now)

    def wait_s(self, peer_id: str, now: float) -> float:
        """Seconds until a node that does without this bootstrap may dial it."""
        return self._pauses.wait_s(peer_id, now)


def does_without(chosen: Collection[str], observed: Mapping[str, Sequence[str]]) -> bool:
    """Whether the members that this node has `chosen` to dial suffice, given the remote ends of its connections."""
    # One end of each: a peer may connect from anywhere besides.
    return len({host_of(observed[peer_id][0]) for peer_id in chosen if observed.get(peer_id)}) >= ENOUGH_HOSTS
