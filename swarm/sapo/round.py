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

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from swarm.figures import SLOTS_BUSY, values
from swarm.groups.building import Member, OwnGroups
from swarm.groups.credit import has_signal
from swarm.groups.part import most_varied
from swarm.groups.rollout_figures import rewards_by_task, rollout_figures
from swarm.protocols import GroupExchange, KeepSample, RolloutEngine, Updater, Verifier
from swarm.reasons import Reason
from swarm.sapo.external import ExternalGroups, ExternalSettings
from swarm.sapo.mixing import Mix, MixRound, mix_figures
from swarm.sapo.rollouts import GradedBatch, RolloutPlan, Rollouts
from swarm.sapo.watch import Alarm
from swarm.sapo.worth import WorthEstimator
from swarm.settings import Settings
from swarm.stopwatch import Stopwatch
from swarm.telemetry.ledger import Ledger
from swarm.types import GradedGroup, SwarmWorth, UpdateReport


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
    worth: bool = True
    """Tell members what the groups of each author are worth to this node, as far as it has measured: the credit in
    `swarm peers` is made of such statements. An author that asks hears about its own groups."""


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


class SapoSettings(Struct, frozen=True, kw_only=True):
    """How a node makes its rounds."""

    rollouts: RolloutPlan
    external: ExternalSettings
    share: ShareSettings = ShareSettings()
    unshared: Collection[str] = ()
    """Tasks whose groups stay here."""


class Parts(Struct, frozen=True, kw_only=True):
    """What a node is made of."""

    engine: RolloutEngine
    verifier: Verifier
    updater: Updater
    exchange: GroupExchange
    worth: WorthEstimator | None = None
    """Measures what others' groups are worth to this node; None: nothing does."""


