"""Figures from tensors: the reduction is declared where the figure is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.figures import Figure

if TYPE_CHECKING:
    from torch import Tensor


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
