"""What a node knows of each peer: how much it sends, how useful that was, and whether it is still listened to.

    record ──▶ admit: quarantined? replayed? over its rate? ──▶ regrading ──▶ report: what became of it
                 ▲                                                              │
                 └───────────── reputation, quarantine with expiry ◀────────────┘

Only outcomes that a signature pins on a peer count against it: anybody can replay or garble the record of another.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable

from msgspec import Struct, field
from pydantic import Field

from swarm.errors import RejectedGroup
from swarm.settings import Settings

MAX_TRACKED_PEERS = 1_024
SEQUENCE_WINDOW = 1_024
"""Sequence numbers remembered a peer. Gossip and repair deliver out of order; what lies below all remembered ones is
taken for a replay."""

OFFENCES: dict[str, float] = {
    "malformed": 2.0,
    "oversized": 2.0,
    "limits": 2.0,
    "wrong_peer": 2.0,
    "clock": 0.5,
    "question_mismatch": 1.0,
    "verifier_timeout": 4.0,
    "verifier_crash": 4.0,
    "rate": 0.05,
    "slow_holder": 0.2,
    "corrupt_chunk": 4.0,
    "wrong_tokens": 2.0,
    "wrong_version": 5.0,
    "wrong_logprobs": 5.0,
}
"""Weight of each outcome that speaks against its sender: by what it cost here, and how well it is explained by
mistakes. A question that does not match may come from another library version; a grading that hangs costs seconds; a
slow download may be this node's own link's fault; nobody hands a wrong chunk on who has checked it."""

FRAUDS = frozenset({"wrong_version", "wrong_logprobs"})
"""What no mistake explains: with it a peer's merits are forgotten, or a long honest life would pay for many lies."""

MERITS: dict[str, float] = {"informative": 1.0, "used": 1.0}


class SafetySettings(Settings):
    """How much a peer may send, and when it is no longer listened to."""

    groups_per_min: float = Field(3_000.0, gt=0)
    """Largest sustained rate of one peer's groups; a minute's worth may come at once."""
    bytes_per_min: float = Field(128e6, gt=0)
    """Largest sustained rate of one peer's records."""
    verify_s_per_min: float = Field(20.0, gt=0)
    """Verification time a peer's groups may cost a minute: the sender picks the questions, some take long to make."""
    quarantine_at: float = Field(10.0, gt=0)
    """Weight of recent offences, beyond that of recent merits, at which a peer is quarantined."""
    quarantine_s: float = Field(600.0, gt=0)
    """Length of a first quarantine; it doubles with each further one, up to a day."""
    half_life_s: float = Field(600.0, gt=0)
    """Offences and merits lose half their weight in this time."""


