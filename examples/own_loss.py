"""A loss and an advantage of one's own, used without a change to this project:

swarm join --update.objective examples/own_loss.py:Topr --update.loss.weight_cap 0.5 \
    --update.advantage examples/own_loss.py:against_the_best
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from swarm.algorithms.losses import Loss, LossBatch, LossOutput, log_ratio, per_token, token_mean, token_shares


class Topr(Loss):
    """-w A new, averaged over all tokens: w = 1 where A > 0, else min(exp(new - old), weight_cap), without gradient.

    Source: arXiv:2503.14286, eq. 7, its ratio of whole completions taken token by token.
    """

    per_token: ClassVar[bool] = True
    weight_cap: float = Field(1.0, gt=0)
    """Largest weight of a token that is pushed down."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        advantages = per_token(batch.advantages)
        ratio = log_ratio(batch.new, batch.old).exp().detach()
        weight = ratio.clamp(max=self.weight_cap).where(advantages < 0, 1.0)
        figures = {"topr/capped_ratio": token_mean((ratio > self.weight_cap) & (advantages < 0), batch.mask)}
        return LossOutput(-weight * advantages * batch.new, token_shares(batch), figures)


def against_the_best(rewards: Tensor) -> Tensor:
    """[P, G] advantages: how much worse than the best of its group each completion is."""
    return rewards - rewards.max(dim=-1, keepdim=True).values
