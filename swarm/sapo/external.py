"""Other peers' groups in a SAPO node: which to regrade, which to keep, which an update learns from.

receive ──▶ skip? ──▶ shortlist ──▶ regrade ──▶ pool ──▶ fair part, by weight ──▶ plausible? ──▶ update
                                                                                                   │
        rest, and their authors charged ◀── has others' data hurt? ◀── settle: used, refused ◀─────┘

The shortlist chooses which received groups to grade: as many as the coming updates take, so that few are graded for
nothing.

    graded groups wanted  =  J (1 + rounds that grading takes)  +  those to choose from
    expected              =  sum of the pass rates of what is in the pool, being graded or being fetched

While fewer are expected than wanted, the next group is that of the author who has cost least so far. A group costs its
author 1 / pass rate, so that an author whose groups fail gets fewer of them graded. Among one author's groups, the
mix's weights decide, by the rewards that the author claims, times the pass rate of its groups of the same task: another
node may have other tasks. Claims decide what is fetched and graded, never what is learned.

An offer is a promise. Newcomers' promises displace no established author's group, late ones displace nobody's. At most
32 of newcomers' promises are awaited at once.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from statistics import fmean

import numpy as np
from msgspec import Struct, field

from swarm.groups.building import Member
from swarm.groups.credit import Credit
from swarm.lru import LruDict
from swarm.protocols import NEWCOMERS, GroupExchange, KeepSample, Updater, Verifier
from swarm.reasons import Reason
from swarm.received.authors import AuthorOf, author_of
from swarm.received.copies import Copies
from swarm.received.corroboration import Corroboration, CorroborationSettings
from swarm.received.intake import Intake, IntakeLimits, Selection, Waiting, cannot_fit
from swarm.received.plausibility import Plausibility, PlausibilitySettings
from swarm.received.pool import Pool, PoolSettings
from swarm.received.screening import CandidateScorer, own_reading, read_group
from swarm.sapo.mixing import Candidate, Mix, Mixer, MixRound, MixSettings, authors, in_random_order
from swarm.sapo.watch import Alarm, RewardGuard, WatchSettings
from swarm.sapo.worth import WorthEstimator
from swarm.telemetry.ledger import Ledger
from swarm.types import GradedGroup, ReceivedGroup, RolloutGroup

MIN_PASS_RATE = 0.1
"""Least pass rate of an author whose groups always fail: the price of one is that of ten good ones."""
MAX_PROMISED = 32
"""Groups on offer by newcomers that are being fetched, late ones included; those that arrive leave room at once."""
MEMORY = 0.97
"""Weight that an outcome keeps with each later one of the author: the rate is that of its last 30 or so."""
REMEMBERED_LAGS = 32
REMEMBERED_PASSED = 1_024
MAX_AUTHORS = 1_024
MAX_TASKS = 64
"""Remembered of one author."""


class _Outcomes(Struct):
    """What became of an author's groups, of one task or of all."""

    passed: float = 1.0
    graded: float = 1.0
    """Both fade. An established author starts as if one group had passed, a newcomer as newcomers did so far."""

    @property
    def pass_rate(self) -> float:
        return max(MIN_PASS_RATE, self.passed / self.graded)

    def add(self, usable: bool) -> None:
        """One more of them."""
        self.passed = MEMORY * self.passed + usable
        self.graded = MEMORY * self.graded + 1


class _Author(Struct):
    """What an author's groups have cost, and what became of them."""

    cost: float = 0.0
    overall: _Outcomes = field(default_factory=_Outcomes)
    tasks: LruDict[str, _Outcomes] = field(default_factory=lambda: LruDict(MAX_TASKS))

    def outcomes(self, task: str) -> _Outcomes:
        """Those of a task; a new one starts from all tasks: names cost nothing."""
        return self.tasks.setdefault(task, _Outcomes(self.overall.pass_rate))


class _Begun(Struct):
    """A group that is being fetched or graded."""

    author: str
    task: str
    round: int
    is_here: bool
    is_new: bool
    """Whether its author was a newcomer."""
    is_late: bool = False
    """Counted as failed, until it comes."""


class GradingContext(Struct, frozen=True):
    """What decides which groups to grade."""

    waiting: Sequence[Candidate]
    """With the rewards that their authors claim."""
    weights: Sequence[float] | None
    """Weights of `waiting`; see `Decision`."""
    num_external: int
    """J, at most, of the next updates."""
    num_choice: int
    """Further graded groups, for the mix to choose from."""
    pooled: Sequence[Candidate]
    max_pooled: int
    round: int
    author_of: AuthorOf
    rng: np.random.Generator


