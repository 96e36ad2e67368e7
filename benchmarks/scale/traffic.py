"""What a simulated or computed load means for one node: bytes and CPU time a second, and what a link can carry."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from benchmarks.scale.parameters import (
    DIRECTORY_PARTS,
    DIRECTORY_PLACES,
    DIRECTORY_REPLICAS,
    PACKET_OVERHEAD,
    RENEWALS_OF_A_LIFE,
    Costs,
    Gossip,
    Load,
    records_listed,
)
from benchmarks.scale.simulation import Outcome
from swarm.net.hivemind.discovery import RENEWALS
from swarm.net.membership.upkeep import PEERS_ASKED
from swarm.net.services.peer_exchange import MAX_PEERS

USABLE = 0.8
"""Of an uplink: the rest is for what comes in bursts, and for its owner."""


@dataclass(frozen=True)
class Gossiping:
    """Bytes a second that one node sends on behalf of gossip, and its CPU time."""

    first: float
    """Copies that are new to their receivers: on average a node sends as many as it receives."""
    duplicates: float
    ids: float
    busiest: float
    """All of these, at the node that sends most."""
    cpu: float
    """CPU seconds per second, of daemon and node; without generation, grading and training."""

    @property
    def total(self) -> float:
        """All three, on average."""
        return self.first + self.duplicates + self.ids


def gossiping(outcome: Outcome, load: Load, costs: Costs) -> Gossiping:
    """Averages over all nodes; every figure grows in proportion to the rate of the groups."""
    size, rate = load.record_bytes, load.groups_per_s / outcome.num_groups
    copy = costs.wire_bytes.at(size) * PACKET_OVERHEAD
    told = costs.id_bytes * PACKET_OVERHEAD
    nodes = range(len(outcome.copies_sent))
    sent, received, ids = mean(outcome.copies_sent), mean(outcome.copies_received), mean(outcome.ids_sent)
    first = len(outcome.latencies_s) / len(nodes)
    work = costs.first_s.at(size) + costs.take_in_s.at(size) + costs.open_s.at(size)
    cpu = first * work + (received - first) * costs.duplicate_s.at(size) + sent * costs.send_s.at(size)
    return Gossiping(
        rate * first * copy,
        rate * (sent - first) * copy,
        rate * ids * told,
        rate * max(outcome.copies_sent[node] * copy + outcome.ids_sent[node] * told for node in nodes),
        rate * (cpu + outcome.num_groups / len(nodes) * costs.seal_s.at(size)),
    )


def repair_bytes_per_s(gossip: Gossip, costs: Costs, groups_per_s: float) -> float:
    """Summaries of what others hold, on average as many sent as received; what they bring counts with the copies."""
    return PACKET_OVERHEAD * costs.held_bytes * records_listed(gossip, groups_per_s) / gossip.repair_every_s


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


def discovery(gossip: Gossip, costs: Costs, num_nodes: int) -> Discovery:
    """Nodes renew their entry in a part of the directory, whose holders answer with all of it; of many nodes, some."""
    every_s = gossip.announce_every_s
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
    return USABLE * uplink_bits_per_s / 8 / (gossiping(outcome, load, costs).busiest / load.groups_per_s)
