"""Policy-gradient updates on whole groups, all at once or as they arrive.

groups ── rows.py ──▶ rows with old log-probabilities ──▶ minibatches ──▶ an optimizer step each
                                                              │ forward.py
                                                              ▼
          gradient.py: the sum ◀── objective.py ◀── scores ◀── micro-batches
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, compress
from types import MappingProxyType

import torch
from torch import Tensor

from swarm.algorithms.advantages import BY_REWARD, find_advantage
from swarm.errors import NonFiniteUpdates, OutOfMemory, PolicyError
from swarm.machine import keep_free_memory
from swarm.policy.batching import by_turn, minibatches
from swarm.policy.loading import SMALLER, Policy
from swarm.policy.out_of_memory import needing_memory
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.forward import ForwardRunner
from swarm.training.gradient import GradientAccumulator, Objective, Step, summarise
from swarm.training.imitation import Demonstration, Imitation, rows_of, supervised
from swarm.training.optimizers import learning_rate, make_optimizer, set_rate
from swarm.training.rows import RewardWeights, Row, RowReader, Tokens, needs_receiver, resolve_old_logprobs
from swarm.training.sketches import Sketcher
from swarm.types import GradedGroup, ReadTurn, UpdateReport

LARGE = 10_000_000
"""Trained weights from which on a CPU's freed memory is kept: those of smaller policies are small blocks."""
MOST_KNOWN_TOKENS = 2**21
"""Whose log-probabilities are kept for an update, some 100 MB: a node that seldom updates reads for others all the
while."""


