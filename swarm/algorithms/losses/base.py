"""What every loss is, takes and gives. Light: a configuration is checked against a loss without importing torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from swarm.algorithms.reductions import token_mean
from swarm.figures import Figure
from swarm.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
CLIPPED = "clip_ratio/region_mean"
"""Part of the tokens on which a clip or cap of the objective decided."""


@dataclass(frozen=True)
class LossBatch:
    """B completions of at most T tokens: all that a loss may know, wherever it is written."""

    new: Tensor
    """[B, T] log-probabilities under the policy that is trained, with gradient."""
    old: Tensor
    """[B, T] those that the ratio is against."""
    advantages: Tensor
    """[B] of each completion, or [B, T] where its tokens weigh differently."""
    mask: Tensor
    """[B, T] 1 on tokens that the loss may touch."""
    group_expectation: Tensor | None = None
    """[B] log of the sampler's expectation over the completion's whole group, for a loss that needs it."""


@dataclass(frozen=True)
class LossOutput:
    """A mean over tokens, which micro-batches add up to exactly; not yet taken, for penalties to share its weights."""

    losses: Tensor
    """[B, T] or what broadcasts to it."""
    shares: Tensor
    """[B, T] part of each token in the mean, 0 outside the mask: a penalty a token is averaged with the same."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """What this loss has to report, by name; it reaches every sink."""

    @property
    def loss(self) -> Tensor:
        """Scalar."""
        return (self.losses * self.shares).sum()


class Loss(Settings):
    """An objective with its settings: the fields of a subclass are what `update.loss` may hold.

    Linear in non-negative multiples of the advantages: a weight of the loss is a weight of the advantages.
    """

    per_token: ClassVar[bool] = False
    """The mean is over the tokens of the step; otherwise over its completions."""
    needs_group_expectation: ClassVar[bool] = False
    """`LossBatch.group_expectation` has to be there. Such weights are against the sampler already: they are not
    combined with `update.importance`."""

    @abstractmethod
    def __call__(self, batch: LossBatch) -> LossOutput:
        """The loss of a batch."""
        ...


class ClippedLoss(Loss):
    """A loss with a clip."""

    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""

    def clipped_surrogate(self, ratio: Tensor, batch: LossBatch) -> tuple[Tensor, dict[str, Figure]]:
        """-min(rho A, clip(rho) A), the ratio broadcast over tokens, and the figures of where the clip decided."""
        advantages = per_token(batch.advantages)
        free = ratio * advantages
        held = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages
        clipped = (held < free).detach()
        figures = {
            CLIPPED: token_mean(clipped, batch.mask),
            "clip_ratio/low_mean": token_mean(clipped & (advantages < 0), batch.mask),
            "clip_ratio/high_mean": token_mean(clipped & (advantages > 0), batch.mask),
        }
        return -free.minimum(held), figures


def log_ratio(new: Tensor, old: Tensor) -> Tensor:
    """new - old, element by element, limited so that its exponential stays finite."""
    return (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def per_token(advantages: Tensor) -> Tensor:
    """Advantages [B] or [B, T] in a shape that broadcasts over tokens."""
    return advantages[:, None] if advantages.dim() == 1 else advantages


def token_shares(batch: LossBatch, denominator: float | None = None) -> Tensor:
    """[B, T] one `denominator`-th for each unmasked token; by default their number, at least 1."""
    if denominator is None:
        denominator = max(1.0, float(batch.mask.sum()))
    return batch.mask.to(batch.new.dtype) / denominator


def sequence_shares(batch: LossBatch) -> Tensor:
    """[B, T] each row the same share, divided among its unmasked tokens."""
    mask = batch.mask
    return mask.to(batch.new.dtype) / mask.sum(dim=-1, keepdim=True).clamp(min=1) / mask.shape[0]


def token_means(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's unmasked tokens [B]; 0 for a row without any."""
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
