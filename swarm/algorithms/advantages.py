"""Group-relative advantages: [P, G] rewards in, [P, G] advantages out. A group of one has advantage 0.

Also losses and advantages by name. A custom one is checked: whatever it raises, and any output that no update could
use, is a `ConfigError` that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from swarm.algorithms.losses import LOSSES, Loss, LossBatch, LossOutput
from swarm.errors import ConfigError
from swarm.kinds import Kinds, custom_code

if TYPE_CHECKING:
    from torch import Tensor


EPSILON = 1e-6


def grpo(rewards: Tensor) -> Tensor:
    """(r - mean) / (std + 1e-6), std with Bessel's correction.

    A group of one has an undefined standard deviation; its advantage is 0.

    Source: arXiv:2402.03300, section 4.1.
    """
    if rewards.shape[-1] < 2:
        return rewards.new_zeros(rewards.shape)
    return dr_grpo(rewards) / (rewards.std(dim=-1, correction=1, keepdim=True) + EPSILON)


def dr_grpo(rewards: Tensor) -> Tensor:
    """r - mean: dividing by the standard deviation would favour questions that are nearly solved or nearly hopeless.

    Source: arXiv:2503.20783, section 3.
    """
    return rewards - rewards.mean(dim=-1, keepdim=True)


def rloo(rewards: Tensor) -> Tensor:
    """r minus the mean of the other G - 1 rewards, which is G / (G - 1) times r - mean.

    Source: arXiv:2402.14740, section 2.3.
    """
    group_size = rewards.shape[-1]
    if group_size < 2:
        return rewards.new_zeros(rewards.shape)
    return dr_grpo(rewards) * group_size / (group_size - 1)


def maxrl(rewards: Tensor) -> Tensor:
    """(r - mean) / mean, 0 where no reward is above 0: a rare success weighs more than with `grpo`.

    With rewards of 0 and 1 the expected gradient is that of log p, the log-likelihood of a right answer, expanded in
    1 - p up to order G - 1, instead of that of p.

    Source: arXiv:2602.02710, its estimator with the score's mean as control variate.
    """
    return dr_grpo(rewards) / rewards.mean(dim=-1, keepdim=True).clamp(min=EPSILON)


def gdpo(rewards: Tensor) -> Tensor:
    """`grpo` of each named reward of a task by itself, and of these the mean by the rewards' weights.

    With `grpo` alone, different combinations of rewards with the same weighted mean have the same advantage, and a
    reward that hardly varies adds hardly anything. For tasks without named rewards it is `grpo`. The paper then divides
    by the batch's standard deviation; here weights that sum to 1 bound the scale, so that a group's advantages do not
    depend on the batch. Others' groups have the advantages of `grpo`, by which they are screened.

    Source: arXiv:2601.05242, section 3.
    """
    return grpo(rewards)


BY_REWARD = frozenset({"gdpo"})
"""Advantages of each named reward, which `weighted_advantages` combines."""

ADVANTAGES: Kinds[Callable[[Tensor], Tensor]] = Kinds(
    "advantage",
    "swarm.advantages",
    "",
    {name: f"{__name__}:{name}" for name in ("grpo", "dr_grpo", "rloo", "maxrl", "gdpo")},
)


def weighted_advantages(advantages: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """[G] the mean of the advantages [N][G] of N rewards by their weights [N], whose sum is above 0."""
    total = sum(weights)
    return [
        sum(w * a for w, a in zip(weights, column, strict=True)) / total for column in zip(*advantages, strict=True)
    ]


def find_advantage(name: str) -> Callable[[Tensor], Tensor]:
    """The function that `update.advantage` names: rewards [P, G] to advantages [P, G]. Raises `ValueError`.

    A custom one raises `ConfigError` for output that no update could use.
    """
    found = ADVANTAGES.find(name)
    return found if name in ADVANTAGES else partial(_own_advantages, name, found)


def _own_advantages(name: str, function: Callable[[Tensor], Tensor], rewards: Tensor) -> Tensor:
    """Finite advantages [P, G] by a custom function. Raises `ConfigError`."""
    where = f"update.advantage {name}"
    with custom_code(where):
        advantages = function(rewards)
    shape = _shape(advantages)
    if shape != list(rewards.shape):
        raise ConfigError(
            f"{where} must return a tensor of the shape of the rewards it is given, {list(rewards.shape)}: a row for "
            f"each question, a number for each completion; got {_got(advantages)}"
        )
    if not bool(advantages.isfinite().all()):
        raise ConfigError(f"{where} must return finite numbers, got {advantages.tolist()} for {rewards.tolist()}")
    return advantages


def loss_of(name: str, loss: Loss, batch: LossBatch) -> LossOutput:
    """What `loss`, which `update.objective` names, makes of a batch.

    Raises `ConfigError` where a custom one fails.
    """
    if name in LOSSES:
        return loss(batch)
    where = f"update.objective {name}"
    with custom_code(where):
        output = loss(batch)
    if not isinstance(output, LossOutput):
        raise ConfigError(f"{where} must return a swarm.algorithms.losses.LossOutput, got {_got(output)}")
    wanted = list(batch.new.shape)
    if _shape(output.shares) != wanted:
        raise ConfigError(
            f"{where} must return `shares` [B, T], a weight for each token: here {wanted}; got {_got(output.shares)}"
        )
    shape = _shape(output.losses)
    if shape is None or not _broadcasts(shape, wanted):
        raise ConfigError(
            f"{where} must return `losses` [B, T], or what broadcasts to it: here {wanted}; got {_got(output.losses)}"
        )
    return output


def _broadcasts(shape: list[int], wanted: list[int]) -> bool:
    if len(shape) > len(wanted):
        return False
    return all(size in (1, full) for size, full in zip(reversed(shape), reversed(wanted), strict=False))


def _shape(value: object) -> list[int] | None:
    """The shape of a tensor; None for anything else."""
    shape = getattr(value, "shape", None)
    return list(shape) if shape is not None and hasattr(value, "isfinite") else None


def _got(value: object) -> str:
    shape = _shape(value)
    return f"{type(value).__name__} {str(value)[:60]!r}" if shape is None else f"the shape {shape}"