class PolicyUpdater:
    """AdamW on one policy; an update does not depend on its split into micro-batches."""

    def __init__(
        self,
        policy: Policy,
        settings: UpdateSettings,
        mix: MixSettings,
        temperature: float,
        reference: Policy | None = None,
        reward_weights: RewardWeights = MappingProxyType({}),
    ) -> None:
        """Train `policy` with log-probabilities at the sampling `temperature`.

        `reference` is a copy of the initial policy for `update.reference_kl`; with adapters it is not needed.
        `reward_weights` are for advantages of each named reward.

        Raises `PolicyError`.
        """
        self.nonfinite_in_a_row = 0
        self.num_passed_over = 0
        """Versions that correspond to no update."""
        self.ranks = policy.ranks
        self._policy = policy
        self._settings = settings
        self._reader = RowReader(
            policy,
            mix,
            find_advantage(settings.advantage),
            settings.credit,
            settings.loss.needs_group_expectation,
            reward_weights if settings.advantage in BY_REWARD else {},
        )
        self._reference = Reference(policy, reference) if settings.reference_kl > 0 else None
        self.sketcher = Sketcher(policy, settings)
        self._known: dict[Tokens, list[float]] = {}
        """Log-probabilities of rows that were read since the weights changed last, or since they were too many."""
        self._known_at = policy.gate.changes
        self._runner = ForwardRunner(policy, settings, temperature, self.sketcher)
        if policy.dtype is torch.float16 and policy.ranks.size > 1:
            raise PolicyError("policy.dtype must not be float16 with several processes: use bfloat16")
        if policy.device.type == "cpu" and sum(weight.numel() for weight in policy.trained) >= LARGE:
            keep_free_memory()
        self.optimizer = make_optimizer(policy, settings)
        self._objective = Objective(settings)
        self._gradient = GradientAccumulator(
            policy, self._runner, self._objective, self.optimizer, settings.max_grad_norm
        )
        self._imitated = GradientAccumulator(
            policy, self._runner, Objective(supervised(settings)), self.optimizer, settings.max_grad_norm
        )

    @property
    def version(self) -> int:
        """The policy's version: each update increases it by one."""
        return self._policy.version

    @version.setter
    def version(self, version: int) -> None:
        self._policy.version = version

    @property
    def num_updates(self) -> int:
        """Updates applied to the policy; the learning rate depends on it."""
        return self.version - self.num_passed_over

    def rise_to(self, version: int) -> None:
        """Give the policy a higher version without an update."""
        self.num_passed_over += version - self.version
        self.version = version

    @property
    def max_chars(self) -> int:
        """The most characters of a completion that the model can have positions for."""
        return self._policy.max_positions * self._policy.longest_token_chars

    def fits(self, group: GradedGroup) -> bool:
        """Whether the model has positions for the prompt with each completion."""
        return self._reader.fits(group)

    def read(
        self, groups: Sequence[GradedGroup], wanted: Sequence[Sequence[bool]] | None = None
    ) -> list[list[list[ReadTurn]]]:
        """Other policies' completions by group, completion and turn, in the tokens that an update would train on, with
        this policy's log-probabilities of those that are `wanted`, [P][G]. An empty completion has no turns."""
        rows = [self._reader.unweighted(group) for group in groups]
        flags = wanted if wanted is not None else [[True] * len(each) for each in rows]
        asked = [row for row in compress(chain.from_iterable(rows), chain.from_iterable(flags)) if row.completion]
        with self._runner.training():
            found = dict(zip(map(id, asked), self._logprobs(asked), strict=True))
        return [[_turns(row, found.get(id(row), ())) if row.completion else [] for row in each] for each in rows]

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """The advantages of a group's rewards, [G]."""
        return self._reader.advantages(rewards)

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """One update on I local and J external groups. Raises `NonFiniteUpdates` after too many consecutive bad
        steps."""
        groups = [self._reader.local(group, self.version) for group in local]
        groups += [self._reader.external(group) for group in external]
        groups = [rows for rows in groups if rows]
        if not groups:
            return UpdateReport(skipped=True)
        with self._runner.training():
            groups = self._resolved(groups)
            self.sketcher.expect(groups)
            steps = [
                self._step(rows)
                for _ in range(self._settings.epochs)
                for rows in minibatches(groups, self._settings.num_minibatches)
            ]
        report = summarise(steps)
        self.version += not report.skipped
        return report

    def renew_reference(self) -> None:
        """From now on the reference is the policy as it is now."""
        if self._reference is not None:
            self._reference.renew()

    def imitate(self, demonstrations: Sequence[Demonstration], rate: float, last: bool) -> Imitation:
        """One supervised step at this learning rate, which is no update: the version stays. After the `last` one the
        optimizer's state is cleared. Raises `NonFiniteUpdates` as `update` does."""
        rows = rows_of(self._policy, demonstrations)
        loss = 0.0
        if rows:
            with self._runner.training():
                self._imitated.add(rows)
                loss = self._take_step(self._imitated, rate).totals.loss
        if last:
            self.optimizer.state.clear()
        return Imitation(loss, sum(len(row.completion) for row in rows), len(demonstrations) - len(rows))

    def _resolved(self, groups: Sequence[list[Row]]) -> list[list[Row]]:
        """The groups with old, receiver and reference log-probabilities from before the first step."""
        rows = [row for group in groups for row in group]
        decoupled = self._settings.importance != "none"
        several_steps = self._settings.epochs * self._settings.num_minibatches > 1
        whole_groups = self._settings.loss.needs_group_expectation
        wanted = [
            needs_receiver(row, decoupled, several_steps, whole_groups)
            and (whole_groups or self._objective.has_gradient(row))
            for row in rows
        ]
        known = iter(self._logprobs(list(compress(rows, wanted))))
        receiver = [next(known) if needed else None for needed in wanted]
        if self._reference is not None:
            with self._reference.policy() as policy:
                logprobs = self._runner.reference_logprobs(policy, rows)
            rows = [replace(row, reference=values) for row, values in zip(rows, logprobs, strict=True)]
        resolved, start = [], 0
        for group in groups:
            part = slice(start, start := start + len(group))
            resolved.append(resolve_old_logprobs(rows[part], receiver[part], decoupled, whole_groups))
        return resolved

    def _logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """The policy's log-probabilities of each row's tokens; an update has them from the screen before it."""
        if not all(map(self._runner.reads_tokens_alone, rows)):
            return self._runner.logprobs(rows)
        num_known = sum(map(len, self._known.values()))
        if self._known_at != self._policy.gate.changes or num_known > MOST_KNOWN_TOKENS:
            self._known, self._known_at = {}, self._policy.gate.changes
        keys = [row.key for row in rows]
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._known}
        self._known.update(zip(new, self._runner.logprobs(list(new.values())), strict=True))
        return [self._known[key] for key in keys]

    def _step(self, rows: Sequence[Row]) -> Step:
        """One optimizer step."""
        with self.sketcher.reading(rows):
            self._gradient.add(rows)
        return self._take_step()

    def _take_step(self, gradient: GradientAccumulator | None = None, rate: float | None = None) -> Step:
        """Take the optimizer step of the accumulated gradient; `ForwardRunner.training` must be active.

        By default the gradient and the learning rate are those of updates.
        """
        gradient = gradient or self._gradient
        rate = learning_rate(self._settings, self.num_updates) if rate is None else rate
        set_rate(self.optimizer, rate)
        step = Step(*gradient.close(), rate)
        if not step.skipped:
            with self._policy.gate.change():
                self._step_optimizer()
        gradient.clear()
        self._count(step.skipped)
        return step

    def _step_optimizer(self) -> None:
        """The first step also allocates the optimizer's states. Raises `OutOfMemory`."""
        fresh = not self.optimizer.state
        try:
            with needing_memory(f"the optimizer's states do not fit in memory beside weights and gradients; {SMALLER}"):
                self.optimizer.step()
        except OutOfMemory:
            if fresh:
                self.optimizer.state.clear()  # incomplete ones could not be resumed from
            raise

    def _count(self, skipped: bool) -> None:
        self.nonfinite_in_a_row = self.nonfinite_in_a_row + 1 if skipped else 0
        if self.nonfinite_in_a_row >= self._settings.max_nonfinite_steps:
            raise NonFiniteUpdates(
                f"{self.nonfinite_in_a_row} consecutive steps had a non-finite loss or gradient; lower "
                f"update.learning_rate (now {self._settings.learning_rate:g}) and resume from the last checkpoint"
            )


