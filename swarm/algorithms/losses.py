"""Losses by name, with their base class, input and output; and divergences from a reference or behaviour policy.

Validates a configuration without importing torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from swarm.figures import Figure
from swarm.kinds import Kinds
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

    has_token_ratios: ClassVar[bool] = True
    """Whether each token has a ratio, so that tokens can have advantages; otherwise a completion has one."""
    per_token: ClassVar[bool] = False
    """Whether the mean is over the step's tokens; otherwise over its completions."""
    needs_group_expectation: ClassVar[bool] = False
    """Whether `LossBatch.group_expectation` is required; `group_variance` comes with it. Such a loss already corrects
    for the sampler and cannot be combined with `update.importance`."""

    @abstractmethod
    def __call__(self, batch: LossBatch) -> LossOutput:
        """The loss of a batch."""


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


def token_mean(values: Tensor, mask: Tensor) -> Figure:
    """Mean of `values`, [B, T] or broadcastable to it, over the tokens of `mask` [B, T]."""
    return Figure("token_mean", (values.detach() * mask).sum(), mask.sum())


def sequence_mean(values: Tensor) -> Figure:
    """Mean of `values` [B] over completions."""
    return Figure("sequence_mean", values.detach().sum(), values.shape[0])


def largest(values: Tensor) -> Figure:
    """The largest of `values`, which are not negative; 0 of none."""
    return Figure("max", values.detach().max() if values.numel() else 0.0)


def ess(weights: Tensor, mask: Tensor) -> Figure:
    """Effective sample size of the N importance `weights` of the `mask`, as a fraction of N: (sum w)^2 / (N sum w^2).

    In (0, 1]; 1 when all weights are equal, as on-policy.

    Source: Kong 1992; arXiv:2509.19128, section 4.
    """
    kept = weights.detach() * mask
    wide = (kept if kept.is_cuda else kept.cpu()).double()  # Apple's GPUs have no float64
    return Figure("ess", wide.sum(), mask.sum(), wide.square().sum())


class Grpo(ClippedLoss):
    """Mean over sequences of the mean over tokens of -min(rho A, clip(rho) A), rho = exp(new - old).

    Denominator: B. No KL term; asymmetric clip.

    Source: arXiv:2402.03300, eq. 3 without its KL term; clip: arXiv:2503.14476, eq. 10.
    """

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        losses, figures = self.clipped_surrogate(log_ratio(batch.new, batch.old).exp(), batch)
        return LossOutput(losses, sequence_shares(batch), figures)


class Dapo(ClippedLoss):
    """Sum over all tokens of -min(rho A, clip(rho) A) / number of tokens: long completions weigh more.

    Denominator: unmasked tokens, at least 1. Without DAPO's dynamic sampling and length penalty.

    Source: arXiv:2503.14476, eq. 8 and 10.
    """

    per_token: ClassVar[bool] = True

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        losses, figures = self.clipped_surrogate(log_ratio(batch.new, batch.old).exp(), batch)
        return LossOutput(losses, token_shares(batch), figures)


