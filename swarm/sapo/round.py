"""SAPO: the round every node runs. Source: arXiv:2509.08721, algorithm 1.

    draw ──▶ generate ──▶ grade ──▶ share ─────────────▶ swarm
                            │                              │
                            ▼                              ▼
                     local groups with       receive ──▶ new? ──▶ shortlist ──▶ regrade ──▶ pool
                          signal                                                             │
                            └──────▶ mix I + J ◀──── plausible? ◀── fair part ───────────────┘
                                         │
                                         ▼
                                       update ──▶ watch: has others' data hurt?

There is no global round and no barrier: a node takes what has arrived and trains even if nothing has. The steps before
`share` are in `rollouts.py`, which may run some rounds ahead. The queues:
  batches ahead    own groups not yet taken, at most `max_staleness` batches
  exchange inbox   opened groups, filled by the network thread, emptied by `receive`, bounded by the network settings
  waiting          received groups not yet chosen to be regraded, bounded by the pool settings
  verifier queue   received groups being regraded, emptied by `collect`, bounded by the verification settings
  pool             regraded groups with signal, sampled by `mix`, bounded by the pool settings
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import compress
from typing import Literal

import numpy as np
from msgspec import Struct
from pydantic import Field

from swarm.figures import SLOTS_BUSY, values
from swarm.groups.building import OwnGroups
from swarm.groups.copies import Copies
from swarm.groups.corroboration import Corroboration, CorroborationSettings
from swarm.groups.credit import Credit
from swarm.groups.intake import Intake, cannot_fit
from swarm.groups.plausibility import Plausibility, PlausibilitySettings
from swarm.groups.playing.flow import BATCHES_A_CALL
from swarm.groups.rollout_figures import rewards_by_task, rollout_figures
from swarm.groups.signal import has_signal
from swarm.groups.waiting import Received, Waiting, WaitingLimits
from swarm.protocols import NEWCOMERS, GroupExchange, KeepSample, RolloutEngine, Updater, Verifier
from swarm.reasons import Reason
from swarm.sapo.appraisal import Appraisal, own_reading, read_group
from swarm.sapo.mixing import AuthorOf, Candidate, Claim, Mix, Mixer, MixRound, MixSettings, mix_figures
from swarm.sapo.pool import Pool
from swarm.sapo.rollouts import GradedBatch, Rollouts
from swarm.sapo.shortlist import Shortlist, Situation
from swarm.sapo.watch import Alarm, Watch, WatchSettings
from swarm.sapo.worth import WorthEstimator
from swarm.settings import Settings
from swarm.stopwatch import Stopwatch
from swarm.telemetry.ledger import Ledger
from swarm.types import GradedGroup, PolicyId, RolloutGroup, Sampling, SwarmWorth, UpdateReport


class ShareSettings(Settings):
    """Which of its own groups a node shares."""

    groups: Literal["informative", "all", "none"] = "informative"
    """`informative`: those with signal under this node's verifier; `all`; `none`: share nothing."""
    max_groups: int | None = Field(None, ge=1)
    """Most groups shared per round, chosen uniformly; default: no limit."""
    token_ids: bool = False
    """Also send token ids and log-probabilities, for receivers that set `external_old_logprobs: behaviour`."""
    summary: bool = False
    """Tell members how far this node is: rounds, accuracy, groups given and used. They show it on their leaderboards,
    beside name, model and version, which every directory entry has. Learners and workers obey this field, too."""


class RoundReport(Struct, frozen=True):
    """The result of one round as the algorithm knows it; the role adds process and network figures to make an event."""

    round: int
    """1-based."""
    reward: float | None
    """Mean reward of this round's own completions; None when none was graded."""
    num_tokens: int
    mix: Mix
    update: UpdateReport
    timings: dict[str, float]
    """Seconds per stage."""
    figures: dict[str, float] = {}
    """Figures of this round's own groups, by conventional name."""
    tasks: dict[str, tuple[float, int]] = {}
    """(sum of rewards, completions) of this round's own groups by task."""
    worth: SwarmWorth | None = None
    """What others' groups do for this node; None when it is not measured."""
    num_unasked: int = 0
    """Questions for which there was no time."""
    problem: str = ""
    """Why none of its questions has a group, as in `GradedBatch`."""
    alarm: Alarm | None = None
    """Others' groups lowered this node's reward: it stops using them for a while, and the caller should roll back its
    policy."""


