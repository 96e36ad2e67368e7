"""SAPO: the round every node runs. Source: arXiv:2509.08721, algorithm 1.

    draw ──▶ generate ──▶ grade ──▶ share ─────────────▶ swarm
                            │                              │
                            ▼                              ▼
                     local groups with            receive ──▶ regrade ──▶ pool
                          signal                                           │
                            └──────────▶ mix I + J ◀───────────────────────┘
                                             │
                                             ▼
                                           update

There is no global round and no barrier: a node takes what has arrived and trains even if nothing has. What waits where:
  exchange inbox   raw records, filled by the network thread, emptied by `receive`, bounded by the network settings
  verifier queue   received groups being regraded, emptied by `collect`, bounded by the verification settings
  pool             regraded groups with signal, sampled by `mix`, bounded by the pool settings
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from swarm.expectation import log_group_expectation
from swarm.mixing import Mix, MixSettings, has_signal, mix
from swarm.pool import Pool
from swarm.protocols import GroupExchange, RolloutEngine, Updater, Verifier
from swarm.settings import Settings
from swarm.telemetry.ledger import Ledger
from swarm.types import (
    Completion,
    Grade,
    GradedGroup,
    PolicyId,
    Rejection,
    RolloutGroup,
    Sampling,
    TaskRef,
    UpdateReport,
)


class ShareSettings(Settings):
    """Which of its own groups a node gives to the swarm."""

    groups: Literal["informative", "all", "none"] = "informative"
    """`informative`: those with signal under this node's verifier; `all`; or `none`: take without giving."""
    max_groups: int | None = Field(None, ge=1)
    """At most so many a round, chosen uniformly; default: no limit."""
    token_ids: bool = False
    """Send token ids and log-probabilities too, for receivers that use `external_old_logprobs: behaviour`."""


