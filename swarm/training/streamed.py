"""An update whose groups arrive one after another: each adds to the gradient, the step waits for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.errors import PolicyError
from swarm.policy.loading import Policy
from swarm.policy.snapshot import Precision, pack
from swarm.policy.weights import whole_weights
from swarm.reasons import Reason
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.steps import summarise
from swarm.training.updater import PolicyUpdater
from swarm.types import GradedGroup, Sampling, UpdateReport


class StreamedUpdater(PolicyUpdater):
    """Updates of one optimizer step on groups that workers sampled with this policy's snapshots."""

    def __init__(
        self,
        policy: Policy,
        settings: UpdateSettings,
        mix: MixSettings,
        sampling: Sampling,
        reference: Policy | None = None,
        precision: Precision = "native",
    ) -> None:
        """As `PolicyUpdater`; `sampling` is that of every worker, `precision` that of `snapshot`.

        Raises `PolicyError`.
        """
        super().__init__(policy, settings, mix, sampling.temperature, reference)
        if settings.epochs * settings.minibatches > 1:
            raise PolicyError(
                "a learner takes one optimizer step per update: set update.epochs and update.minibatches to 1, got "
                f"{settings.epochs} and {settings.minibatches}"
            )
        if settings.loss.per_token and settings.behaviour_kl > 0:
            raise PolicyError(
                f"a learner cannot use update.behaviour_kl with objective {settings.objective}, whose loss is divided "
                f"by a number of tokens that is known only at the end: set it to 0"
            )
        self._sampling = sampling
        self._precision = precision

    def refusal(self, group: GradedGroup) -> Reason | None:
        """Why this policy cannot have sampled the group as claimed. See `StreamingUpdater`."""
        if group.group.policy.tokenizer_hash != self._policy.tokenizer_hash:
            return Reason.OTHER_POLICY
        if group.group.sampling.distribution != self._sampling.distribution:
            return Reason.OTHER_SAMPLING
        if any(not (c.token_ids and c.logprobs) for c in group.group.completions):
            return Reason.NO_TOKENS
        if any(self._policy.hides(turn.token_ids) for c in group.group.completions for turn in c.by_turn()):
            return Reason.HIDDEN_TOKENS
        if not all(self._reader.same_tokens(completion) for completion in group.group.completions):
            return Reason.WRONG_TOKENS
        return None if self.fits(group) else Reason.TOO_LONG

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        """Add the gradient of more groups."""
        fresh = [rows for group in groups if (rows := self._reader.local(group, self.version, claimed=True))]
        if not fresh:
            return
        with self._passes.training():
            self._gradient.add([row for rows in self._settled(fresh) for row in rows])

    def apply(self) -> UpdateReport:
        """Take the step with the accumulated gradient. Raises `NonFiniteUpdates`."""
        if not self._gradient.rows:
            return UpdateReport(skipped=True)
        with self._passes.training():
            report = summarise([self._take_step()])
        self.version += not report.skipped
        return report

    def abandon(self) -> None:
        """Discard the open update."""
        self._gradient.clear()

    def snapshot(self) -> bytes:
        """The current policy, packed; empty on ranks other than the leader."""
        weights = whole_weights(self._policy)
        return pack(weights, self._precision) if self.ranks.rank == 0 else b""
