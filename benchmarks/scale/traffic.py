"""What a simulated or computed load means for one node: bytes and CPU time a second, and what a link can carry."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scale.parameters import (
    DIRECTORY_PARTS,
    DIRECTORY_PLACES,
    DIRECTORY_REPLICAS,
    PACKET_OVERHEAD,
    RENEWALS_OF_A_LIFE,
    Costs,
    Load,
    Rules,
    records_listed,
)
from benchmarks.scale.simulation import Outcome
from swarm.net.hivemind.session import RENEWALS
from swarm.net.membership.upkeep import PEERS_ASKED
from swarm.net.services.requests import MAX_PEERS

USABLE = 0.8
"""Of an uplink: the rest is for what comes in bursts, and for its owner."""


@dataclass(frozen=True)
class Feeding:
    """Bytes a second that one node sends in feeds and to those who ask, and its CPU time."""

    first: float
    """Records that are new to their receivers: on average a node sends as many as it receives."""
    duplicates: float
    ids: float
    """With the requests for what they name."""
    busiest: float
    """All of these, at the node that sends most."""
    cpu: float
    """CPU seconds per second, of daemon and node; without generation, grading and training."""

    @property
    def total(self) -> float:
        """All three, on average."""
        return self.first + self.duplicates + self.ids


def feeding(outcome: Outcome, load: Load, costs: Costs) -> Feeding:
    """Averages over all nodes; every figure grows in proportion to the rate of the groups."""
    size, num_nodes = load.record_bytes, len(outcome.bytes_sent)
    rate = load.groups_per_s / outcome.num_groups
    given, new = outcome.pushed + outcome.given, len(outcome.latencies_s)
    records = outcome.pushed * costs.pushed.wire_bytes.at(size) + outcome.given * costs.fetched.wire_bytes.at(size)
    ids = outcome.named * costs.named.wire_bytes.at(size) + outcome.given * costs.fetched.asked_bytes
    each = rate * PACKET_OVERHEAD / num_nodes
    work = (
        outcome.pushed * costs.pushed.cpu_s(size)
        + outcome.named * costs.named.cpu_s(size)
        + outcome.given * costs.fetched.cpu_s(size)
        # What a node has already it only reads, as it reads an id.
        - max(0, outcome.received - new) * (costs.pushed.nodes_s.at(size) - costs.named.nodes_s.at(size))
        + outcome.num_groups * costs.seal_s.at(size)
    )
    first = records * min(1.0, new / max(1, given))
    return Feeding(
        each * first, each * (records - first), each * ids, rate * max(outcome.bytes_sent), rate * work / num_nodes
    )


def repair_bytes_per_s(rules: Rules, costs: Costs, groups_per_s: float) -> float:
    """Summaries of what others hold, on average as many sent as received; what they bring counts with the copies."""
    return PACKET_OVERHEAD * costs.held_bytes * records_listed(rules, groups_per_s) / rules.repair_every_s


@dataclass(frozen=True)
class Discovery:
    """Bytes a second for knowing where the others are."""

    exchange: float
    """Sent and received by every node, between members."""
    reading: float
    """Received by every node from the directory."""
    holding: float
    """Sent by each of the few nodes that hold the directory."""
    reply_bytes: float
    """Of a holder's answer."""


def discovery(rules: Rules, costs: Costs, num_nodes: int) -> Discovery:
    """Nodes renew their entry in a part of the directory, whose holders answer with all of it; of many nodes, some."""
    every_s = rules.announce_every_s
    others = num_nodes - 1
    exchange = PEERS_ASKED * min(MAX_PEERS, others) * costs.peer_record_bytes / every_s
    turn = min(1.0, RENEWALS / num_nodes)
    entries = min(DIRECTORY_PLACES, others * (1 - (1 - turn) ** RENEWALS_OF_A_LIFE) / DIRECTORY_PARTS)
    reply_bytes = entries * costs.directory_bytes / DIRECTORY_REPLICAS
    reading = turn * min(DIRECTORY_REPLICAS, others) * reply_bytes / every_s
    holders = min(DIRECTORY_PARTS * DIRECTORY_REPLICAS, num_nodes)
    return Discovery(
        exchange * PACKET_OVERHEAD, reading * PACKET_OVERHEAD, num_nodes * reading / holders * PACKET_OVERHEAD,
        reply_bytes,
    )  # fmt: skip


def largest_rate(outcome: Outcome, load: Load, costs: Costs, uplink_bits_per_s: float) -> float:
    """Groups a second of all nodes together at which the busiest node's uplink is used to `USABLE`."""
    return USABLE * uplink_bits_per_s / 8 / (feeding(outcome, load, costs).busiest / load.groups_per_s)