class SapoNode:
    """One member of the swarm: its own policy, questions, verifier and pool."""

    def __init__(
        self,
        *,
        peer_id: str,
        policy_id: PolicyId,
        seed: int,
        questions_per_round: int,
        group_size: int,
        max_pending_per_peer: int,
        sampling: Sampling,
        share: ShareSettings,
        mix: MixSettings,
        engine: RolloutEngine,
        verifier: Verifier,
        updater: Updater,
        exchange: GroupExchange,
        pool: Pool,
        ledger: Ledger,
        max_staleness: int = 0,
        max_generation_s: float = math.inf,
        max_sequences: int | None = None,
        batches_a_call: int = BATCHES_A_CALL,
        max_group_size: Callable[[], int] | None = None,
        credit: Credit = "episode",
        plausibility: PlausibilitySettings | None = None,
        corroboration: CorroborationSettings | None = None,
        watch: WatchSettings | None = None,
        worth: WorthEstimator | None = None,
        keep: KeepSample = lambda fate, group: None,
        unshared: Collection[str] = (),
        trusted: Collection[str] = (),
        unreadable: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A node before its first round. The version in `policy_id` is ignored: each group names its own.

        What is not generated in `max_generation_s` is left out of a round, and of others' groups the same part. For
        `max_sequences` and `batches_a_call` see `Rollouts`.
        `max_group_size` says how many completions a received group may have; by default as many as its own groups.
        `credit` is that of the updates.
        `keep` is told what became of own and received groups; `pool` tells it of those that leave unused. Groups of
        `unshared` tasks stay here. `trusted` are the peers whose word counts for what their own tools said. Those of
        `unreadable` tasks have pictures or sounds that the policy cannot read.
        """
        self.peer_id = peer_id
        self.round = 0
        """Rounds finished."""
        self.position = 0
        """Questions drawn from this node's stream so far."""
        self.pool = pool
        self.ledger = ledger
        self.mixer = Mixer(mix)
        self._own = OwnGroups(
            peer_id=peer_id,
            policy_id=policy_id,
            sampling=sampling,
            exchange=exchange,
            token_ids=share.token_ids,
            clock=clock,
        )
        self._seed = seed
        self._questions_per_round = questions_per_round
        self._max_staleness = max_staleness
        self._share_settings = share
        self._unshared = unshared
        self._copies = Copies(peer_id)
        self._plausibility = Plausibility(plausibility or PlausibilitySettings())
        self._corroboration = Corroboration(corroboration or CorroborationSettings())
        self.watch = Watch(watch or WatchSettings())
        self._worth = worth
        self._updater = updater
        self._credit: Credit = credit
        self._exchange = exchange
        self._keep = keep
        self._clock = clock
        self._shortlist = Shortlist(self._situation)
        self._intake = Intake(
            exchange,
            verifier,
            ledger,
            WaitingLimits(max_pending_per_peer, pool.max_groups, pool.max_age_s),
            self._needless,
            self._unfit,
            pool.wants,
            keep,
            trusted,
            unreadable,
            choice=self._shortlist,
            max_completions=max_group_size or (lambda: group_size),
            committed=self._copies.note,
            clock=clock,
        )
        self._rollouts = Rollouts(
            engine=engine,
            verifier=verifier,
            make=self._own.make,
            version=lambda: updater.version,
            seed=seed,
            num_questions=questions_per_round,
            group_size=group_size,
            sampling=sampling,
            max_staleness=max_staleness,
            limit_s=max_generation_s,
            max_sequences=max_sequences,
            batches_a_call=batches_a_call,
        )
        self._asked = 1.0
        """Fraction of the last round's questions that there was time for."""

    def run_round(self) -> RoundReport:
        """Take own groups, share, receive, mix, update: one whole SAPO round."""
        stages = Stopwatch()
        rng = np.random.default_rng([self._seed, self.round])
        batch = self._rollouts.take(self.position, stages)
        self._asked = 1 - batch.num_unasked / self._questions_per_round
        local, failed = self._trainable(batch)
        informative = [group for group in local if has_signal(group.rewards)]
        with stages("share"):
            self._share(informative if self._share_settings.groups == "informative" else local, rng)
        with stages("receive"):
            self.receive()
        this = self._this_round(local, len(informative))
        with stages("mix"):
            mixed = self._mix(this, local, informative, rng)
        self._exchange.took(len(mixed.external), mixed.external_wanted)
        with stages("update"):
            update = self._update(mixed, len(informative))
        self._rollouts.updated()
        if self._worth is not None and self._max_staleness == 0:  # else updates hide the time of generation
            self._worth.timed(stages.seconds, len(mixed.local) + len(mixed.external), len(informative))
        self._settle(len(local) - len(informative), len(informative), failed, mixed, update.skipped)
        self._keep_own(local, mixed, update.skipped)
        self.mixer.record(this, mixed)
        self.position += self._questions_per_round
        self.round += 1
        return RoundReport(
            round=self.round,
            reward=this.reward,
            num_tokens=sum(len(c.token_ids) for group in local for c in group.group.completions),
            mix=mixed,
            update=update,
            timings=stages.seconds,
            figures=values(rollout_figures(local))
            | mix_figures(mixed)
            | (self._worth.figures() if self._worth else {})
            | ({} if batch.slots_busy is None else {SLOTS_BUSY: batch.slots_busy}),
            tasks=this.tasks,
            worth=self._worth.worth if self._worth else None,
            num_unasked=batch.num_unasked,
            problem=batch.problem,
            alarm=self._look_back(this.reward, mixed) if this.reward is not None else None,
        )

    def rest(self) -> None:
        """Begin nothing that is not needed yet; `run_round` begins it anew."""
        self._rollouts.rest()

    def close(self) -> None:
        """Generate no more."""
        self._rollouts.close()

    @property
    def num_pending(self) -> int:
        """Received groups that wait to be regraded or are being regraded."""
        return len(self._intake)

    def receive(self) -> None:
        """Receive groups and start to regrade those that updates will want; regraded groups enter the pool."""
        author_of = self._author_of()
        for content_id, graded in self._intake.receive(self.pool):
            for reason, count in self.pool.add(content_id, graded, self._clock(), author_of).items():
                self.ledger.dropped(reason, count)
        for reason, count in self.pool.expire(self._clock()).items():
            self.ledger.dropped(reason, count)

    def _situation(self, waiting: Waiting) -> Situation:
        """What decides which waiting groups to regrade now, and which of those on offer to fetch."""
        ungraded = [self._claimed(each) for each in waiting]
        pooled = self._candidates()
        wishes = self.mixer.wishes([*pooled, *ungraded], self._appraisal())
        weights = wishes.weights
        return Situation(
            waiting=ungraded,
            weights=None if weights is None else weights[len(pooled) :],
            num_external=math.ceil(self._share_of_others * wishes.num_external),
            num_choice=wishes.num_choice,
            # What is never drawn must not keep others from being graded.
            pooled=pooled if weights is None else list(compress(pooled, weights)),
            max_pooled=self.pool.max_groups,
            round=self.round,
            author_of=self._author_of(),
            rng=np.random.default_rng([self._seed, self.round]),
        )

    @property
    def _share_of_others(self) -> float:
        """The part of the mix's J that an update may take."""
        return self.watch.share * self._asked

    def _claimed(self, received: Received) -> Candidate:
        """A group as its author describes it."""
        return Candidate(
            content_id=received.key,
            content=Claim(received.peer_id, received.task, received.rewards),
            age_s=self._clock() - received.arrived_at,
            worth=self._worth_of(received.peer_id),
        )

    def _worth_of(self, peer_id: str) -> float | None:
        worth = self._worth.worth_of(peer_id) if self._worth else None
        return worth if worth is not None and math.isfinite(worth) else None

    def _needless(self, group: RolloutGroup) -> Reason | None:
        """Why a group need not be graded: it is too long for this policy, teaches nothing by its author's own word, or
        repeats an earlier one."""
        if cannot_fit(group, self._updater.max_chars):
            return Reason.TOO_LONG
        if not self.pool.wants(group.rewards):
            return Reason.ZERO_ADVANTAGE
        return self._copies.judge(group, self._clock())

    def _unfit(self, graded: GradedGroup) -> Reason | None:
        return None if self._updater.fits(graded) else Reason.TOO_LONG

    def _author_of(self) -> AuthorOf:
        established = self._exchange.established()
        return lambda peer_id: peer_id if peer_id in established else NEWCOMERS

    def _this_round(self, local: Sequence[GradedGroup], num_informative: int) -> MixRound:
        rewards = [reward for group in local for reward in group.rewards]
        return MixRound(
            round=self.round + 1,
            reward=float(np.mean(rewards)) if rewards else None,
            num_informative=num_informative,
            num_uninformative=len(local) - num_informative,
            tasks=rewards_by_task(local),
        )

    def _mix(
        self,
        this: MixRound,
        local: Sequence[GradedGroup],
        informative: Sequence[GradedGroup],
        rng: np.random.Generator,
    ) -> Mix:
        for graded in local:
            self._plausibility.learn([c.logprobs for c in graded.group.completions], graded.rewards)
            own = read_group(graded, own_reading(graded), self._updater.advantages, self._credit)
            self._corroboration.learn(own, float(np.mean(graded.rewards)))
        return self.mixer.mix(
            this,
            informative,
            self._candidates(),
            self._appraisal(),
            rng,
            share=self._share_of_others,
            author_of=self._author_of(),
        )

    def _appraisal(self) -> Appraisal:
        author_of = self._author_of()
        return Appraisal(
            self._updater,
            self._plausibility,
            self._credit,
            self._corroboration,
            lambda peer_id: tuple(dict.fromkeys((peer_id, author_of(peer_id)))),
        )

    def _candidates(self) -> list[Candidate]:
        now = self._clock()
        return [
            Candidate(
                content_id=each.content_id,
                content=each.graded,
                age_s=now - each.arrived_at,
                uses=each.uses,
                worth=self._worth_of(each.graded.group.peer_id),
            )
            for each in self.pool.dump()
        ]

    def _update(self, mixed: Mix, num_informative: int) -> UpdateReport:
        """Update the policy; in some rounds also measure what the external groups are worth."""
        if self._worth is None or not self._worth.begin(self.round):
            return self._updater.update(mixed.local, mixed.external)
        update = self._updater.update(mixed.local, mixed.external)
        self._worth.end(len(mixed.local), [group.group.peer_id for group in mixed.external], num_informative)
        return update

    def _look_back(self, reward: float, mixed: Mix) -> Alarm | None:
        """An alarm if others' groups lowered this node's reward, or brought it a habit that earns none; the pool's
        groups of those responsible are then discarded."""
        alarm = self.watch.observe(reward, len(mixed.local), [group.group.peer_id for group in mixed.external])
        if alarm is None and (drift := self._corroboration.drift()) is not None:
            alarm = Alarm(reward, reward, (drift.author,), 0, drift.tokens)
        if alarm is not None:
            for peer_id in alarm.senders:
                self._exchange.report(peer_id, Reason.HARMFUL)
            theirs = [
                each.content_id
                for each in self.pool.dump()
                if not alarm.tokens or each.graded.group.peer_id in alarm.senders
            ]
            self.ledger.dropped(Reason.HARMFUL, self.pool.refuse(theirs, Reason.HARMFUL))
        return alarm

    def _trainable(self, batch: GradedBatch) -> tuple[list[GradedGroup], Counter[Reason]]:
        """Own groups to train on, and the number of questions without one, by reason."""
        if self._max_staleness == 0:  # nothing is generated ahead
            return batch.groups, batch.failed
        oldest = self._updater.version - self._max_staleness
        groups = [graded for graded in batch.groups if graded.group.policy.version >= oldest]
        return groups, batch.failed + Counter({Reason.STALE: len(batch.groups) - len(groups)})

    def _share(self, groups: Sequence[GradedGroup], rng: np.random.Generator) -> None:
        if self._share_settings.groups == "none":
            return
        groups = [graded for graded in groups if graded.group.question.task not in self._unshared]
        limit = self._share_settings.max_groups
        if limit is not None and len(groups) > limit:
            groups = [groups[i] for i in rng.choice(len(groups), size=limit, replace=False)]
        for shared in self._own.share_all([graded.group for graded in groups]):
            if shared is not None:
                self._copies.judge(shared, self._clock())  # registers this node as their author
                self.ledger.shared(1)

    def _keep_own(self, local: Sequence[GradedGroup], mixed: Mix, skipped: bool) -> None:
        drawn = {id(graded) for graded in mixed.local}
        for graded in local:
            if not has_signal(graded.rewards):
                self._keep(Reason.ZERO_ADVANTAGE, graded)
            elif id(graded) not in drawn:
                self._keep(Reason.NOT_SAMPLED, graded)
            else:
                self._keep(Reason.UPDATE_SKIPPED if skipped else "used_local", graded)

    def _settle(
        self, num_zero_advantage: int, num_informative: int, failed: Counter[Reason], mixed: Mix, skipped: bool
    ) -> None:
        """Record the whole round at its end: a round that fails leaves no partial entry."""
        self.ledger.generated(num_zero_advantage + num_informative + failed.total())
        for reason, count in failed.items():
            self.ledger.local(reason, count)
        self.ledger.local(Reason.ZERO_ADVANTAGE, num_zero_advantage)
        self.ledger.local(Reason.NOT_SAMPLED, num_informative - len(mixed.local))
        senders = {each.content_id: each.graded.group.peer_id for each in self.pool.dump()}
        for content_id in mixed.refused_ids:
            self._shortlist.refused(content_id)
            self._exchange.report(senders[content_id], Reason.IMPROBABLE)
        self.ledger.dropped(Reason.IMPROBABLE, self.pool.refuse(mixed.refused_ids, Reason.IMPROBABLE))
        self._intake.settle(mixed.external, self.pool.use(mixed.external_ids), skipped)
        if skipped:
            self.ledger.local(Reason.UPDATE_SKIPPED, len(mixed.local))
        else:
            self.ledger.used_local(len(mixed.local))
