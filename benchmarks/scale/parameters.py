"""What the model is given: rules, links, load, and what a record costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
"""An entry lives as long as so many renewals take (`net/membership/member.py`)."""
DIRECTORY_REPLICAS = 5
"""Nodes that hold a part of the run's directory: hivemind's default number of replicas of a key."""


@dataclass(frozen=True)
class Rules:
    """What a swarm may do otherwise than by default. All other rules of feeds are constants of the nodes' own code."""

    repair_every_s: float = 5.0
    """0 switches repair off."""
    announce_every_s: float = 60.0
    waits: bool = True
    """Own records that nobody has read wait for the next follower."""
    proven: int = 0
    """Members, the first that come, that all others have found useful."""


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
    by_comers: bool = False
    """Only by nodes that came to replace others, of any age up to the time that churn has lasted."""


@dataclass(frozen=True)
class Line:
    """A cost that grows with the size: of nothing, and per byte."""

    fixed: float
    per_byte: float

    def at(self, num_bytes: float) -> float:
        """The cost of `num_bytes`."""
        return self.fixed + self.per_byte * num_bytes


@dataclass(frozen=True)
class Transfer:
    """What it costs to bring a record, or its id, from one node to another, by the size of the record."""

    server_s: Line
    """CPU of the daemon that gives it."""
    reader_s: Line
    """CPU of the daemon that gets it."""
    nodes_s: Line
    """CPU of both nodes' processes; of a record, from the feed of one to the inbox of the other."""
    wire_bytes: Line
    """On the connection, encryption included, packet headers not."""
    asked_bytes: float
    """The other way."""

    def cpu_s(self, num_bytes: float) -> float:
        """CPU of both sides together."""
        return self.server_s.at(num_bytes) + self.reader_s.at(num_bytes) + self.nodes_s.at(num_bytes)


@dataclass(frozen=True)
class Costs:
    """CPU seconds and bytes; see `measure`."""

    seal_s: Line
    pushed: Transfer
    """A record in a feed."""
    named: Transfer
    """An id in a feed."""
    fetched: Transfer
    """A record that was asked for by `give`, with the request."""
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
_RECORD = Transfer(NOTHING, NOTHING, NOTHING, Line(0.0, 1.0), 0.0)
FREE = Costs(
    seal_s=NOTHING,
    pushed=_RECORD,
    named=replace(_RECORD, wire_bytes=Line(24.0, 0.0)),
    fetched=_RECORD,
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


def repair_window_s(rules: Rules) -> float:
    """Time whose records a repair summary lists."""
    return (1 + WINDOW_ROUNDS) * rules.repair_every_s


def records_listed(rules: Rules, groups_per_s: float) -> float:
    """Entries of a repair summary."""
    return min(MAX_LISTED, groups_per_s * repair_window_s(rules))
