"""Confidence intervals: of an accuracy, and from a bootstrap's draws."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
MAX_DRAWN = 2**22
"""Rows drawn at a time, which bounds the memory."""


def percentile_interval(draws: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The 95% percentile interval of a bootstrap's `draws` [resamples]."""
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def wilson_interval(correct: float, asked: float, z: float = 1.959964) -> tuple[float, float]:
    """The 95% Wilson confidence interval of the accuracy (Wilson 1927); (0, 1) without questions."""
    if asked == 0:
        return 0.0, 1.0
    part = correct / asked
    centre = part + z * z / (2 * asked)
    spread = z * math.sqrt(part * (1 - part) / asked + z * z / (4 * asked * asked))
    scale = 1 + z * z / asked
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def accuracy(correct: float, asked: float) -> tuple[float, float, float] | None:
    """An accuracy and its 95% Wilson interval; None without questions."""
    return (correct / asked, *wilson_interval(correct, asked)) if asked else None


def bootstrap_mean(values: npt.ArrayLike) -> tuple[float, float] | None:
    """The 95% percentile bootstrap interval of the mean of `values` [n]; None for fewer than two."""
    rows = np.asarray(values, dtype=np.float64)[:, None]
    return percentile_interval(_resampled_means(rows)[:, 0]) if len(rows) > 1 else None


def bootstrap_ratio(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> tuple[float, float] | None:
    """That of the ratio of two means over pairs, [n] each, such as two results with the same seed.

    Pairs are drawn whole, so that what both share does not widen the interval. Resamples in which the mean of `theirs`
    is not positive are left out. None for fewer than two pairs, or without resamples.
    """
    rows = np.stack([np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)], axis=1)  # [n, 2]
    if len(rows) < 2:
        return None
    means = _resampled_means(rows)
    means = means[means[:, 1] > 0]
    return percentile_interval(means[:, 0] / means[:, 1]) if len(means) else None


def _resampled_means(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Means [resamples, k] of rows [n, k] drawn with replacement; always the same draws."""
    rng = np.random.default_rng(0)
    part = max(1, MAX_DRAWN // len(rows))
    sizes = [min(part, NUM_RESAMPLES - first) for first in range(0, NUM_RESAMPLES, part)]
    return np.concatenate([rows[rng.integers(len(rows), size=(size, len(rows)))].mean(axis=1) for size in sizes])
