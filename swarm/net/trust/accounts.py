"""Per-peer accounts: how much a peer sends, how useful it was, and whether it is quarantined.

    record ──▶ admit: quarantined? replayed? over its rate? ──▶ regrading ──▶ report: the outcome
                 ▲                                                              │
                 └───────────── reputation, quarantine with expiry ◀────────────┘

Only outcomes that a signature attributes to a peer count against it: any peer can replay or garble another's record.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable

from msgspec import Struct, field
from pydantic import Field

from swarm.errors import Refusal
from swarm.lru import LruDict
from swarm.net.bandwidth import TokenBucket
from swarm.net.records.wire import MAX_CLOCK_SKEW_S
from swarm.protocols import RECORDED
from swarm.reasons import FRAUDS, Outcome, Reason
from swarm.settings import Settings

MAX_TRACKED_PEERS = 1_024
MAX_RETIRED_PEERS = 16_384
"""Accounts removed from memory keep their highest sequence number, so that old groups cannot be replayed."""
PROVEN_MERIT = 3.0
"""A peer is proven if its recent merit exceeds both this and its recent offences."""
SEQUENCE_WINDOW = 1_024
"""Sequence numbers remembered per peer, since gossip and repair deliver out of order. Numbers below the window count
as replayed.
"""

OFFENCES: dict[Outcome, float] = {
    Reason.MALFORMED: 2.0,
    Reason.OVERSIZED: 2.0,
    Reason.LIMITS: 2.0,
    Reason.WRONG_PEER: 2.0,
    Reason.TOO_LONG: 0.02,
    Reason.HIDDEN_TOKENS: 0.02,
    Reason.QUESTION_MISMATCH: 1.0,
    Reason.MEDIA_MISMATCH: 1.0,
    Reason.EPISODE_MISMATCH: 1.0,
    Reason.UNTRUSTED: 0.2,
    Reason.HELD_OUT: 2.0,
    Reason.VERIFIER_TIMEOUT: 4.0,
    Reason.VERIFIER_CRASH: 4.0,
    Reason.RATE: 0.05,
    Reason.SLOW_HOLDER: 0.2,
    Reason.BAD_GIFT: 2.0,
    Reason.WITHHELD: 0.5,
    Reason.FALSE_OFFER: 2.0,
    Reason.COPIED: 0.5,
    Reason.IMPROBABLE: 0.05,
    Reason.CORRUPT_CHUNK: 4.0,
    Reason.FLOOD: 0.5,
    Reason.BAD_REQUEST: 0.1,
    Reason.BAD_GOSSIP: 0.5,
    Reason.WRONG_TOKENS: 2.0,
    Reason.WRONG_VERSION: 5.0,
    Reason.WRONG_LOGPROBS: 5.0,
    Reason.UNLIKE_SAMPLES: 10.0,
}
"""Weight of each outcome that counts against the sender: by its cost to this node and how likely it is a mistake. A
mismatched question or episode may come from another library version; whom this node does not trust another may; no
honest node shares a held-out question. A grading that hangs costs seconds. A slow download may be the fault of this
node's link. A peer that forwards a wrong chunk or record has not checked it. Larger groups than the run's are refused
before they cost anything, and a member may have joined before the run was founded again. Groups too long for this
policy may suit others but take time to read, so a few per minute are forgiven. Improbable ones may come from another
family of models, whose other groups are used; a peer that sends nothing else is of no use. Clock errors have no
weight because either clock may be wrong. A later protocol version has none either: the sender is honest, and the
admission budgets limit the volume. That completions are no samples is found of many groups together, and never by
mistake."""

MISTAKE = 1.0
"""Outcomes up to this weight occur for honest peers in proportion to their traffic, so merit offsets them fully.
Heavier ones are costly, and merit offsets them only up to `merit_cap`."""

FORFEITS = FRAUDS | {Reason.HARMFUL}
"""Outcomes that erase a peer's merit and standing. `harmful`: this node got worse while it learned from the peer."""

MERIT = 1.0
"""Merit of a group that an update used. One that was merely right earns none: it may never have been learned from."""

MAX_STANDING_S = 600.0
MAX_GAP_S = 300.0
"""Standing grows with the time between useful groups, up to this gap, and not with their number."""
NEWCOMER = 0.5
"""A peer with less than this fraction of the highest standing is a newcomer."""


