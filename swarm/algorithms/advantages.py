"""Group-relative advantages."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6


def grpo(rewards: Tensor) -> Tensor:
    """Advantages [P, G] of rewards [P, G]: (r - mean) / (std + 1e-6), std with Bessel's correction.

    A group of one has nothing to be compared with and gets advantage 0 (its standard deviation is undefined).

    Source: arXiv:2402.03300, section 4.1.
    """
    if rewards.shape[-1] < 2:
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean(dim=-1, keepdim=True)
    return centred / (rewards.std(dim=-1, correction=1, keepdim=True) + EPSILON)