class DrGrpo(ClippedLoss):
    """Sum over all tokens of -min(rho A, clip(rho) A) / (B x max_completion_tokens); goes with `dr_grpo` advantages.

    Denominator: B x max_completion_tokens.

    Source: arXiv:2503.20783, section 3.
    """

    max_completion_tokens: int = Field(512, ge=1)
    """The constant length in the denominator."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        losses, figures = self.clipped_surrogate(log_ratio(batch.new, batch.old).exp(), batch)
        return LossOutput(losses, token_shares(batch, float(len(batch.new) * self.max_completion_tokens)), figures)


class Gspo(ClippedLoss):
    """Mean over sequences of -min(s A, clip(s) A), s = exp(mean over tokens of new - old).

    Denominator: B. A row without unmasked tokens contributes 0.

    Source: arXiv:2507.18071, eq. 5 and 7.
    """

    has_token_ratios: ClassVar[bool] = False

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        ratio = token_means(log_ratio(batch.new, batch.old), batch.mask).exp()  # [B]
        losses, figures = self.clipped_surrogate(ratio[:, None], batch)
        return LossOutput(losses, sequence_shares(batch), figures)


MAX_VARIANCE = 0.25
"""Largest variance of values in [0, 1], such as probabilities. Source: Popoviciu 1935."""


class Gepo(ClippedLoss):
    """Mean over sequences of -w A, w = p / (eps p.detach() + (1 - eps) E), all in log space.

    p is length-normalised: log p = mean over tokens of `new`. E = sum q^2 / sum q over the whole group, where q is the
    sampler's p. Weights differ from 1 at p = q; at eps = 1 the gradient is that of A log p. `group_clip` makes it
    -min(w A, clip(w) A), as in the code published with the paper.

    eps = `group_epsilon`, or with `epsilon_from: variance` group_epsilon Var(q) / 0.25, in [0, group_epsilon]:
    Var(q) = sum q (q - E)^2 / sum q, with the weights of E, is at most 0.25. The paper asks for eps proportional to
    Var(q) without a constant or the variance's weights; both are ours.

    Denominator: B. A row without unmasked tokens contributes 0. Raises `ValueError` without the group's expectation.

    Source: arXiv:2508.17850, eq. 9, 11, 12 and 15.
    """

    has_token_ratios: ClassVar[bool] = False
    needs_group_expectation: ClassVar[bool] = True

    group_epsilon: float = Field(0.0, ge=0, le=1)
    """Weight eps of the current policy in the denominator."""
    epsilon_from: Literal["constant", "variance"] = "constant"
    """`constant`: eps is `group_epsilon` in every group; `variance`: proportional to the variance of the sampler's
    probabilities in the group, and `group_epsilon` at the largest possible variance, 0.25."""
    group_clip: bool = False
    """Clip the weight to [1 - clip_low, 1 + clip_high]: not in the paper's equations, but in the code published with
    it."""

    @model_validator(mode="after")
    def _a_dual_clip_needs_a_clip(self) -> Gepo:
        if self.dual_clip is not None and not self.group_clip:
            raise ValueError(f"dual_clip must be null without group_clip, got {self.dual_clip}: set group_clip to true")
        return self

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        if batch.group_expectation is None:
            raise ValueError("gepo needs the sampler's expectation over each group, got none")
        log_p = token_means(batch.new, batch.mask)  # [B]
        weight = (log_p - self._log_denominator(log_p.detach(), batch.group_expectation, batch.group_variance)).exp()
        if self.group_clip:
            losses, figures = self.clipped_surrogate(weight[:, None], batch)
        else:
            losses = -weight[:, None] * self.counted_advantages(batch)
            figures = {CLIPPED: token_mean(weight.new_zeros(()), batch.mask)}
        outside = (weight < 1 - self.clip_low) | (weight > 1 + self.clip_high)
        figures["gepo/outside_clip_ratio"] = sequence_mean(outside & (batch.mask.sum(dim=-1) > 0))
        return LossOutput(losses, sequence_shares(batch), figures)

    def _log_denominator(self, log_p: Tensor, log_expectation: Tensor, variance: Tensor | None) -> Tensor:
        """log of eps p + (1 - eps) E [B]."""
        if self.epsilon_from == "variance":
            if variance is None:
                raise ValueError("gepo with epsilon_from: variance needs the variance of each group, got none")
            epsilon = self.group_epsilon * (variance / MAX_VARIANCE)
            # At eps 0 and 1 one of the logarithms is -inf and adds nothing.
            return (epsilon.log() + log_p).logaddexp((-epsilon).log1p() + log_expectation)
        if self.group_epsilon == 0:
            return log_expectation
        if self.group_epsilon == 1:
            return log_p
        return (math.log(self.group_epsilon) + log_p).logaddexp(math.log1p(-self.group_epsilon) + log_expectation)


class Tis(Loss):
    """Sum over all tokens of -min(rho, c).detach() A new / number of tokens, rho = exp(new - old), c = `ratio_cap`.

    Denominator: unmasked tokens, at least 1. The weight corrects for stale sampling and has no gradient.

    Source: arXiv:2509.19128, eq. 5; truncation: Ionides 2008.
    """

    per_token: ClassVar[bool] = True

    ratio_cap: float = Field(5.0, gt=0)
    """Largest importance weight of a token."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        return weighted_likelihood(batch, 0.0, self.ratio_cap)