class PeerStats(Struct):
    """One peer's account."""

    received: int = 0
    used: int = 0
    num_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason, refusals at the door and complaints of the network included."""
    last_seen: float | None = None
    merit: float = 0.0
    offence: float = 0.0
    """Both decayed up to `weighed_at`."""
    weighed_at: float = 0.0
    quarantined_until: float | None = None
    num_quarantines: int = 0
    sequence_floor: int = -1
    """Everything up to here counts as seen."""
    recent_sequences: set[int] = field(default_factory=set)
    """Seen above the floor."""
    group_allowance: float = math.inf
    byte_allowance: float = math.inf
    verify_allowance: float = math.inf
    """Token buckets, the last in seconds; infinite until first used."""
    refilled_at: float = 0.0

    @property
    def reputation(self) -> float:
        """In [0, 1]: part of the recent weight that is merit; a peer without history has 0.5."""
        return (self.merit + 1) / (self.merit + self.offence + 2)


class PeerBook:
    """Accounts of the peers heard of, bounded in number; pure but for the clock."""

    def __init__(self, settings: SafetySettings, clock: Callable[[], float]) -> None:
        """An empty book. `clock` gives unix seconds."""
        self._settings = settings
        self._clock = clock
        self._peers: OrderedDict[str, PeerStats] = OrderedDict()

    def admit(self, peer_id: str, sequence: int, num_bytes: int) -> None:
        """Book a record whose signature is good.

        Raises `RejectedGroup`: `quarantined`, `replayed`, `rate` or `verify_budget`.
        """
        stats, now = self._of(peer_id), self._clock()
        stats.received += 1
        stats.num_bytes += num_bytes
        stats.last_seen = now
        if self._is_quarantined(stats, now):
            raise RejectedGroup("quarantined", f"{peer_id} for another {(stats.quarantined_until or now) - now:.0f} s")
        self._check_sequence(stats, sequence)
        self._spend(stats, num_bytes, now)

    def is_quarantined(self, peer_id: str) -> bool:
        """Whether nothing from this peer is looked at now."""
        stats = self._peers.get(peer_id)
        return stats is not None and self._is_quarantined(stats, self._clock())

    def report(self, peer_id: str, outcome: str, verify_s: float = 0.0) -> None:
        """Book what became of a group: `informative`, `used`, or the reason it was dropped for.

        `verify_s`: seconds its verification took.
        """
        stats, now = self._of(peer_id), self._clock()
        stats.verify_allowance -= verify_s
        if outcome == "used":
            stats.used += 1
        elif outcome not in MERITS:
            stats.dropped[outcome] += 1
        self._weigh(stats, now)
        stats.merit = 0.0 if outcome in FRAUDS else stats.merit + MERITS.get(outcome, 0.0)
        stats.offence += OFFENCES.get(outcome, 0.0)
        if stats.offence - stats.merit >= self._settings.quarantine_at and not self._is_quarantined(stats, now):
            self._quarantine(stats, now)

    def quarantined(self) -> frozenset[str]:
        """Peers not listened to now."""
        now = self._clock()
        return frozenset(peer_id for peer_id, stats in self._peers.items() if self._is_quarantined(stats, now))

    def stats(self) -> dict[str, PeerStats]:
        """All accounts by peer id."""
        now = self._clock()
        for stats in self._peers.values():
            self._weigh(stats, now)
        return dict(self._peers)

    def highest_sequences(self) -> dict[str, int]:
        """By peer id, for a checkpoint: what was received before a restart must not be received again."""
        return {
            peer_id: max(stats.recent_sequences, default=stats.sequence_floor) for peer_id, stats in self._peers.items()
        }

    def restore(self, highest_sequences: dict[str, int]) -> None:
        """What `highest_sequences` gave."""
        for peer_id, sequence in highest_sequences.items():
            self._of(peer_id).sequence_floor = sequence

    def _of(self, peer_id: str) -> PeerStats:
        stats = self._peers.get(peer_id)
        if stats is None:
            stats = self._peers[peer_id] = PeerStats()
            if len(self._peers) > MAX_TRACKED_PEERS:
                self._forget_one()
        self._peers.move_to_end(peer_id)
        return stats

    def _forget_one(self) -> None:
        """The peer silent for longest goes; those in quarantine last, or new keys would buy their release."""
        now = self._clock()
        free = (peer_id for peer_id, stats in self._peers.items() if not self._is_quarantined(stats, now))
        del self._peers[next(free, next(iter(self._peers)))]

    def _check_sequence(self, stats: PeerStats, sequence: int) -> None:
        if sequence <= stats.sequence_floor or sequence in stats.recent_sequences:
            raise RejectedGroup("replayed", f"sequence number {sequence} was used before")
        stats.recent_sequences.add(sequence)
        if len(stats.recent_sequences) > SEQUENCE_WINDOW:
            stats.sequence_floor = min(stats.recent_sequences)
            stats.recent_sequences.remove(stats.sequence_floor)

    def _spend(self, stats: PeerStats, num_bytes: int, now: float) -> None:
        minutes = (now - stats.refilled_at) / 60
        rates = self._settings
        stats.group_allowance = min(rates.groups_per_min, stats.group_allowance + minutes * rates.groups_per_min)
        stats.byte_allowance = min(rates.bytes_per_min, stats.byte_allowance + minutes * rates.bytes_per_min)
        stats.verify_allowance = min(rates.verify_s_per_min, stats.verify_allowance + minutes * rates.verify_s_per_min)
        stats.refilled_at = now
        if stats.verify_allowance < 0:
            raise RejectedGroup("verify_budget", f"more than {rates.verify_s_per_min:g} s of verification a minute")
        if stats.group_allowance < 1 or stats.byte_allowance < num_bytes:
            raise RejectedGroup(
                "rate", f"more than {rates.groups_per_min:g} groups or {rates.bytes_per_min:g} bytes a minute"
            )
        stats.group_allowance -= 1
        stats.byte_allowance -= num_bytes

    def _weigh(self, stats: PeerStats, now: float) -> None:
        decay = 0.5 ** ((now - stats.weighed_at) / self._settings.half_life_s)
        stats.merit *= decay
        stats.offence *= decay
        stats.weighed_at = now

    def _quarantine(self, stats: PeerStats, now: float) -> None:
        length_s = min(86_400.0, self._settings.quarantine_s * 2**stats.num_quarantines)
        stats.quarantined_until = now + length_s
        stats.num_quarantines += 1
        # It comes back with a clean slate but a shorter leash: the next quarantine is twice as long.
        stats.merit = stats.offence = 0.0

    @staticmethod
    def _is_quarantined(stats: PeerStats, now: float) -> bool:
        return stats.quarantined_until is not None and now < stats.quarantined_until