class SapoNode:
    """One member of the swarm: its own policy, questions, verifier and pool."""

    def __init__(
        self, settings: SapoSettings, me: Member, parts: Parts, keep: KeepSample = lambda fate, group: None
    ) -> None:
        """A node before its first round; `keep` is called with what became of own and received groups."""
        self.peer_id = me.peer_id
        self.round = 0
        """Rounds finished."""
        self.position = 0
        """Questions drawn from this node's stream so far."""
        self.ledger = Ledger()
        self.external = ExternalGroups(
            settings.external, me, parts.updater, parts.verifier, parts.exchange, self.ledger, parts.worth, keep
        )
        self._settings = settings
        self._me = me
        self._updater = parts.updater
        self._worth = parts.worth
        self._keep = keep
        self._own = OwnGroups(me, parts.exchange, settings.share.token_ids)
        self._rollouts = Rollouts(settings.rollouts, me, parts.engine, parts.verifier, parts.updater, self._own)
        self.curriculum = self._rollouts.curriculum

    def run_round(self) -> RoundReport:
        """Take own groups, share, receive, mix, update: one whole SAPO round."""
        stages = Stopwatch()
        rng = np.random.default_rng([self._me.seed, self.round])
        planned = self.external.mixer.num_questions or self._settings.rollouts.num_questions
        batch = self._rollouts.take_batch(self.position, stages, planned)
        num_questions = batch.num_questions
        self.external.begin_round(self.round, 1 - batch.num_unasked / num_questions)
        own, failed = self._trainable(batch)
        local = [group for group in own if has_signal(group.rewards)]
        this = self._this_round(own, len(local), num_questions - batch.num_unasked)
        with stages("share"):
            self._share(local if self._settings.share.groups == "informative" else own, rng)
        with stages("receive"):
            self.external.receive()
        with stages("mix"):
            mixed = self.external.mix(this, local, own, rng)
        with stages("update"):
            update = self._update(mixed, len(local))
        self._rollouts.updated()
        if not self._settings.rollouts.max_staleness:  # else updates hide generation's time
            this = replace(this, seconds=_by_purpose(stages.seconds))
            if self._worth is not None:
                self._worth.timed(stages.seconds, len(mixed.local) + len(mixed.external), len(local))
        self._settle(own, this, failed, mixed, update.skipped)
        self.position += num_questions
        self.round += 1
        return RoundReport(
            round=self.round,
            reward=this.reward,
            num_tokens=sum(len(c.token_ids) for group in own for c in group.group.completions),
            mix=mixed,
            update=update,
            timings=stages.seconds,
            figures=values(rollout_figures(own))
            | mix_figures(mixed)
            | (self._worth.figures() if self._worth else {})
            | ({} if batch.slots_busy is None else {SLOTS_BUSY: batch.slots_busy}),
            tasks=this.tasks,
            worth=self._worth.worth if self._worth else None,
            num_unasked=batch.num_unasked,
            problem=batch.problem,
            alarm=self.external.look_back(this.reward, mixed) if this.reward is not None else None,
        )

    def pause(self) -> None:
        """Generate nothing ahead until the next `run_round`."""
        self._rollouts.pause()

    def close(self) -> None:
        """Generate no more."""
        self._rollouts.close()

    def unaccounted(self) -> int:
        """Received groups that are neither used, dropped, in the pool nor on their way there: 0 unless something is
        lost."""
        return self.ledger.unaccounted(self.external.pool.num_unused(), self.external.num_pending)

    def _trainable(self, batch: GradedBatch) -> tuple[list[GradedGroup], Counter[Reason]]:
        """Own groups to train on, and the number of questions without one, by reason."""
        if self._settings.rollouts.max_staleness == 0:  # nothing is generated ahead
            return batch.groups, batch.failed
        oldest = self._updater.version - self._settings.rollouts.max_staleness
        groups = [graded for graded in batch.groups if graded.group.policy.version >= oldest]
        return groups, batch.failed + Counter({Reason.STALE: len(batch.groups) - len(groups)})

    def _this_round(self, own: Sequence[GradedGroup], num_informative: int, num_questions: int) -> MixRound:
        rewards = [reward for group in own for reward in group.rewards]
        return MixRound(
            round=self.round + 1,
            reward=float(np.mean(rewards)) if rewards else None,
            num_informative=num_informative,
            num_uninformative=len(own) - num_informative,
            tasks=rewards_by_task(own),
            num_questions=num_questions,
        )

    def _share(self, groups: Sequence[GradedGroup], rng: np.random.Generator) -> None:
        share = self._settings.share
        if share.groups == "none":
            return
        groups = [graded for graded in groups if graded.group.question.task not in self._settings.unshared]
        if share.max_groups is not None and len(groups) > share.max_groups:
            groups = [groups[i] for i in rng.choice(len(groups), size=share.max_groups, replace=False)]
        for shared in self._own.share_all([graded.group for graded in groups]):
            if shared is not None:
                self.external.committed(shared)
                self.ledger.shared(1)

    def _update(self, mixed: Mix, num_informative: int) -> UpdateReport:
        """Update the policy; in some rounds also measure what the external groups are worth."""
        local = [most_varied(group, self._settings.external.mix.completions_per_group) for group in mixed.local]
        if self._worth is None or not self._worth.begin(self.round):
            return self._updater.update(local, mixed.external)
        update = self._updater.update(local, mixed.external)
        self._worth.end(len(mixed.local), [group.group.peer_id for group in mixed.external], num_informative)
        return update

    def _settle(
        self, own: Sequence[GradedGroup], this: MixRound, failed: Counter[Reason], mixed: Mix, skipped: bool
    ) -> None:
        """Record the whole round at its end: a round that fails leaves no partial entry."""
        self.ledger.generated(len(own) + failed.total())
        for reason, count in failed.items():
            self.ledger.local(reason, count)
        self.ledger.local(Reason.ZERO_ADVANTAGE, this.num_uninformative)
        self.ledger.local(Reason.NOT_SAMPLED, this.num_informative - len(mixed.local))
        self.external.settle(this, mixed, skipped)
        if skipped:
            self.ledger.local(Reason.UPDATE_SKIPPED, len(mixed.local))
        else:
            self.ledger.used_local(len(mixed.local))
        drawn = {id(graded) for graded in mixed.local}
        for graded in own:
            if not has_signal(graded.rewards):
                self._keep(Reason.ZERO_ADVANTAGE, graded)
            elif id(graded) not in drawn:
                self._keep(Reason.NOT_SAMPLED, graded)
            else:
                self._keep(Reason.UPDATE_SKIPPED if skipped else "used_local", graded)


def _by_purpose(seconds: Mapping[str, float]) -> dict[str, float]:
    """`MixRound.seconds` from those by stage."""
    purposes = {
        "asking": ("draw", "generate", "grade"),
        "receiving": ("share", "receive"),
        "mix": ("mix",),
        "update": ("update",),
    }
    return {name: sum(seconds.get(stage, 0.0) for stage in stages) for name, stages in purposes.items()}
