"""Weights of 4 bits: NF4, and how a pass computes weights of few bits.

Source: arXiv:2305.14314, section 3 and appendix E, without the double quantization of scales.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCK = 64
"""Weights of a row after row that share a scale with `nf4`."""
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of a normal distribution, divided by the largest. Source: arXiv:2305.14314, appendix E."""


def in_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`nf4`: two codes to a byte [blocks, BLOCK / 2], and scales [blocks, 1]; zeros fill the last block."""
    flat = weight.detach().float().flatten()
    blocks = nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True)
    levels = torch.tensor(NF4, device=weight.device)
    nearest = torch.bucketize(
        blocks / scales.clamp(min=torch.finfo(torch.float32).tiny), (levels[1:] + levels[:-1]) / 2, out_int32=True
    )
    return (nearest[:, ::2] * len(NF4) + nearest[:, 1::2]).to(torch.uint8), scales


def pairs_of_weights(device: torch.device) -> Tensor:
    """What each byte of codes stands for, [256, 2]: one look-up gives two weights."""
    levels = torch.tensor(NF4, device=device)
    return torch.cartesian_prod(levels, levels)


def computed(codes: Tensor, scales: Tensor, pairs: Tensor | None, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The weight of this shape: of `nf4` with `pairs`, without them of `quantise`."""
    if pairs is None:
        return codes.to(dtype).mul_(scales)
    blocks = nn.functional.embedding(codes.int(), pairs.to(dtype)).flatten(1)
    return blocks.mul_(scales).flatten()[: shape[0] * shape[1]].view(shape)
