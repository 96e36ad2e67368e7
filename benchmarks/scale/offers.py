"""Groups that are offered, at the common rate, and fetched by those who use them: what that means for one node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.scale.parameters import PACKET_OVERHEAD, Costs, Load, Rules
from benchmarks.scale.simulation import Outcome
from benchmarks.scale.traffic import discovery, feeding, repair_bytes_per_s
from swarm.net.records.large import Referrals
from swarm.net.records.offers import REQUEST_BYTES
from swarm.net.trust.sharing import OFFERS_PER_S, OfferRate

RECORD_BYTES = 440
"""A record with one offer of eight completions, sealed: from 424 on, by the length of the task's name."""
ROUND_S = 30.0
NUM_USED = 4
"""Others' groups in an update: a node fetches them."""
SETTLING_S = 600
STEP_S = 0.5


@dataclass(frozen=True)
class Sharing:
    """A swarm in which every node makes one group in a round."""

    num_nodes: int
    group_bytes: int
    offered_per_s: float
    """Of all nodes together."""

    @property
    def pulls_per_offer(self) -> float:
        """Nodes that fetch a group, most of them within the next round."""
        return self.num_nodes * NUM_USED / ROUND_S / self.offered_per_s


@dataclass(frozen=True)
class Node:
    """Bytes a second and CPU of one node."""

    download: float
    """On average as much as it sends."""
    directory: float
    """Of that, for knowing where others are."""
    holding: float
    """In addition, sent by each of the few nodes that hold the directory."""
    author: float
    """Sent by a node during the round after its offer."""
    sent_by_author: float
    """Of those who fetch a group, how many get it from its author."""
    checks: float
    """Groups a second."""
    cpu: float
    """Seconds per second, for the network."""


def settled_rate(num_nodes: int, most: float = OFFERS_PER_S, seed: int = 0) -> float:
    """Offers per second of all nodes in the second half of ten minutes, by the nodes' code; all start at once."""
    draw = np.random.default_rng(seed)
    now = 0.0
    heard = OfferRate(most, lambda: now)
    made_per_s = 1 / ROUND_S
    offered: list[int] = []
    for step in range(int(SETTLING_S / STEP_S)):
        now = step * STEP_S
        rate = min(made_per_s, heard.per_s())
        count = int(draw.poisson(num_nodes * rate * STEP_S))
        for author in draw.integers(num_nodes, size=count):
            heard.heard(str(author), 1, rate)
        offered.append(count)
    last = offered[len(offered) // 2 :]
    return sum(last) / len(last) / STEP_S


@dataclass(frozen=True)
class Author:
    """What an author sends of one group on offer."""

    records: int
    referral_bytes: int


def author(num_pulls: float, group_bytes: int, peer_record_bytes: float, seed: int = 0) -> Author:
    """By the nodes' code; those who want the group ask at random times within a round, each with its own record."""
    draw = np.random.default_rng(seed)
    now = 0.0
    referrals = Referrals(lambda peer_id, sealed: True, lambda: now)
    asker = bytes(int(peer_record_bytes))
    answers: list[bytes | None] = []
    for at in sorted(draw.uniform(0, ROUND_S, round(num_pulls))):
        now = at
        answers.append(referrals.instead(b"", group_bytes, str(len(answers)), asker))
    return Author(answers.count(None), sum(len(answer) for answer in answers if answer is not None))


def node(sharing: Sharing, outcome: Outcome, rules: Rules, costs: Costs) -> Node:
    """`outcome`: feeds of records with one offer each, in a swarm of this size or a smaller one."""
    sent = feeding(outcome, Load(RECORD_BYTES, sharing.offered_per_s, outcome.num_groups), costs)
    found = discovery(rules, costs, sharing.num_nodes)
    wanted = author(sharing.pulls_per_offer, sharing.group_bytes, costs.peer_record_bytes)
    # Of one who fetches: the group, and the referral before it with one more request.
    record = (costs.fetched.wire_bytes.at(sharing.group_bytes) + REQUEST_BYTES + costs.peer_record_bytes) * (
        PACKET_OVERHEAD
    )
    referred = max(0.0, sharing.pulls_per_offer - wanted.records)
    referrals = (wanted.referral_bytes + referred * REQUEST_BYTES) * PACKET_OVERHEAD
    group = record + referrals / max(1.0, sharing.pulls_per_offer)
    used_per_s = min(NUM_USED / ROUND_S, sharing.offered_per_s)
    directory = found.exchange + found.reading
    base = sent.total + repair_bytes_per_s(rules, costs, sharing.offered_per_s) + directory
    return Node(
        base + used_per_s * group,
        directory,
        found.holding,
        base + (min(sharing.pulls_per_offer, wanted.records) * record + referrals) / ROUND_S,
        wanted.records,
        used_per_s,
        sent.cpu + used_per_s * costs.fetched.cpu_s(sharing.group_bytes),
    )
