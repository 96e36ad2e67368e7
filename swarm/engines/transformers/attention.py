"""Attention to the slots of a cache.

Everything but attention treats each token by itself. So a pass over rows with different numbers of new tokens has the
tokens of all rows one after another, [1, N], without padding, and only attention looks at groups of rows: here, those
that decode one token, and those that read an observation. Padding all to the longest observation would cost a pass as
many tokens as a prompt has.

Where several heads of queries share keys and values, a decode step would spend most of its time on repeating these. The
queries of one token attend as if they were several tokens of one head instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swarm.policy.attention import Packing, attending_as
from swarm.policy.attention import attend as otherwise

NAME = "swarm_slots"


@dataclass(frozen=True)
class Group:
    """Rows of a pass that attend together."""

    rows: slice | Tensor
    """Their slots; a slice where possible, because a view needs no copy."""
    tokens: Tensor
    """[rows, T] places of their tokens in the pass; the last one is repeated in rows with fewer."""


def can_attend_to_slots(model: PreTrainedModel) -> bool:
    """Whether its attention can be replaced, and is given what the forward pass was given."""
    return bool(model.is_backend_compatible()) and model.config._attn_implementation == "sdpa"


def attending_to_slots(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Within the block, the model accepts `groups`, and repeats no keys of decoding rows; calls without a mask attend
    as before."""
    return attending_as(model, NAME)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packing: Packing | None = None,
    groups: Sequence[Group] = (),
    **options: object,
) -> tuple[Tensor, None]:
    """Attention with transformers' signature: of queries [B, heads, T, dim] to slots [B, key heads, width, dim], where
    the mask is [B, 1, T, width]; the result is [B, T, heads, dim]. With `groups` B is 1 for the queries alone."""
    if attention_mask is None or packing is not None:
        return otherwise(module, query, key, value, attention_mask, scaling, packing, **options)
    if not groups:
        return _attend(module, query, key, value, attention_mask, scaling, options), None
    by_token = query[0].transpose(0, 1)
    output = value.new_empty(*by_token.shape[:2], value.shape[-1])  # autocast may leave queries in float32
    for group in groups:
        queries = by_token[group.tokens].transpose(1, 2)  # [rows, heads, T, dim]
        mask = attention_mask[0, 0][group.tokens][:, None]  # [rows, 1, T, width]
        output[group.tokens] = _attend(module, queries, key[group.rows], value[group.rows], mask, scaling, options)
    return output[None], None


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float | None,
    options: Mapping[str, object],
) -> Tensor:
    """[B, T, heads, dim]"""
    num_rows, num_heads, num_tokens, _ = query.shape
    if num_tokens == 1 and num_heads > key.shape[1]:
        shared = query.reshape(num_rows, key.shape[1], -1, query.shape[-1])  # [B, key heads, heads of each, dim]
        attended = scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=scaling)
        return attended.reshape(num_rows, 1, num_heads, -1)
    output: Tensor = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)[0]
    return output


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
