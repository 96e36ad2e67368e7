"""Supervised steps: cross-entropy on the completions of demonstrations, in the tokens that generation would produce."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from swarm.algorithms.losses import Loss, LossBatch, LossOutput, token_shares
from swarm.policy.loading import Policy
from swarm.training.config import UpdateSettings
from swarm.training.rows import Row
from swarm.types import Completion, Prompt


class Demonstration(Struct, frozen=True):
    """A question with an answer to imitate."""

    prompt: Prompt
    completion: str


class Imitation(Struct, frozen=True):
    """One supervised step."""

    loss: float
    """Cross-entropy in nats a token before the step, at the sampling temperature."""
    num_tokens: int
    """Tokens of the completions; 0: there was no step."""
    num_too_long: int
    """Demonstrations for which the model has too few positions."""


class CrossEntropy(Loss):
    """Mean negative log-probability of the step's tokens."""

    per_token = True

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        return LossOutput(-batch.new, token_shares(batch))


def supervised(settings: UpdateSettings) -> UpdateSettings:
    """The settings of updates, with cross-entropy as the only objective."""
    changes = {"objective": "cross-entropy", "loss": CrossEntropy(), "importance": "none"}
    return settings.model_copy(update={**changes, "behaviour_kl": 0.0, "reference_kl": 0.0})


def rows_of(policy: Policy, demonstrations: Sequence[Demonstration]) -> list[Row]:
    """The demonstrations as the policy would be asked and would answer, without those that have no room or no text."""
    completions = [Completion(each.completion, "stop") for each in demonstrations]
    encoded = zip(demonstrations, policy.encode_completions(completions), strict=True)
    rows = [Row(policy.encode_prompt(each.prompt), ids, 1.0, None) for each, ids in encoded]
    return [row for row in rows if row.completion and row.length <= policy.max_positions]
