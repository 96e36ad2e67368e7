"""Other peers' groups in a SAPO node: which to regrade, which to keep, which an update learns from.

receive ──▶ skip? ──▶ shortlist ──▶ regrade ──▶ pool ──▶ fair part, by weight ──▶ plausible? ──▶ update
                                                                                                   │
        rest, and their authors charged ◀── has others' data hurt? ◀── settle: used, refused ◀─────┘
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from statistics import fmean

import numpy as np
from msgspec import Struct

from swarm.groups.building import Member
from swarm.groups.credit import Credit
from swarm.protocols import GroupExchange, KeepSample, Updater, Verifier
from swarm.reasons import Reason
from swarm.received.authors import author_of
from swarm.received.copies import Copies
from swarm.received.corroboration import Corroboration, CorroborationSettings
from swarm.received.intake import Intake, IntakeLimits, Selection, cannot_fit
from swarm.received.plausibility import Plausibility, PlausibilitySettings
from swarm.received.pool import Pool, PoolSettings
from swarm.received.screening import CandidateScorer, own_reading, read_group
from swarm.received.waiting import Waiting
from swarm.sapo.mixing import Candidate, Mix, Mixer, MixRound, MixSettings
from swarm.sapo.shortlist import GradingContext, Shortlist
from swarm.sapo.watch import Alarm, RewardGuard, WatchSettings
from swarm.sapo.worth import WorthEstimator
from swarm.telemetry.ledger import Ledger
from swarm.types import GradedGroup, ReceivedGroup, RolloutGroup


class ExternalSettings(Struct, frozen=True, kw_only=True):
    """How a node deals with others' groups."""

    mix: MixSettings
    pool: PoolSettings = PoolSettings()
    plausibility: PlausibilitySettings = PlausibilitySettings()
    corroboration: CorroborationSettings = CorroborationSettings()
    watch: WatchSettings = WatchSettings()
    credit: Credit = "episode"
    """That of the updates."""
    max_group_size: int
    """Most completions of a group."""
    max_pending_per_peer: int
    """Most groups of one peer that wait to be regraded."""
    trusted: Collection[str] = ()
    """Peers whose tool results are accepted without replay."""
    num_questions: int = 0
    """Questions a round as configured, if the mixing policy may change them; else 0."""
    num_steps: int = 1
    """Most optimizer steps of an update."""
    unreadable: Collection[str] = ()
    """Tasks with images or audio that the policy cannot read."""


