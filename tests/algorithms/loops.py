"""Every objective written a second time, as loops over single numbers that carry their own derivative.

Nothing here is shared with the code under test: no tensors, no autograd, plain probabilities where they do not
underflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Dual:
    """A number and its derivative with respect to one log-probability."""

    value: float
    slope: float = 0.0

    def __add__(self, other: Dual | float) -> Dual:
        other = dual(other)
        return Dual(self.value + other.value, self.slope + other.slope)

    def __mul__(self, other: Dual | float) -> Dual:
        other = dual(other)
        return Dual(self.value * other.value, self.slope * other.value + self.value * other.slope)

    def __sub__(self, other: Dual | float) -> Dual:
        return self + dual(other) * -1.0

    def __truediv__(self, other: float) -> Dual:
        return self * (1.0 / other)

    __radd__ = __add__
    __rmul__ = __mul__

    def exp(self) -> Dual:
        return Dual(math.exp(self.value), math.exp(self.value) * self.slope)


def dual(number: Dual | float) -> Dual:
    return number if isinstance(number, Dual) else Dual(number)


def limited(number: Dual, low: float, high: float) -> Dual:
    return number if low <= number.value <= high else Dual(min(max(number.value, low), high))


def mean(numbers: Sequence[Dual]) -> Dual:
    return sum(numbers, Dual(0.0)) / len(numbers) if numbers else Dual(0.0)


@dataclass(frozen=True)
class Batch:
    """Ragged rows; `new` is what derivatives are taken of."""

    new: list[list[Dual]]
    old: list[list[float]]
    weights: list[list[float]]
    """Advantage times importance weight, a token."""
    groups: list[list[int]]
    """Rows of each group."""


@dataclass(frozen=True)
class Constants:
    low: float
    high: float
    longest: int
    cap: float
    epsilon: float
    group_clip: bool = False
    epsilon_from: str = "constant"
    dual: float = math.inf
    positive_only: bool = False


def _counted(advantage: float, constants: Constants) -> float:
    return 0.0 if constants.positive_only and advantage < 0 else advantage


def _surrogate(ratio: Dual, advantage: float, constants: Constants) -> Dual:
    advantage = _counted(advantage, constants)
    if advantage < 0 and ratio.value > constants.dual:
        return Dual(-constants.dual * advantage)
    free, held = ratio * advantage, limited(ratio, 1 - constants.low, 1 + constants.high) * advantage
    return (free if free.value <= held.value else held) * -1.0


def _token_ratio(new: Dual, old: float) -> Dual:
    return limited(new - old, -20.0, 20.0).exp()


def _token_losses(batch: Batch, constants: Constants) -> list[list[Dual]]:
    return [
        [_surrogate(_token_ratio(n, o), a, constants) for n, o, a in zip(ns, os, ws, strict=True)]
        for ns, os, ws in zip(batch.new, batch.old, batch.weights, strict=True)
    ]


def _gspo_losses(batch: Batch, constants: Constants) -> list[list[Dual]]:
    losses = []
    for ns, os, ws in zip(batch.new, batch.old, batch.weights, strict=True):
        ratio = mean([limited(n - o, -20.0, 20.0) for n, o in zip(ns, os, strict=True)]).exp()
        losses.append([_surrogate(ratio, a, constants) for a in ws])
    return losses


def _gepo_losses(batch: Batch, constants: Constants) -> list[list[Dual]]:
    losses: list[list[Dual]] = [[] for _ in batch.new]
    for rows in batch.groups:
        q = [math.exp(math.fsum(batch.old[i]) / len(batch.old[i])) for i in rows]
        expectation = math.fsum(x * x for x in q) / math.fsum(q)
        epsilon = constants.epsilon
        if constants.epsilon_from == "variance":
            # E[q^2] - E[q]^2 under the weights of the expectation, as a fraction of 1/4.
            epsilon *= 4 * (math.fsum(x**3 for x in q) / math.fsum(q) - expectation**2)
        for i in rows:
            p = mean(batch.new[i]).exp()
            weight = p / (epsilon * p.value + (1 - epsilon) * expectation)
            if constants.group_clip:
                losses[i] = [_surrogate(weight, a, constants) for a in batch.weights[i]]
            else:
                losses[i] = [weight * -_counted(a, constants) for a in batch.weights[i]]
    return losses


def _tis_losses(batch: Batch, constants: Constants) -> list[list[Dual]]:
    return [
        [n * (-min(_token_ratio(n, o).value, constants.cap) * a) for n, o, a in zip(ns, os, ws, strict=True)]
        for ns, os, ws in zip(batch.new, batch.old, batch.weights, strict=True)
    ]


def _cispo_losses(batch: Batch, constants: Constants) -> list[list[Dual]]:
    low, high = 1 - constants.low, 1 + constants.high
    return [
        [n * (-min(max(_token_ratio(n, o).value, low), high) * a) for n, o, a in zip(ns, os, ws, strict=True)]
        for ns, os, ws in zip(batch.new, batch.old, batch.weights, strict=True)
    ]


LOSSES: dict[str, Callable[[Batch, Constants], list[list[Dual]]]] = {
    "grpo": _token_losses,
    "dapo": _token_losses,
    "dr_grpo": _token_losses,
    "gspo": _gspo_losses,
    "gepo": _gepo_losses,
    "tis": _tis_losses,
    "cispo": _cispo_losses,
}


def average(name: str, values: list[list[Dual]], constants: Constants) -> Dual:
    """One number of one a token, as the objective `name` weighs long and short completions."""
    total = sum((sum(row, Dual(0.0)) for row in values), Dual(0.0))
    if name in ("dapo", "tis", "cispo"):
        return total / sum(len(row) for row in values)
    if name == "dr_grpo":
        return total / (len(values) * constants.longest)
    return mean([mean(row) for row in values])


def loss(name: str, batch: Batch, constants: Constants) -> Dual:
    return average(name, LOSSES[name](batch, constants), constants)


def importance(
    name: str, proximal: list[list[float]], behaviour: list[list[float]], cap: float, floor: float = 0.0
) -> list[list[float]]:
    """Weights of a treatment, a token."""
    weights = []
    for ps, bs in zip(proximal, behaviour, strict=True):
        ratios = [math.exp(p - b) for p, b in zip(ps, bs, strict=True)]
        if name.startswith("sequence"):
            ratios = [math.prod(ratios)] * len(ratios)
        if name.endswith("mask"):
            weights.append([r if floor <= r <= cap else 0.0 for r in ratios])
        elif name.endswith("truncate"):
            weights.append([max(min(r, cap), floor) for r in ratios])
        else:
            weights.append([1.0] * len(ratios))
    return weights


def advantages(name: str, rewards: list[float]) -> list[float]:
    """[G] of a group's rewards."""
    mean = math.fsum(rewards) / len(rewards)
    centred = [r - mean for r in rewards]
    if name == "maxrl":
        return [c / mean if mean else 0.0 for c in centred]
    if name in ("grpo", "gdpo"):
        deviation = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - 1))
        return [c / (deviation + 1e-6) for c in centred]
    if name == "rloo":
        return [r - math.fsum(rewards[:k] + rewards[k + 1 :]) / (len(rewards) - 1) for k, r in enumerate(rewards)]
    return centred


def divergence(name: str, new: Dual, reference: float) -> Dual:
    difference = limited(reference + new * -1.0, -20.0, 20.0)
    match name:
        case "k1":
            return difference * -1.0
        case "k2":
            return difference * difference * 0.5
        case "k3" | "cppo":
            return difference.exp() - difference - 1.0
        case "weighted_k3":
            ratio = (difference * -1.0).exp()
            return ratio * (difference.exp() - difference - 1.0)
    raise AssertionError(name)
