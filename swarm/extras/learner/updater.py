"""Policy-gradient updates on workers' groups as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path

from swarm.errors import PolicyError
from swarm.extras.learner.packing import Precision, pack_weights
from swarm.policy.batching import minibatches
from swarm.policy.loading import Policy
from swarm.reasons import Reason
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.gradient import summarise
from swarm.training.rows import Row
from swarm.training.updater import PolicyUpdater
from swarm.types import GradedGroup, Sampling, UpdateReport


def of_learner(settings: UpdateSettings) -> UpdateSettings:
    """Settings with one optimizer step per epoch where none are configured."""
    return settings if settings.minibatches else settings.model_copy(update={"minibatches": 1})


class StreamedUpdater(PolicyUpdater):
    """Updates on groups that workers sampled with this policy's snapshots.

    The gradient of the first minibatch grows while groups arrive. No step is taken before all groups are there: an
    abandoned update leaves the policy as it was.
    """

    def __init__(
        self,
        policy: Policy,
        settings: UpdateSettings,
        mix: MixSettings,
        sampling: Sampling,
        reference: Policy | None = None,
        precision: Precision = "native",
    ) -> None:
        """See `PolicyUpdater`; `sampling` is that of every worker, `precision` that of `snapshot`.

        Raises `PolicyError`.
        """
        super().__init__(policy, of_learner(settings), mix, sampling.temperature, reference)
        if settings.loss.per_token and settings.behaviour_kl > 0:
            raise PolicyError(
                f"a learner cannot use update.behaviour_kl with objective {settings.objective}, whose loss is divided "
                f"by a number of tokens that is known only at the end: set it to 0"
            )
        self._sampling = sampling
        self._precision = precision
        self._groups: list[list[Row]] = []
        """Groups of the open update, in order of arrival."""

    def refusal(self, group: GradedGroup) -> Reason | None:
        """Why this policy cannot have sampled the group as claimed. See `StreamingUpdater`."""
        if group.group.policy.tokenizer_hash != self._policy.tokenizer_hash:
            return Reason.OTHER_POLICY
        if group.group.sampling.distribution != self._sampling.distribution:
            return Reason.OTHER_SAMPLING
        if any(not (c.token_ids and c.logprobs) for c in group.group.completions):
            return Reason.NO_TOKENS
        if any(
            self._policy.hides(turn.token_ids, turn.forced) for c in group.group.completions for turn in c.by_turn()
        ):
            return Reason.HIDDEN_TOKENS
        if not all(self._reader.same_tokens(completion) for completion in group.group.completions):
            return Reason.WRONG_TOKENS
        return None if self.fits(group) else Reason.TOO_LONG

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        """Add more groups, to the gradient those of the first minibatch."""
        fresh = [rows for group in groups if (rows := self._reader.local(group, self.version, claimed=True))]
        if not fresh:
            return
        with self._runner.training():
            before = len(self._groups)
            self._groups += self._resolved(fresh)
            first = range(0, len(self._groups), self._settings.num_minibatches)
            added = [row for index in first if index >= before for row in self._groups[index]]
            if added:
                self._gradient.add(added)

    def apply(self) -> UpdateReport:
        """Take the steps of all groups, as `update` with the same groups would. Raises `NonFiniteUpdates`."""
        if not self._groups:
            return UpdateReport(skipped=True)
        parts = minibatches(self._groups, self._settings.num_minibatches)
        with self._runner.training():
            steps = [self._take_step()]
            steps += [self._step(rows) for rows in chain(parts[1:], *repeat(parts, self._settings.epochs - 1))]
        self._groups = []
        report = summarise(steps)
        self.version += not report.skipped
        return report

    def abandon(self) -> None:
        """Discard the open update."""
        self._groups = []
        self._gradient.clear()

    def snapshot(self, path: Path) -> None:
        """Write the current policy to a file. Every rank must call it; the leader writes. Raises `OSError`."""
        pack_weights(self._policy, path, self._precision)
