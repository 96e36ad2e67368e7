"""Attention over rows packed into one sequence; each completion attends to its prompt and itself only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "swarm_packed"
UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Attention options that packed attention does not support."""


@dataclass(frozen=True)
class Packing:
    """The segments of a packed sequence, in order."""

    lengths: list[int]
    """Tokens of each segment."""
    prefixes: tuple[int | None, ...]
    """The segment that each one continues, which has no prefix itself; None for a segment that starts anew."""
    causal: Tensor
    """[S, S] true on and below the diagonal; S tokens are the longest segment with its prefix."""

    def inputs(self, device: torch.device) -> dict[str, object]:
        """Arguments for calling the model."""
        return {
            "packing": replace(self, causal=self.causal.to(device)),
            "attention_mask": torch.empty(1, 1, 1, 1, device=device),  # not read; without it the model builds its own
        }


@contextmanager
def packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """Within the block, the model accepts a `packing`; calls without one attend as before, so that other threads can
    use it."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packing: Packing | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention with transformers' signature; `query` is [1, heads, tokens, D], the result [1, tokens, heads, D].

    Raises `NotImplementedError` for a model that needs more than plain causal attention.
    """
    if packing is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return result
    for name in UNKNOWN:
        if others.get(name) is not None:
            raise NotImplementedError(f"packed attention has no {name}")
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    queries, keys, values = (torch.split(tensor, packing.lengths, dim=2) for tensor in (query, key, value))
    outputs = []
    for i, prefix in enumerate(packing.prefixes):
        if prefix is None:
            output = scaled_dot_product_attention(queries[i], keys[i], values[i], is_causal=True, scale=scaling)
        else:
            seen, length = packing.lengths[prefix], packing.lengths[i]
            output = scaled_dot_product_attention(
                queries[i],
                torch.cat([keys[prefix], keys[i]], dim=2),
                torch.cat([values[prefix], values[i]], dim=2),
                attn_mask=packing.causal[seen : seen + length, : seen + length],
                scale=scaling,
            )
        outputs.append(output)
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
