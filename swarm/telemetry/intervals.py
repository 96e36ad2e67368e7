"""Confidence intervals: of an accuracy, and from a bootstrap's draws."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95


def percentile_interval(draws: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The 95% percentile interval of a bootstrap's `draws` [resamples]."""
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def wilson_interval(correct: int, asked: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% Wilson confidence interval of the accuracy (Wilson 1927); (0, 1) without questions."""
    if asked == 0:
        return 0.0, 1.0
    part = correct / asked
    centre = part + z * z / (2 * asked)
    spread = z * math.sqrt(part * (1 - part) / asked + z * z / (4 * asked * asked))
    scale = 1 + z * z / asked
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