class Cispo(Loss):
    """Sum over all tokens of -clip(rho).detach() A new / number of tokens, rho = exp(new - old).

    Denominator: unmasked tokens, at least 1. Every token keeps a gradient, also those where a clipped surrogate has
    none. With its default `clip_low` it is `tis` with the cap 1 + `clip_high`.

    Source: arXiv:2506.13585, eq. 4 and 5; the upper bound of 5: arXiv:2510.13786.
    """

    per_token: ClassVar[bool] = True

    clip_low: float = Field(1.0, gt=0, le=1)
    """The weight is clipped to [1 - clip_low, 1 + clip_high]; 1, as in the paper's runs, is no lower bound."""
    clip_high: float = Field(4.0, gt=0)

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        return weighted_likelihood(batch, 1 - self.clip_low, 1 + self.clip_high)


def weighted_likelihood(batch: LossBatch, low: float, high: float) -> LossOutput:
    """-w A new per token, with the ratio clipped to [`low`, `high`] as a weight w without gradient."""
    ratio = log_ratio(batch.new, batch.old).exp().detach()
    weight = ratio.clamp(low, high)
    losses = -weight * per_token(batch.advantages) * batch.new
    return LossOutput(losses, token_shares(batch), {CLIPPED: token_mean(ratio != weight, batch.mask)})


__all__ = ["LOSSES", "ClippedLoss", "Loss", "LossBatch", "LossOutput"]

LOSSES: Kinds[type[Loss]] = Kinds(
    "loss",
    "swarm.losses",
    "swarm.algorithms.losses:Loss",
    {
        "grpo": f"{__name__}:Grpo",
        "dapo": f"{__name__}:Dapo",
        "dr_grpo": f"{__name__}:DrGrpo",
        "gspo": f"{__name__}:Gspo",
        "gepo": f"{__name__}:Gepo",
        "tis": f"{__name__}:Tis",
        "cispo": f"{__name__}:Cispo",
    },
)


KlEstimatorName = Literal["k1", "k2", "k3"]
BehaviourKlEstimatorName = Literal["cppo", "weighted_k3"]


def k1(new: Tensor, reference: Tensor) -> Tensor:
    """new - reference: unbiased, of any sign.

    As a penalty it only adds noise: on-policy the mean of its gradient is 0.

    Source: Schulman 2020, "Approximating KL divergence"; gradient: arXiv:2506.09477.
    """
    return -log_ratio(reference, new)


def k2(new: Tensor, reference: Tensor) -> Tensor:
    """(reference - new)^2 / 2: biased, never negative.

    As a penalty it has, on-policy and token by token, the gradient of KL(new || reference).

    Source: as `k1`.
    """
    return log_ratio(reference, new).square() / 2


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """exp(d) - d - 1, d = reference - new: unbiased, never negative.

    As a penalty it has, on-policy and token by token, the gradient of KL(reference || new).

    Source: as `k1`; arXiv:2402.03300, eq. 4.
    """
    difference = log_ratio(reference, new)
    return difference.exp() - difference - 1


def cppo(new: Tensor, behaviour: Tensor) -> Tensor:
    """exp(d) - d - 1, d = behaviour - new, as published: `k3` against the behaviour policy, on its own samples.

    `k3` estimates KL(new || behaviour) on samples of `new`. On samples of the behaviour policy its mean is
    chi^2(behaviour || new) - KL(behaviour || new): equal to second order near `behaviour`, far from it larger without
    bound, because tokens that have become improbable dominate. Its gradient pulls these back most.

    Source: the code published with arXiv:2508.17850, section 4.1.
    """
    return k3(new, behaviour)


def weighted_k3(new: Tensor, behaviour: Tensor) -> Tensor:
    """rho k3(new, behaviour) = rho log rho - rho + 1, rho = exp(new - behaviour): never negative.

    On samples of the behaviour policy, token by token, value and gradient are unbiased for KL(new || behaviour) and its
    gradient. It hardly pulls back tokens that have become improbable.

    Source: arXiv:2512.02556, eq. 7, with the behaviour policy as the reference.
    """
    difference = log_ratio(new, behaviour)
    return difference.exp() * difference - difference.expm1()


KL_ESTIMATORS: dict[KlEstimatorName, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Estimators on samples of the policy in training."""

BEHAVIOUR_KL_ESTIMATORS: dict[BehaviourKlEstimatorName, Callable[[Tensor, Tensor], Tensor]] = {
    "cppo": cppo,
    "weighted_k3": weighted_k3,
}
"""Estimators on samples of the behaviour policy, to which the divergence is measured."""