class Shortlist:
    """Chooses by what the coming updates want. Knows what it has cost to grade each author's groups."""

    def __init__(self) -> None:
        self._round = 0
        self._authors = LruDict[str, _Author](MAX_AUTHORS)
        self._begun: dict[str, _Begun] = {}
        self._passed = LruDict[str, _Begun](REMEMBERED_PASSED)
        """Groups that passed lately."""
        self._lags: deque[int] = deque(maxlen=REMEMBERED_LAGS)
        """Rounds that the last gradings took."""
        self._spent = 0.0
        """Cost of the author chosen last: one that returns starts there, without credit for its absence."""

    def choose(self, now: GradingContext) -> list[str]:
        """Keys of the groups to grade now, and of those on offer to fetch for that."""
        self._round = now.round
        wanted = self._wanted(now)
        keys = authors([*now.pooled, *now.waiting], now.author_of)
        new = {name for name in keys.values() if now.author_of(name) == NEWCOMERS}
        for name in new:
            self._enter(name)
        here = sum(self._pass_rate(keys[each.sender], each.task) for each in now.pooled)
        promised = {False: 0.0, True: 0.0}
        """Groups promised by established authors, and by newcomers."""
        for each in self._begun.values():
            if each.is_here:
                here += self._pass_rate(each.author, each.task)
            elif not each.is_late:
                promised[each.is_new] += self._pass_rate(each.author, each.task)
        queues = self._queues(now, keys)
        num_promised = sum(each.is_new and not each.is_here for each in self._begun.values())
        chosen: list[str] = []
        while queues and here + promised[False] < wanted:
            name = min(queues, key=lambda each: self._of(each).cost)
            if name in new and here + sum(promised.values()) >= wanted:
                del queues[name]
                continue
            following = queues[name].popleft()
            if not queues[name]:
                del queues[name]
            if name in new and not following.is_here:
                if num_promised >= MAX_PROMISED:
                    continue
                num_promised += 1
            pass_rate = self._pass_rate(name, following.task)
            author = self._of(name)
            self._spent = author.cost
            author.cost += 1 / pass_rate
            if following.is_here:
                here += pass_rate
            else:
                promised[name in new] += pass_rate
            self._begun[following.key] = _Begun(name, following.task, now.round, following.is_here, name in new)
            chosen.append(following.key)
        return chosen

    def came(self, key: str, content_id: str) -> None:
        """See `Selection`."""
        self._begun[content_id] = begun = self._begun.pop(key)
        begun.is_here = True

    def late(self, key: str) -> None:
        """See `Selection`."""
        begun = self._begun[key]
        begun.is_late = True
        for outcomes in self._outcomes(begun):
            outcomes.add(False)

    def checked(self, key: str, usable: bool) -> None:
        """See `Selection`."""
        begun = self._begun.pop(key)
        for outcomes in self._outcomes(begun):
            if not begun.is_late:
                outcomes.add(usable)
            elif usable:
                outcomes.passed += 1
        if usable:
            if not begun.is_late:  # else whoever answers late would have more fetched
                self._lags.append(max(1, self._round - begun.round))
            self._passed[key] = begun

    def refused(self, content_id: str) -> None:
        """A group that had passed was drawn for an update, and then not used."""
        if (begun := self._passed.pop(content_id, None)) is not None:
            for outcomes in self._outcomes(begun):
                outcomes.passed = max(0.0, outcomes.passed - 1)

    def _wanted(self, now: GradingContext) -> int:
        """Graded groups, in the pool or on their way there."""
        if not now.num_external:
            return 0
        # The upper quartile: a few late ones do not raise it.
        lag = sorted(self._lags)[3 * len(self._lags) // 4] if self._lags else 1
        return min(now.max_pooled, now.num_external * (1 + lag) + now.num_choice)

    def _queues(self, now: GradingContext, keys: Mapping[str, str]) -> dict[str, deque[ReceivedGroup]]:
        """The groups of each author, the next one first, without those of weight 0."""
        queues: defaultdict[str, deque[ReceivedGroup]] = defaultdict(deque)
        given = now.weights if now.weights is not None else [1.0] * len(now.waiting)
        weights = [
            weight * self._pass_rate(keys[each.sender], each.task)
            for weight, each in zip(given, now.waiting, strict=True)
        ]
        for index in in_random_order(len(now.waiting), weights, now.rng):
            following = now.waiting[index].received
            queues[keys[following.peer_id]].append(following)
        for name in queues:
            self._of(name).cost = max(self._of(name).cost, self._spent)
        return queues

    def _outcomes(self, begun: _Begun) -> list[_Outcomes]:
        author = self._of(begun.author)
        also = [self._of(NEWCOMERS).overall] if begun.is_new and begun.author != NEWCOMERS else []
        return [author.overall, author.outcomes(begun.task), *also]

    def _pass_rate(self, name: str, task: str) -> float:
        return self._of(name).outcomes(task).pass_rate

    def _enter(self, name: str) -> None:
        """A newcomer: names cost nothing, so it starts as newcomers did."""
        if name not in self._authors:
            self._of(name).overall = _Outcomes(self._of(NEWCOMERS).overall.pass_rate)

    def _of(self, name: str) -> _Author:
        return self._authors.setdefault(name, _Author())


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
    has_penalty: bool = False
    """Whether updates compute completions without an advantage, too."""
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
        self.mixer = Mixer(settings.mix, settings.num_questions, settings.num_steps, settings.has_penalty)
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
