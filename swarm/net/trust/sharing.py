"""Which of its groups a node shares, and how: sent to everybody, or offered.

groups of a round ──▶ chance, at the common rate ──▶ cheaper to offer? ──▶ offers, for those who want the group
                                                           └──▶ the group, to everybody
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

from swarm.net.records.feed import FOLLOWED_AT_ONCE
from swarm.net.records.framing import MAX_CHUNK_BYTES
from swarm.net.records.offers import KNOWING, describe, pulling_is_cheaper
from swarm.net.trust.demand import Demand
from swarm.net.trust.offer_rate import Appetite
from swarm.types import NetworkStatus, Offer, VerifiedGroup

logger = logging.getLogger(__name__)

MIN_ROUND_S = 1.0
"""Shorter ones count as this long."""


class Sharing:
    """Decides by what the node measured: `demand`, its own appetite, and the network's status."""

    def __init__(self, demand: Demand, offer_life_s: float, seed: str, clock: Callable[[], float]) -> None:
        """Groups on offer can be had for `offer_life_s`."""
        self.appetite = Appetite()
        self._demand = demand
        self._offer_life_s = offer_life_s
        self._random = random.Random(seed)
        self._clock = clock
        self._shared_at = clock()
        self._warned_of_size = False

    def choose(self, num_groups: int, common_per_s: float) -> tuple[list[bool], float]:
        """Which of so many groups to share, and how many are shared each second.

        Chance decides: nodes whose rounds are short and those that make one group in an hour keep to the same rate.
        """
        now = self._clock()
        elapsed_s, self._shared_at = max(MIN_ROUND_S, now - self._shared_at), now
        made_per_s = num_groups / elapsed_s
        allowed_per_s = self.appetite.factor * common_per_s
        if made_per_s <= allowed_per_s:
            return [True] * num_groups, made_per_s
        return [self._random.random() < allowed_per_s / made_per_s for _ in range(num_groups)], allowed_per_s

    def offers(self, groups: Sequence[VerifiedGroup], status: NetworkStatus) -> dict[str, Offer]:
        """By content id, the offers of the groups that members should pull; the others are sent to everybody."""
        wanted, num_members = self._demand.fraction, len(status.connected)
        if wanted is None and num_members >= FOLLOWED_AT_ONCE:
            wanted = 0.0  # of all groups of a large swarm, a member uses few
        # In a large swarm most connected members are ones that dialled: nothing is known of these.
        if wanted is None or not status.num_pulling >= KNOWING * status.num_described > 0:
            return {}
        pull = [each for each in groups if pulling_is_cheaper(len(each.record), num_members, wanted)]
        self._warn_of_size(max((len(each.record) for each in pull), default=0))
        offers = {each.content_id: describe(each, self._offer_life_s) for each in pull}
        return {content_id: offer for content_id, offer in offers.items() if offer is not None}

    def _warn_of_size(self, num_bytes: int) -> None:
        """Once, of a group that cannot be offered."""
        if num_bytes > MAX_CHUNK_BYTES and not self._warned_of_size:
            self._warned_of_size = True
            logger.warning(
                "a group of %d KiB is sent to every member, wanted or not: only groups of up to %d KiB can be offered; "
                "smaller generation.max_new_tokens or generation.group_size, or share.max_groups, would save traffic",
                num_bytes // 1024,
                MAX_CHUNK_BYTES // 1024,
            )
