"""Frozen matrices of 8 or 4 bits, beside which adapters learn: QLoRA.

Each weight is dequantized on the fly, forward and backward; one is materialized at a time. Adapters also learn what the
rounding lost. Source: arXiv:2305.14314, sections 2 and 3 and appendix E, without the double quantization of scales: 4.5
bits a weight instead of 4.13. 8 bits: arXiv:2208.07339 without outliers, so with one scale for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from transformers import PreTrainedModel

from swarm.errors import PolicyError
from swarm.policy.config import FrozenDtype
from swarm.policy.snapshot import quantize_int8


class FrozenLinear(nn.Linear):
    """A linear layer whose `weight` [out, in] is computed when it is asked for, without a gradient."""

    def __init__(self, layer: nn.Linear, kind: FrozenDtype) -> None:
        """Store the weight of `layer` as `kind`; its bias is taken over."""
        nn.Module.__init__(self)  # that of `nn.Linear` would make a weight
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_parameter("bias", layer.bias)
        self._dtype = layer.weight.dtype
        codes, scales = in_blocks(layer.weight) if kind == "nf4" else quantize_int8(layer.weight)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("pairs", pairs_of_weights(codes.device) if kind == "nf4" else None, persistent=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The rounded weight in the type of the one that was given; each time computed anew."""
        return self.weight_as(self._dtype)

    def weight_as(self, dtype: torch.dtype) -> Tensor:
        """The rounded weight, as a pass in this type computes it."""
        return computed(*self._stored, (self.out_features, self.in_features), dtype)

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output [..., out] of `input` [..., in], in the type of the forward pass."""
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        product: Tensor = _product(input.to(dtype), *self._stored, self.out_features)
        return product if self.bias is None else product + self.bias.to(dtype)

    def plain(self) -> nn.Linear:
        """The same layer with its weight in full."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(self.weight, requires_grad=False)
        layer.bias = self.bias
        return layer

    @property
    def _stored(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return cast(Tensor, self.codes), cast(Tensor, self.scales), cast(Tensor | None, self.pairs)


def freeze(model: PreTrainedModel, kind: FrozenDtype) -> None:
    """Store the matrices of all linear layers but the output head as `kind`. Raises `PolicyError` without any."""
    head = model.get_output_embeddings()
    found = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear and layer is not head]
    if not found:
        raise PolicyError(
            f"policy.lora.frozen_dtype must be compute or float32 for a {type(model).__name__}, which has no linear "
            f"layers, got {kind}"
        )
    for name, layer in found:
        model.set_submodule(name, FrozenLinear(layer, kind))


def thaw(model: nn.Module) -> None:
    """Undo `freeze`, except for what the rounding lost."""
    for name, layer in list(frozen_layers(model)):
        model.set_submodule(name, layer.plain())


def frozen_layers(model: nn.Module) -> Iterator[tuple[str, FrozenLinear]]:
    """The layers that `freeze` made, by name."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, FrozenLinear))


# Operations of their own: a compiler that saw what they do would keep the weight from forward to backward.
@torch.library.custom_op("swarm::frozen_product", mutates_args=())
def _product(input: Tensor, codes: Tensor, scales: Tensor, pairs: Tensor | None, size: int) -> Tensor:
    """input [..., in] weight^T [in, size]; the backward pass computes the weight again instead of keeping it."""
    return input @ computed(codes, scales, pairs, (size, input.shape[-1]), input.dtype).T


@torch.library.custom_op("swarm::frozen_slope", mutates_args=())
def _slope(grad: Tensor, codes: Tensor, scales: Tensor, pairs: Tensor | None, size: int) -> Tensor:
    """grad [..., out] weight [out, size]"""
    return grad @ computed(codes, scales, pairs, (grad.shape[-1], size), grad.dtype)


def _shaped(vectors: Tensor, codes: Tensor, scales: Tensor, pairs: Tensor | None, size: int) -> Tensor:
    return vectors.new_empty(*vectors.shape[:-1], size)


def _keep(ctx: _Context, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, int], output: Tensor) -> None:
    input, codes, scales, pairs, _ = inputs
    ctx.size = input.shape[-1]
    ctx.save_for_backward(codes, scales, pairs)  # type: ignore[arg-type]  # None may be saved


def _backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _slope(grad, *ctx.saved_tensors, ctx.size), None, None, None, None


class _Context(FunctionCtx):
    """State of `_product` between forward and backward."""

    saved_tensors: tuple[Tensor, Tensor, Tensor | None]
    size: int


_product.register_fake(_shaped)
_slope.register_fake(_shaped)
_product.register_autograd(_backward, setup_context=_keep)


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
