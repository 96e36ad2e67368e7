"""What the GPU's kernel for ranges of queries and keys computes and keeps, on any device and in any type."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def in_ranges(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Tensor,
    keys: Tensor,
    longest: tuple[int, int],
    scaling: float | None,
) -> Tensor:
    """As `swarm.policy.attention.in_ranges`."""
    attended: Tensor = _attend(query, key, value, queries, keys, scaling)[0]
    return attended


@torch.library.custom_op("swarm_tests::in_ranges", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor]:
    return _range_by_range(query, key, value, queries, keys, scaling), query.new_zeros(
        query.shape[1], query.shape[0], dtype=torch.float32
    )


@_attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)


@torch.library.custom_op("swarm_tests::in_ranges_backward", mutates_args=())
def _slopes(
    slope: Tensor, query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    scale, groups = _scale(query, scaling), query.shape[1] // key.shape[1]
    slopes = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for own, seen in _ranges(queries, keys):
        q, d = query[own].transpose(0, 1), slope[own].transpose(0, 1)
        k, v = (each[seen].transpose(0, 1).repeat_interleave(groups, dim=0) for each in (key, value))
        shares = _shares(q, k, scale)
        inner = shares * (by_share := d @ v.mT) - shares * (shares * by_share).sum(-1, keepdim=True)
        slopes[0][own] += (scale * inner @ k).transpose(0, 1)
        for total, found in ((slopes[1], scale * inner.mT @ q), (slopes[2], shares.mT @ d)):
            total[seen] += found.view(-1, groups, *found.shape[1:]).sum(1).transpose(0, 1)
    return slopes


@_slopes.register_fake
def _(
    slope: Tensor, query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)  # type: ignore[arg-type]
    ctx.scaling = inputs[5]  # type: ignore[attr-defined]


def _backward(ctx: FunctionCtx, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    found = _slopes(slope, *ctx.saved_tensors[:5], ctx.scaling)  # type: ignore[attr-defined]
    return (*found, None, None, None)


_attend.register_autograd(_backward, setup_context=_keep)


def _range_by_range(
    query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor, scaling: float | None
) -> Tensor:
    scale, groups = _scale(query, scaling), query.shape[1] // key.shape[1]
    found = torch.empty_like(query)
    for own, seen in _ranges(queries, keys):
        k, v = (each[seen].transpose(0, 1).repeat_interleave(groups, dim=0) for each in (key, value))
        found[own] = (_shares(query[own].transpose(0, 1), k, scale) @ v).transpose(0, 1)
    return found


def _ranges(queries: Tensor, keys: Tensor) -> list[tuple[slice, slice]]:
    bounds = pairwise(queries.tolist()), pairwise(keys.tolist())
    return [(slice(*own), slice(*seen)) for own, seen in zip(*bounds, strict=True)]


def _shares(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """[heads, queries, keys]"""
    mask = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril(key.shape[1] - query.shape[1])
    return (scale * query @ key.mT).masked_fill(~mask, -torch.inf).softmax(-1)


def _scale(query: Tensor, scaling: float | None) -> float:
    return float(query.shape[-1] ** -0.5) if scaling is None else scaling
