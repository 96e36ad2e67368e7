"""What k completions of each question say about a policy: avg@k and pass@k, with intervals over the questions."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from swarm.telemetry.intervals import bootstrap_mean, wilson_interval
from swarm.types import Estimate


def pass_at(k: int, num_samples: int, num_correct: int) -> float:
    """The probability that at least one of k completions is right, estimated without bias from n samples of which c
    are right: 1 - C(n - c, k) / C(n, k).

    Raises `ValueError` unless 1 <= k <= n and 0 <= c <= n. Source: arXiv:2107.03374, eq. 1.
    """
    if not (1 <= k <= num_samples and 0 <= num_correct <= num_samples):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got k {k}, n {num_samples}, c {num_correct}")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def ks(k: int) -> list[int]:
    """The powers of two below `k`, and `k`: where pass@k is given."""
    return [*(2**power for power in range(k.bit_length()) if 2**power < k), k]


def mean_over_questions(values: Sequence[float]) -> Estimate | None:
    """The mean of one value in [0, 1] for each question, [Q]; None without questions.

    Its 95% interval is Wilson's where every value is 0 or 1, otherwise a bootstrap over the questions: completions of
    one question are not independent. A single question that is neither right nor wrong leaves everything open.
    """
    if not values:
        return None
    mean = sum(values) / len(values)
    if all(value in (0.0, 1.0) for value in values):
        interval = wilson_interval(round(sum(values)), len(values))
    else:
        interval = bootstrap_mean(values) or (0.0, 1.0)
    return Estimate(mean, *interval)


def suite_figures(rewards: Sequence[Sequence[float]], k: int, pass_from: float) -> dict[str, Estimate]:
    """avg@k, and pass@j for each j of `ks`, by name; from rewards [Q, k] in [0, 1]. Empty without questions.

    avg@k is the mean reward, which is the accuracy unless tasks give partial credit; pass@j counts rewards of
    at least `pass_from`.
    """
    right = [sum(reward >= pass_from for reward in each) for each in rewards]
    found = {f"avg@{k}": mean_over_questions([sum(each) / k for each in rewards])}
    for j in ks(k):
        found[f"pass@{j}"] = mean_over_questions([pass_at(j, k, num_right) for num_right in right])
    return {name: estimate for name, estimate in found.items() if estimate is not None}