class ExternalGroups(Selection):
    """Receives others' groups, and mixes them into the updates."""

    def __init__(
        self,
        settings: ExternalSettings,
        me: Member,
        updater: Updater,
        verifier: Verifier,
        exchange: GroupExchange,
        ledger: Ledger,
        worth: WorthEstimator | None,
        keep: KeepSample,
    ) -> None:
        """Nothing is received yet; `keep` is called with what became of received groups."""
        self.max_completions = settings.max_group_size
        self.pool = Pool(settings.pool, keep)
        self.mixer = Mixer(settings.mix, settings.num_questions, settings.num_steps)
        self.watch = RewardGuard(settings.watch)
        self._credit: Credit = settings.credit
        self._num_completions = settings.mix.completions_per_group
        self._me = me
        self._updater = updater
        self._exchange = exchange
        self._ledger = ledger
        self._worth = worth
        self._copies = Copies(me.peer_id)
        self._plausibility = Plausibility(settings.plausibility)
        self.corroboration = Corroboration(settings.corroboration)
        self._shortlist = Shortlist()
        limits = IntakeLimits(
            settings.max_pending_per_peer,
            settings.pool.max_groups,
            settings.pool.max_age_s,
            settings.trusted,
            settings.unreadable,
        )
        self._intake = Intake(exchange, verifier, ledger, self, limits, self._copies, keep, me.clock)
        self._round = 0
        self._asked = 1.0
        """Fraction of the round's questions that there was time for: of others' groups, too, it takes that part."""

    def begin_round(self, number: int, asked: float) -> None:
        """Round `number`, from 0, has begun; there was time for the fraction `asked` of its questions."""
        self._round, self._asked = number, asked

    @property
    def num_pending(self) -> int:
        """Received groups that wait to be regraded or are being regraded."""
        return len(self._intake)

    def receive(self) -> None:
        """Receive groups and start to regrade those that updates will want; regraded groups enter the pool."""
        authors = author_of(self._exchange)
        for received in self._intake.receive(self.pool):
            for reason, count in self.pool.admit(received, authors).items():
                self._ledger.dropped(reason, count)
        for reason, count in self.pool.expire(self._me.clock()).items():
            self._ledger.dropped(reason, count)

    def mix(
        self, this: MixRound, local: Sequence[GradedGroup], own: Sequence[GradedGroup], rng: np.random.Generator
    ) -> Mix:
        """The groups of round `this`: of the `local` ones with signal, and of the pool. `own` are all own groups of the
        round, by which others' are screened."""
        self._learn(own)
        mixed = self.mixer.mix(
            this,
            local,
            self._candidates(self.pool),
            self._scorer(),
            rng,
            share=self._share,
            author_of=author_of(self._exchange),
        )
        self._exchange.took(len(mixed.external), mixed.external_wanted)
        return mixed

    def _learn(self, own: Sequence[GradedGroup]) -> None:
        """Own groups are what others' are screened by."""
        for graded in own:
            self._plausibility.learn([c.logprobs for c in graded.group.completions], graded.rewards)
        read = [read_group(each, own_reading(each), self._updater.advantages, self._credit) for each in own]
        self.corroboration.learn(read, [fmean(graded.rewards) for graded in own])

    def settle(self, this: MixRound, mixed: Mix, skipped: bool) -> None:
        """Record the external groups of the update that was made, or `skipped`."""
        for received in mixed.refused:
            self._shortlist.refused(received.content_id)
            self._exchange.report(received.peer_id, Reason.IMPROBABLE)
        self._ledger.dropped(Reason.IMPROBABLE, self.pool.refuse(mixed.refused, Reason.IMPROBABLE))
        self._intake.settle(mixed.external, self.pool.use(mixed.drawn), skipped)
        self.mixer.record(this, mixed)

    def look_back(self, reward: float, mixed: Mix) -> Alarm | None:
        """An alarm if others' groups lowered this node's mean reward, or brought it a habit that earns none; the pool's
        groups of those responsible are then discarded."""
        alarm = self.watch.observe(reward, len(mixed.local), [group.group.peer_id for group in mixed.external])
        if alarm is None and (drift := self.corroboration.drift()) is not None:
            alarm = Alarm(reward, reward, (drift.author,), 0, drift.tokens)
        if alarm is not None:
            for peer_id in alarm.senders:
                self._exchange.report(peer_id, Reason.HARMFUL)
            theirs = [each for each in self.pool if not alarm.tokens or each.peer_id in alarm.senders]
            self._ledger.dropped(Reason.HARMFUL, self.pool.refuse(theirs, Reason.HARMFUL))
        return alarm

    def committed(self, shared: RolloutGroup) -> None:
        """This node shared a group: whoever sends its completions later has copied them."""
        self._copies.judge(shared, self._me.clock())

    def wants(self, rewards: Sequence[float]) -> bool:
        """See `Selection`."""
        return self.pool.wants(rewards)

    def skip_reason(self, group: RolloutGroup) -> Reason | None:
        """Too long for this policy, or without signal by its author's claim."""
        if cannot_fit(group, self._updater.max_chars):
            return Reason.TOO_LONG
        return None if self.pool.wants(group.rewards) else Reason.ZERO_ADVANTAGE

    def reject_reason(self, graded: GradedGroup) -> Reason | None:
        """Too long in this policy's tokens."""
        return None if self._updater.fits(graded) else Reason.TOO_LONG

    def choose(self, waiting: Waiting) -> list[str]:
        """See `Selection`: what the coming updates want."""
        ungraded, pooled = self._candidates(waiting), self._candidates(self.pool)
        wishes = self.mixer.wishes([*pooled, *ungraded], self._scorer())
        weights = wishes.weights
        return self._shortlist.choose(
            GradingContext(
                waiting=ungraded,
                weights=None if weights is None else weights[len(pooled) :],
                num_external=math.ceil(self._share * wishes.num_external),
                num_choice=wishes.num_choice,
                # What is never drawn must not keep others from being graded.
                pooled=pooled if weights is None else list(compress(pooled, weights)),
                max_pooled=self.pool.max_groups,
                round=self._round,
                author_of=author_of(self._exchange),
                rng=np.random.default_rng([self._me.seed, self._round]),
            )
        )

    def came(self, key: str, content_id: str) -> None:
        """See `Selection`."""
        self._shortlist.came(key, content_id)

    def late(self, key: str) -> None:
        """See `Selection`."""
        self._shortlist.late(key)

    def checked(self, key: str, usable: bool) -> None:
        """See `Selection`."""
        self._shortlist.checked(key, usable)

    @property
    def _share(self) -> float:
        """The part of the mix's J that an update may take."""
        return self.watch.share * self._asked

    def _candidates(self, groups: Iterable[ReceivedGroup]) -> list[Candidate]:
        now = self._me.clock()
        return [Candidate(each, now - each.arrived_at, self._worth_of(each.peer_id)) for each in groups]

    def _worth_of(self, peer_id: str) -> float | None:
        worth = self._worth.worth_of(peer_id) if self._worth else None
        return worth if worth is not None and math.isfinite(worth) else None

    def _scorer(self) -> CandidateScorer:
        authors = author_of(self._exchange)
        return CandidateScorer(
            self._updater,
            self._plausibility,
            self._credit,
            self.corroboration,
            lambda peer_id: tuple(dict.fromkeys((peer_id, authors(peer_id)))),
            self._num_completions,
        )