class SafetySettings(Settings):
    """Rate limits per peer, and when a peer is quarantined."""

    groups_per_min: float = Field(3_000.0, gt=0)
    """Largest sustained rate of one peer's groups; the burst is one minute's worth."""
    bytes_per_min: float = Field(128e6, gt=0)
    """Largest sustained rate of one peer's records."""
    newcomer_groups_per_min: float = Field(600.0, gt=0)
    """Largest sustained rate of the groups of a peer that has not been useful yet, and of all such peers behind one
    connection together; the burst is the size of the inbox."""
    newcomer_bytes_per_min: float = Field(16e6, gt=0)
    """Largest sustained rate of such a peer's records, by decompressed size."""
    verify_s_per_min: float = Field(20.0, gt=0)
    """Verification seconds per minute of a peer's groups: the sender chooses the questions, and some are slow."""
    quarantine_at: float = Field(10.0, gt=0)
    """Recent offence weight, after merit is subtracted, at which a peer is quarantined."""
    merit_cap: float = Field(0.5, ge=0, lt=1)
    """Merit offsets offences other than mistakes up to this fraction of `quarantine_at`."""
    quarantine_s: float = Field(600.0, gt=0)
    """Length of the first quarantine; each further one is twice as long, up to a day."""
    half_life_s: float = Field(600.0, gt=0)
    """Half-life of offence and merit weights."""


