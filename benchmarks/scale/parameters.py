"""What the model is given: gossipsub's parameters, the links, the load, and what a message costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarm.net.records.repair import MAX_LISTED, WINDOW_ROUNDS

KIB = 2**10
SEGMENT_BYTES = 1_448
"""Payload of a TCP segment in an Ethernet frame."""
PACKET_OVERHEAD = 1 + 52 / SEGMENT_BYTES + 52 / (2 * SEGMENT_BYTES)
"""IP and TCP headers of a segment, and an acknowledgement for every second one. Not measured."""
INITIAL_WINDOW_BYTES = 10 * SEGMENT_BYTES
"""What TCP sends over a connection that has been idle before it waits for an answer (RFC 6928)."""
DIRECTORY_PARTS = 16
"""`PARTS` in `swarm/net/hivemind/dht.py`, which imports hivemind."""
DIRECTORY_PLACES = 128
"""`MAX_ENTRIES` of a part in `swarm/net/hivemind/dht_entries.py`, which imports hivemind."""
RENEWALS_OF_A_LIFE = 3
"""An entry lives as long as so many renewals take (`net/membership/own_entry.py`)."""
DIRECTORY_REPLICAS = 5
"""Nodes that hold a part of the run's directory: hivemind's default number of replicas of a key."""


@dataclass(frozen=True)
class Gossip:
    """Gossipsub v1.1, as go-libp2p-pubsub 0.10 has it by default: the daemon sets nothing else."""

    degree: int = 6
    degree_low: int = 5
    degree_high: int = 12
    degree_lazy: int = 6
    gossip_factor: float = 0.25
    """Ids go to this fraction of the peers outside the mesh, and to `degree_lazy` of them at least."""
    heartbeat_s: float = 1.0
    heartbeats_told: int = 3
    """Heartbeats in which the id of a message is told."""
    prune_backoff_s: float = 60.0
    queue_messages: int = 32
    """That may wait for one peer; further ones are dropped."""
    repair_every_s: float = 5.0
    """Of the swarm's own repair, which is no part of gossipsub; 0 switches it off."""
    announce_every_s: float = 60.0


@dataclass(frozen=True)
class Network:
    """Nodes and the links between them."""

    num_nodes: int
    dials: int = 32
    """Connections a node makes when it comes (`ENOUGH_PEERS` in `dialling`); it also accepts those of later ones."""
    delay_s: float = 0.05
    """Median one-way delay of a link; every link has its own."""
    delay_sigma: float = 0.5
    """Of the log-normal distribution: at 0.5 nine of ten links are between 0.44 and 2.3 times the median."""
    uplink_bits_per_s: float = 100e6
    loss: float = 0.0
    """Of messages, whole, as in the fault layer of the network benchmark."""
    churn_per_min: float = 0.0
    """Fraction of the nodes that vanish, and as many that come."""
    notice_s: float = 30.0
    """Until the peers of a vanished node notice: its machine is gone and closes no connection."""
    cores: int | None = None
    """Cores that all nodes share; None: every node has one to itself."""


@dataclass(frozen=True)
class Load:
    """Groups that are shared, by random nodes at random times."""

    record_bytes: int
    groups_per_s: float
    """Of all nodes together."""
    num_groups: int


@dataclass(frozen=True)
class Line:
    """A cost that grows with the size: of nothing, and per byte."""

    fixed: float
    per_byte: float

    def at(self, num_bytes: float) -> float:
        """The cost of `num_bytes`."""
        return self.fixed + self.per_byte * num_bytes


@dataclass(frozen=True)
class Costs:
    """What one message costs in CPU seconds and bytes; see `measure`."""

    seal_s: Line
    open_s: Line
    """Checking signature and limits, and decoding."""
    take_in_s: Line
    """From the daemon's socket to the inbox, in the node's process."""
    first_s: Line
    """The daemon's share of a message that is new to it, handing it to the node included."""
    duplicate_s: Line
    """The daemon's share of a message that it has already."""
    send_s: Line
    """The daemon's share of sending a message to one peer."""
    wire_bytes: Line
    """Of a record as one gossip message on the connection, encryption included, packet headers not."""
    id_bytes: float
    """Of a message's id in IHAVE or IWANT."""
    held_bytes: float
    """Of a record's entry in a repair summary."""
    peer_record_bytes: float
    """Of a peer's signed record."""
    directory_bytes: float
    """Read from the DHT for each peer's entry in one reading of the directory, all replicas together."""

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Costs:
        """What `write` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


NOTHING = Line(0.0, 0.0)
FREE = Costs(
    seal_s=NOTHING,
    open_s=NOTHING,
    take_in_s=NOTHING,
    first_s=NOTHING,
    duplicate_s=NOTHING,
    send_s=NOTHING,
    wire_bytes=Line(0.0, 1.0),
    id_bytes=48.0,
    held_bytes=32.0,
    peer_record_bytes=512.0,
    directory_bytes=512.0,
)
"""No CPU time: for tests, and for seeing what the network alone does."""


def slow_start_rounds(num_bytes: float) -> int:
    """Answers that TCP waits for while it sends this over an idle connection, its window doubling."""
    rounds, window, sent = 0, INITIAL_WINDOW_BYTES, INITIAL_WINDOW_BYTES
    while sent < num_bytes:
        window *= 2
        sent += window
        rounds += 1
    return rounds


def repair_window_s(gossip: Gossip) -> float:
    """Time whose records a repair summary lists."""
    return (1 + WINDOW_ROUNDS) * gossip.repair_every_s


def records_listed(gossip: Gossip, groups_per_s: float) -> float:
    """Entries of a repair summary."""
    return min(MAX_LISTED, groups_per_s * repair_window_s(gossip))
