"""The base class of losses, with their input and output. Validates a configuration without importing torch."""

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
"""Fraction of tokens where the objective's clip or cap was active."""


@dataclass(frozen=True)
class LossBatch:
    """B completions of at most T tokens: all that a loss may know, wherever it is written."""

    new: Tensor
    """[B, T] log-probabilities under the policy in training, with gradient."""
    old: Tensor
    """[B, T] old log-probabilities, the denominator of the ratio."""
    advantages: Tensor
    """[B] per completion, or [B, T] when its tokens have different weights."""
    mask: Tensor
    """[B, T] 1 on tokens that the loss covers."""
    group_expectation: Tensor | None = None
    """[B] log of the sampler's expectation over the completion's whole group, for a loss that needs it."""
    group_variance: Tensor | None = None
    """[B] variance of the sampler's probabilities in the completion's whole group, likewise."""


@dataclass(frozen=True)
class LossOutput:
    """A weighted sum over tokens; the sums of micro-batches add up exactly. Penalties are added before it is taken."""

    losses: Tensor
    """[B, T] or broadcastable to it."""
    shares: Tensor
    """[B, T] weight of each token in the mean, 0 outside the mask; per-token penalties use the same weights."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """The loss's figures, by name; every sink receives them."""

    @property
    def loss(self) -> Tensor:
        """Scalar."""
        return (self.losses * self.shares).sum()


class Loss(Settings):
    """An objective with its settings: `update.loss` holds the fields of the subclass.

    The loss must be linear in non-negative multiples of the advantages, so that a weight on the loss is a weight on the
    advantages.
    """

    per_token: ClassVar[bool] = False
    """Whether the mean is over the step's tokens; otherwise over its completions."""
    needs_group_expectation: ClassVar[bool] = False
    """Whether `LossBatch.group_expectation` is required; `group_variance` comes with it. Such a loss already corrects
    for the sampler and cannot be combined with `update.importance`."""

    @abstractmethod
    def __call__(self, batch: LossBatch) -> LossOutput:
        """The loss of a batch."""
        ...


class ClippedLoss(Loss):
    """A loss with a clip."""

    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    dual_clip: float | None = Field(None, gt=1)
    """Largest ratio c of what has a negative advantage A, so that its loss is at most -c A; the clip alone leaves it
    unbounded. verl uses 3. Default: no bound. Source: arXiv:1912.09729, section "Dual-clip PPO"."""
    positive_only: bool = False
    """Ignore completions with a negative advantage; they still count in the mean. Source: the positive samples of
    arXiv:2504.11343."""

    def counted_advantages(self, batch: LossBatch) -> Tensor:
        """The advantages in a shape that broadcasts over tokens, 0 where they are ignored."""
        advantages = per_token(batch.advantages)
        return advantages.clamp(min=0) if self.positive_only else advantages

    def clipped_surrogate(self, ratio: Tensor, batch: LossBatch) -> tuple[Tensor, dict[str, Figure]]:
        """-min(rho A, clip(rho) A), with `dual_clip` at most -c A where A < 0, and the clip's figures.

        The ratio rho is broadcast over tokens.
        """
        advantages = self.counted_advantages(batch)
        free = ratio * advantages
        held = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages
        surrogate = free.minimum(held)
        clipped = (held < free).detach()
        figures = {
            "clip_ratio/low_mean": token_mean(clipped & (advantages < 0), batch.mask),
            "clip_ratio/high_mean": token_mean(clipped & (advantages > 0), batch.mask),
        }
        if self.dual_clip is not None:
            beyond = ((ratio > self.dual_clip) & (advantages < 0)).detach()
            surrogate = surrogate.where(~beyond, self.dual_clip * advantages)
            clipped = clipped | beyond
            figures["clip_ratio/dual_mean"] = token_mean(beyond, batch.mask)
        return -surrogate, {CLIPPED: token_mean(clipped, batch.mask), **figures}


def log_ratio(new: Tensor, old: Tensor) -> Tensor:
    """new - old, elementwise, clamped so that its exponential stays finite."""
    return (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def per_token(advantages: Tensor) -> Tensor:
    """Advantages [B] or [B, T] in a shape that broadcasts over tokens."""
    return advantages[:, None] if advantages.dim() == 1 else advantages


def token_shares(batch: LossBatch, denominator: float | None = None) -> Tensor:
    """[B, T] 1 / `denominator` for each unmasked token; the default is their number, at least 1."""
    if denominator is None:
        denominator = max(1.0, float(batch.mask.sum()))
    return batch.mask.to(batch.new.dtype) / denominator


def sequence_shares(batch: LossBatch) -> Tensor:
    """[B, T] equal shares per row, divided among its unmasked tokens."""
    mask = batch.mask
    return mask.to(batch.new.dtype) / mask.sum(dim=-1, keepdim=True).clamp(min=1) / mask.shape[0]


def token_means(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's unmasked tokens [B]; 0 for a row without any."""
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