class PeerStats(Struct):
    """One peer's account."""

    received: int = 0
    used: int = 0
    num_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Dropped groups by reason, including refusals on arrival and complaints of the network."""
    last_seen: float | None = None
    merit: float = 0.0
    offence: float = 0.0
    """Both decayed up to `decayed_at`, as is `severe`."""
    severe: float = 0.0
    """The part of `offence` heavier than mistakes."""
    decayed_at: float = 0.0
    standing_s: float = 0.0
    """Capped seconds over which the peer was useful."""
    useful_at: float | None = None
    quarantined_until: float | None = None
    num_quarantines: int = 0
    sequence_floor: int = -1
    """All numbers up to this one count as seen."""
    recent_sequences: array[int] = field(default_factory=lambda: array("q"))
    """Seen numbers above the floor, ascending; at most 8 KB, where a set would take 100."""
    made_after: float = -math.inf
    """Groups made up to this time may have been seen before the account was removed."""
    newest_at: float = 0.0
    """Creation time of its newest group."""
    allowances: tuple[TokenBucket, ...] = ()
    """For groups, for bytes and for seconds of verification."""

    @property
    def highest_sequence(self) -> int:
        """Highest sequence number seen; -1 before the first."""
        return self.recent_sequences[-1] if self.recent_sequences else self.sequence_floor

    @property
    def reputation(self) -> float:
        """Fraction of the recent weight that is merit, in [0, 1]; 0.5 without history."""
        return (self.merit + 1) / (self.merit + self.offence + 2)


class PeerBook:
    """Accounts of all known peers, bounded in number; pure but for the clock."""

    def __init__(self, settings: SafetySettings, clock: Callable[[], float]) -> None:
        """An empty book. `clock` gives unix seconds."""
        self._settings = settings
        self._clock = clock
        self._peers: OrderedDict[str, PeerStats] = OrderedDict()
        self._retired = LruDict[str, tuple[int, float]](MAX_RETIRED_PEERS)
        """Highest sequence number, and creation time of the newest group, of removed accounts."""
        self._retired_until = -math.inf
        """Peers outside `_retired`: groups made up to this time may have been seen before."""

    def precheck(self, peer_id: str, num_bytes: int) -> None:
        """Check quarantine and rate limits before the content of a signed record is processed.

        Raises `Refusal` and books the record: `quarantined`, `rate` or `verify_budget`.
        """
        stats, now = self._of(peer_id), self._clock()
        try:
            self._check_quarantine(stats, now)
            self._check_allowances(stats, num_bytes, now)
        except Refusal:
            self._note(stats, num_bytes, now)
            raise

    def admit(self, peer_id: str, sequence: int | None, num_bytes: int, created_at: float | None = None) -> None:
        """Book a signed record; `created_at` is the creation time of its group, by default now. One without a
        `sequence` may come again.

        Raises `Refusal`: `quarantined`, `clock`, `replayed`, `rate` or `verify_budget`.
        """
        stats, now = self._of(peer_id), self._clock()
        self._note(stats, num_bytes, now)
        self._check_quarantine(stats, now)
        if sequence is not None:
            self._check_sequence(stats, sequence, now if created_at is None else created_at, now)
        self._check_allowances(stats, num_bytes, now)
        groups, bytes_, _ = stats.allowances
        groups.spend(1, now)
        bytes_.spend(num_bytes, now)

    def admit_offers(self, peer_id: str, num: int) -> None:
        """Book offers, each as a group. Raises `Refusal`: `quarantined`, `rate` or `verify_budget`."""
        self.precheck(peer_id, 0)
        self._of(peer_id).allowances[0].spend(num, self._clock())

    def report(self, peer_id: str, outcome: Outcome, verify_s: float = 0.0) -> None:
        """Book the outcome of a group, or a complaint of the network.

        `verify_s`: seconds of verification.
        """
        stats, now = self._of(peer_id), self._clock()
        stats.allowances[2].spend(verify_s, now)
        if outcome == "used":
            stats.used += 1
        elif outcome != "informative":
            stats.dropped[outcome] += 1
        self._decay(stats, now)
        self._judge(stats, outcome, now)
        if self._excess(stats) >= self._settings.quarantine_at and not self._is_quarantined(stats, now):
            self._quarantine(stats, now)

    def established(self) -> frozenset[str]:
        """Peers with at least half the highest standing, which is capped.

        New identities do not qualify for a while, however much they send. In a young swarm without any standing,
        every peer soon qualifies. Recorded groups, which are there from the first round, make nobody a newcomer.
        """
        standings = (stats.standing_s for peer_id, stats in self._peers.items() if peer_id != RECORDED)
        enough = NEWCOMER * max(standings, default=0.0)
        return frozenset(peer_id for peer_id, stats in self._peers.items() if stats.standing_s >= enough)

    def quarantined(self) -> frozenset[str]:
        """Peers in quarantine now."""
        now = self._clock()
        return frozenset(peer_id for peer_id, stats in self._peers.items() if self._is_quarantined(stats, now))

    def proven(self) -> frozenset[str]:
        """Peers with enough recent merit that also exceeds their offences."""
        return frozenset(
            peer_id for peer_id, stats in self.stats().items() if stats.merit > max(PROVEN_MERIT, stats.offence)
        )

    def find(self, peer_id: str) -> PeerStats | None:
        """A peer's account as it is, from any thread; None for an unknown peer."""
        return self._peers.get(peer_id)

    def stats(self) -> dict[str, PeerStats]:
        """All accounts by peer id."""
        now = self._clock()
        for stats in self._peers.values():
            self._decay(stats, now)
        return dict(self._peers)

    def highest_sequences(self) -> dict[str, int]:
        """Highest numbers by peer id, for a checkpoint: groups from before a restart must not be accepted again.

        Capped at the current time: otherwise a peer whose clock was once ahead would be refused for that long.
        """
        now_ms = int(self._clock() * 1000)
        retired = {peer_id: highest for peer_id, (highest, _) in self._retired.items()}
        tracked = {peer_id: stats.highest_sequence for peer_id, stats in self._peers.items()}
        return {peer_id: min(highest, now_ms) for peer_id, highest in (retired | tracked).items()}

    def restore(self, highest_sequences: dict[str, int]) -> None:
        """The inverse of `highest_sequences`."""
        now = self._clock()
        for peer_id, sequence in highest_sequences.items():
            self._retire(peer_id, sequence, now)

    def _of(self, peer_id: str) -> PeerStats:
        stats = self._peers.get(peer_id)
        if stats is None:
            rates = self._settings
            per_min = (rates.groups_per_min, rates.bytes_per_min, rates.verify_s_per_min)
            stats = PeerStats(allowances=tuple(TokenBucket(rate / 60, rate) for rate in per_min))
            self._peers[peer_id] = stats
            if peer_id in self._retired:
                stats.sequence_floor, stats.newest_at = self._retired.pop(peer_id)
            else:
                stats.made_after = self._retired_until
            if len(self._peers) > MAX_TRACKED_PEERS:
                self._forget_one()
        self._peers.move_to_end(peer_id)
        return stats

    def _forget_one(self) -> None:
        """Remove the account silent for longest; those without standing go first.

        Quarantined accounts go last: otherwise new keys could end a quarantine.
        """
        now = self._clock()
        free = (peer_id for peer_id, stats in self._peers.items() if not self._is_quarantined(stats, now))
        new = (
            peer_id
            for peer_id, stats in self._peers.items()
            if stats.standing_s == 0 and not self._is_quarantined(stats, now)
        )
        peer_id = next(new, next(free, next(iter(self._peers))))
        stats = self._peers.pop(peer_id)
        if stats.highest_sequence >= 0:
            self._retire(peer_id, stats.highest_sequence, stats.newest_at)

    def _retire(self, peer_id: str, highest: int, newest_at: float) -> None:
        if (forgotten := self._retired.put(peer_id, (highest, newest_at))) is not None:
            self._retired_until = max(self._retired_until, forgotten[1][1])

    def _note(self, stats: PeerStats, num_bytes: int, now: float) -> None:
        stats.received += 1
        stats.num_bytes += num_bytes
        stats.last_seen = now

    def _check_quarantine(self, stats: PeerStats, now: float) -> None:
        if self._is_quarantined(stats, now):
            raise Refusal(Reason.QUARANTINED, f"for another {(stats.quarantined_until or now) - now:.0f} s")

    def _check_sequence(self, stats: PeerStats, sequence: int, created_at: float, now: float) -> None:
        if sequence > (now + MAX_CLOCK_SKEW_S) * 1000:
            raise Refusal(Reason.CLOCK, f"sequence number {sequence} is a time in the future")
        if created_at <= stats.made_after:
            raise Refusal(Reason.REPLAYED, "created before the account of its sender was removed here")
        recent = stats.recent_sequences
        index = bisect_left(recent, sequence)
        if sequence <= stats.sequence_floor or sequence in recent[index : index + 1]:
            raise Refusal(Reason.REPLAYED, f"sequence number {sequence} was used before")
        recent.insert(index, sequence)
        if len(recent) > SEQUENCE_WINDOW:
            stats.sequence_floor = recent.pop(0)
        stats.newest_at = max(stats.newest_at, min(created_at, now))

    def _check_allowances(self, stats: PeerStats, num_bytes: int, now: float) -> None:
        rates = self._settings
        groups, bytes_, verify_s = (allowance.left(now) for allowance in stats.allowances)
        if verify_s < 0:
            raise Refusal(Reason.VERIFY_BUDGET, f"more than {rates.verify_s_per_min:g} s of verification per minute")
        if groups < 1 or bytes_ < num_bytes:
            raise Refusal(
                Reason.RATE, f"more than {rates.groups_per_min:g} groups or {rates.bytes_per_min:g} bytes per minute"
            )

    def _judge(self, stats: PeerStats, outcome: Outcome, now: float) -> None:
        offence = OFFENCES.get(outcome, 0.0)
        stats.offence += offence
        if outcome in FORFEITS:
            stats.merit = stats.standing_s = 0.0
            stats.useful_at = None
        stats.severe += offence if offence > MISTAKE else 0.0
        if outcome == "used":
            stats.merit += MERIT
            gap = 0.0 if stats.useful_at is None else min(MAX_GAP_S, _elapsed_s(stats.useful_at, now))
            stats.standing_s = min(MAX_STANDING_S, stats.standing_s + gap)
            stats.useful_at = now

    def _excess(self, stats: PeerStats) -> float:
        """Offence weight that merit does not offset."""
        mistakes = stats.offence - stats.severe
        cap = self._settings.merit_cap * self._settings.quarantine_at
        return stats.severe - min(stats.merit - mistakes, cap)

    def _decay(self, stats: PeerStats, now: float) -> None:
        decay = 0.5 ** (_elapsed_s(stats.decayed_at, now) / self._settings.half_life_s)
        stats.merit *= decay
        stats.offence *= decay
        stats.severe *= decay
        stats.decayed_at = now

    def _quarantine(self, stats: PeerStats, now: float) -> None:
        length_s = min(86_400.0, self._settings.quarantine_s * 2**stats.num_quarantines)
        stats.quarantined_until = now + length_s
        stats.num_quarantines += 1
        # After a quarantine the weights restart at zero, but the next quarantine is twice as long.
        stats.merit = stats.offence = stats.severe = stats.standing_s = 0.0
        stats.useful_at = None

    @staticmethod
    def _is_quarantined(stats: PeerStats, now: float) -> bool:
        return stats.quarantined_until is not None and now < stats.quarantined_until


def _elapsed_s(since: float, now: float) -> float:
    """Seconds since a time; none if the clock has been set back behind it."""
    return max(0.0, now - since)
