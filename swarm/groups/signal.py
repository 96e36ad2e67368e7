"""Which groups have signal. Source: arXiv:2509.08721, section 3."""

from __future__ import annotations

from collections.abc import Sequence


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group has any non-zero advantage: they are all zero exactly when all G rewards are equal."""
    return any(reward != rewards[0] for reward in rewards)
