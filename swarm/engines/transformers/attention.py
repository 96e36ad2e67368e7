"""Attention in a pass over rows with different numbers of new tokens.

Everything but attention treats each token by itself. So such a pass has the tokens of all rows one after another,
[1, N], without padding, and only attention looks at groups of rows: here, those that decode one token, and those that
read an observation. Padding all to the longest observation would cost a pass as many tokens as a prompt has.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swarm.policy.attention import Packing, attending_as
from swarm.policy.attention import attend as otherwise

NAME = "swarm_groups"


@dataclass(frozen=True)
class Group:
    """Rows of a pass that attend together."""

    rows: slice | Tensor
    """Their slots; a slice where possible, because a view needs no copy."""
    tokens: Tensor
    """[rows, T] places of their tokens in the pass; the last one is repeated in rows with fewer."""


def can_attend_by_group(model: PreTrainedModel) -> bool:
    """Whether its attention can be replaced, and is given what the forward pass was given."""
    return bool(model.is_backend_compatible()) and model.config._attn_implementation == "sdpa"


def attending_by_group(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Within the block, the model accepts `groups`; calls without any attend as before."""
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
    """Attention with transformers' signature: of queries [1, heads, N, dim] to slots [slots, heads, width, dim], where
    the mask is [1, 1, N, width]. The result is [1, N, heads, dim]."""
    if attention_mask is None or not groups:
        return otherwise(module, query, key, value, attention_mask, scaling, packing, **options)
    by_token = query[0].transpose(0, 1)
    output = value.new_empty(*by_token.shape[:2], value.shape[-1])  # autocast may leave queries in float32
    for group in groups:
        queries = by_token[group.tokens].transpose(1, 2)  # [rows, heads, T, dim]
        mask = attention_mask[0, 0][group.tokens][:, None]  # [rows, 1, T, width]
        output[group.tokens], _ = sdpa_attention_forward(
            module, queries, key[group.rows], value[group.rows], mask, scaling=scaling, **options
        )
    return output[None], None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