class RoundReport(Struct, frozen=True):
    """What one round did."""

    round: int
    """1-based."""
    reward: float
    """Mean reward of this round's own completions; 0 when there were none."""
    num_tokens: int
    mix: Mix
    update: UpdateReport
    timings: dict[str, float]
    """Seconds a stage."""


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A node that has done nothing yet. `policy_id.version` is taken from the updater each round."""
        self.round = 0
        """Rounds finished."""
        self.position = 0
        """Questions drawn from this node's stream so far."""
        self.pool = pool
        self.ledger = ledger
        self._peer_id = peer_id
        self._policy_id = policy_id
        self._seed = seed
        self._questions_per_round = questions_per_round
        self._group_size = group_size
        self._max_pending_per_peer = max_pending_per_peer
        self._sampling = sampling
        self._share_settings = share
        self._mix_settings = mix
        self._engine = engine
        self._verifier = verifier
        self._updater = updater
        self._exchange = exchange
        self._clock = clock
        self._sequence = int(clock() * 1000)  # milliseconds: increases across restarts without being stored
        self._pending: dict[str, RolloutGroup] = {}

    def run_round(self) -> RoundReport:
        """Generate, share, receive, mix, update: the whole of SAPO."""
        stages = _Stopwatch()
        rng = np.random.default_rng([self._seed, self.round])
        local, failed = self._generate(stages)
        informative = [group for group in local if has_signal(group.rewards)]
        with stages("share"):
            self._share(informative if self._share_settings.groups == "informative" else local, rng)
        with stages("receive"):
            self.receive()
        with stages("mix"):
            mixed = mix(informative, self.pool.candidates(), self._mix_settings, rng)
        with stages("update"):
            update = self._updater.update(mixed.local, mixed.external)
        self._settle(len(local) - len(informative), len(informative), failed, mixed, update.skipped)
        self.position += self._questions_per_round
        self.round += 1
        rewards = [reward for group in local for reward in group.rewards]
        return RoundReport(
            round=self.round,
            reward=float(np.mean(rewards)) if rewards else 0.0,
            num_tokens=sum(len(c.token_ids) for group in local for c in group.group.completions),
            mix=mixed,
            update=update,
            timings=stages.seconds,
        )

    @property
    def num_pending(self) -> int:
        """Received groups that are being regraded."""
        return len(self._pending)

    def receive(self) -> None:
        """Take what has arrived: envelope checks are done, regrading is started, what is regraded enters the pool."""
        arrived, refused = self._exchange.receive()
        self.ledger.received(len(arrived) + sum(refused.values()))
        for reason, count in refused.items():
            self.ledger.dropped(reason, count)
        for content_id, group in arrived:
            # The exchange forgets what it saw long ago or before a restart; what is held here is still known.
            if content_id in self._pending or content_id in self.pool:
                self.ledger.dropped("duplicate")
                continue
            if sum(other.peer_id == group.peer_id for other in self._pending.values()) >= self._max_pending_per_peer:
                self.ledger.dropped("peer_quota")
                continue
            self._pending[content_id] = group
            self._verifier.submit(content_id, group.question, [c.text for c in group.completions])
        for content_id, verdict in self._verifier.collect():
            self._admit(content_id, verdict)
        for reason, count in self.pool.expire(self._clock()).items():
            self.ledger.dropped(reason, count)

    def _admit(self, content_id: str, verdict: Grade | Rejection) -> None:
        """Put a regraded group into the pool, or count why not."""
        group = self._pending.pop(content_id)
        refusal = self._refusal(group, verdict)
        self._exchange.report(group.peer_id, refusal or "informative", verdict.seconds)
        if refusal is not None:
            self.ledger.dropped(refusal)
        elif isinstance(verdict, Grade):
            graded = GradedGroup(group, verdict.prompt, verdict.rewards)
            for reason, count in self.pool.add(content_id, graded, self._clock()).items():
                self.ledger.dropped(reason, count)

    def _refusal(self, group: RolloutGroup, verdict: Grade | Rejection) -> str | None:
        """Why a regraded group cannot teach this node; None when it can."""
        if isinstance(verdict, Rejection):
            return verdict.reason
        if not has_signal(verdict.rewards):
            return "zero_advantage"
        fits = self._updater.fits(GradedGroup(group, verdict.prompt, verdict.rewards))
        return None if fits else "too_long"

    def _generate(self, stages: _Stopwatch) -> tuple[list[GradedGroup], Counter[str]]:
        """P questions of this node's stream, answered G times each and graded by its own verifier.

        Also returns how many did not become a group, by reason.
        """
        with stages("draw"):
            questions = self._verifier.draw(self._seed, self.position, self._questions_per_round)
        with stages("generate"):
            prompts = [question.prompt for question in questions]
            sampling_seed = int(np.random.SeedSequence([self._seed, self.position]).generate_state(1)[0])
            answers = self._engine.generate(prompts, self._group_size, self._sampling, sampling_seed)
        with stages("grade"):
            verdicts = self._verifier.grade(
                [
                    (q.ref, [] if isinstance(a, Rejection) else [c.text for c in a])
                    for q, a in zip(questions, answers, strict=True)
                ]
            )
        groups = []
        failed: Counter[str] = Counter()
        for question, completions, verdict in zip(questions, answers, verdicts, strict=True):
            if isinstance(completions, Rejection):
                failed[completions.reason] += 1
            elif isinstance(verdict, Rejection):
                failed[verdict.reason] += 1
            else:
                groups.append(
                    GradedGroup(self._group(question.ref, completions, verdict), verdict.prompt, verdict.rewards)
                )
        return groups, failed

    def _group(self, ref: TaskRef, completions: tuple[Completion, ...], grade: Grade) -> RolloutGroup:
        self._sequence += 1
        return RolloutGroup(
            run_id="",
            peer_id=self._peer_id,
            sequence=self._sequence,
            created_at=self._clock(),
            policy=replace(self._policy_id, version=self._updater.version),
            sampling=self._sampling,
            question=ref,
            completions=completions,
            rewards=grade.rewards,
            log_expectation=log_group_expectation(completions),
        )

    def _share(self, groups: Sequence[GradedGroup], rng: np.random.Generator) -> None:
        if self._share_settings.groups == "none":
            return
        limit = self._share_settings.max_groups
        if limit is not None and len(groups) > limit:
            groups = [groups[i] for i in rng.choice(len(groups), size=limit, replace=False)]
        for graded in groups:
            group = graded.group if self._share_settings.token_ids else _text_only(graded.group)
            if self._exchange.share(group) is not None:
                self.ledger.shared(1)

    def _settle(
        self, num_zero_advantage: int, num_informative: int, failed: Counter[str], mixed: Mix, skipped: bool
    ) -> None:
        """Book the round at once and at its end: a round that fails in the middle leaves no half entry."""
        self.ledger.generated(num_zero_advantage + num_informative + failed.total())
        for reason, count in failed.items():
            self.ledger.local(reason, count)
        self.ledger.local("zero_advantage", num_zero_advantage)
        self.ledger.local("not_sampled", num_informative - len(mixed.local))
        for graded in mixed.external:
            self._exchange.report(graded.group.peer_id, "used")
        first = self.pool.use(mixed.external_ids)
        if skipped:
            self.ledger.local("update_skipped", len(mixed.local))
            self.ledger.dropped("update_skipped", first)
        else:
            self.ledger.used_local(len(mixed.local))
            self.ledger.used_external(first, again=len(mixed.external_ids) - first)


def _text_only(group: RolloutGroup) -> RolloutGroup:
    """The SAPO medium: what any model with any tokenizer can read."""
    texts = tuple(replace(c, token_ids=(), logprobs=(), versions=()) for c in group.completions)
    return replace(group, completions=texts)


class _Stopwatch:
    """Seconds spent in each stage of one round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - started