@torch.no_grad()
def _write(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


def _turns(row: Row, logprobs: Sequence[float]) -> list[ReadTurn]:
    return [ReadTurn(row.completion[turn], logprobs[turn]) for turn in by_turn(row)]


class Reference:
    """A frozen copy; or the trained policy with its adapters disabled or with a copy of them, which is small."""

    def __init__(self, trained: Policy, frozen: Policy | None) -> None:
        """`frozen` is the initial policy. Raises `PolicyError` when it is missing and there are no adapters."""
        if frozen is None and trained.adapters is None:
            raise PolicyError("update.reference_kl needs the initial model, got only the trained one")
        self._trained = trained
        self._frozen = frozen
        self._adapters: list[Tensor] = []
        """Copies, as `Policy.trained`; empty: disabled."""
        if frozen is not None:
            frozen.model.requires_grad_(False)
            if trained.media is not None and frozen.media is not None:
                frozen.media = trained.media.read_by(frozen.media.encoder)

    @torch.no_grad()
    def renew(self) -> None:
        """Become the trained policy as it is now."""
        if self._frozen is None:
            self._adapters = [weight.clone() for weight in self._trained.trained]
            return
        for ours, theirs in zip(self._frozen.model.parameters(), self._trained.model.parameters(), strict=True):
            ours.copy_(theirs)
        if self._frozen.media is not None:
            self._frozen.media.encoder.clear()

    @contextlib.contextmanager
    def policy(self) -> Iterator[Policy]:
        """The reference; the trained policy must not be used within the block."""
        if self._frozen is not None:
            yield self._frozen
        elif self._trained.adapters is not None:
            others = self._other_adapters() if self._adapters else self._trained.adapters.disabled()
            with others, self._other_features():
                yield self._trained

    @contextlib.contextmanager
    def _other_adapters(self) -> Iterator[None]:
        trained = self._trained.trained
        kept = [weight.detach().clone() for weight in trained]
        _write(trained, self._adapters)
        try:
            yield
        finally:
            _write(trained, kept)

    @contextlib.contextmanager
    def _other_features(self) -> Iterator[None]:
        """Within the block and after it, features of media are computed again, if adapters decide them."""
        media = self._trained.media
        if media is None or not media.encoder.is_trained:
            yield
            return
        media.encoder.clear()
        yield
        media.encoder.clear()
