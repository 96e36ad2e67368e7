"""Which groups have signal. Source: arXiv:2509.08721, section 3."""

from __future__ import annotations

import math
from collections.abc import Sequence

ROUNDING = 1e-9
"""Rewards that differ by less, absolutely or relatively, are equal: sums of the same parts may differ by rounding."""


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group has any advantage other than zero: all are zero when all G rewards are equal, up to rounding."""
    lowest, highest = min(rewards, default=0.0), max(rewards, default=0.0)
    return not math.isclose(lowest, highest, rel_tol=ROUNDING, abs_tol=ROUNDING)
