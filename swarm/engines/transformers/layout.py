"""Batch layout: padded [B, T], or packed (ragged) [1, N], and attention over slots in both.

Rows of similar length are padded. Rows that decode one token and rows that prefill an observation share a packed pass,
in which only the attention of the latter is padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swarm.policy.attention import Packing, attend as otherwise, attending_as
from swarm.policy.experts import Routing
from swarm.types import Sampling

NAME = "swarm_slots"
Indices = NDArray[np.int64]
READ_TOKENS = 8_192
"""Most padded tokens of a prefill pass."""


@dataclass(frozen=True)
class Group:
    """Rows of a pass that attend together."""

    rows: slice | Tensor
    """Their slots; a slice where possible, because a view needs no copy."""
    tokens: Tensor
    """[rows, T] indices of their tokens in the pass; shorter rows repeat their last one."""


def can_attend_to_slots(model: PreTrainedModel) -> bool:
    """Whether its attention can be replaced, and gets the forward pass's arguments."""
    return bool(model.is_backend_compatible()) and model.config._attn_implementation == "sdpa"


def attending_to_slots(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Within the block, the model accepts `groups`, and repeats no keys of decoding rows; calls without a mask are
    unchanged."""
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


class Unread(NamedTuple):
    """Tokens of a row that the cache lacks."""

    slot: int
    start: int
    """Position of the first token."""
    tokens: list[int]
    placed: Tensor | None = None
    """[D, tokens] positions for the model; None where they count tokens."""


class Draws(NamedTuple):
    """Parameters of sampling the next tokens."""

    seeds: Sequence[int]
    """[B], of the rows."""
    positions: Sequence[int]
    """[B]: tokens sampled so far."""
    sampling: Sampling
    num: int = 1
    """Most tokens of each row; those after its end are to be ignored."""


@dataclass(frozen=True)
class Layout:
    """The tokens of one pass."""

    rows: list[Unread]
    ids: Tensor
    """[B, T] or [1, N]; padded rows repeat their last token at the same position, which writes the same again."""
    slots: Tensor
    """[B, 1] or [1, N]"""
    positions: Tensor
    """Shape of `ids`."""
    read: slice | Tensor
    """Slots to attend to."""
    width: int
    """Width of the longest row with its tokens."""
    last: int | Tensor
    """Index of each row's last token, for `logits_to_keep`."""
    groups: Sequence[Group] = ()
    """Rows that attend together, in a packed layout."""
    placed: Tensor | None = None
    """[D, B, T] or [D, 1, N] positions for a model with D of them a token."""

    def by_row(self, routing: Routing) -> list[Routing]:
        """Splits the experts of a whole pass by row."""
        size = self.ids.shape[1] if not self.groups else None
        starts = accumulate((size or len(row.tokens) for row in self.rows), initial=0)
        return [routing[start : start + len(row.tokens)] for start, row in zip(starts, self.rows, strict=False)]


def layouts(rows: Sequence[Unread], can_join: bool, device: torch.device) -> Iterator[Layout]:
    """The passes for these rows. Rows that prefill must come after those that decode.

    `can_join`: whether both may share a pass.
    """
    num_decoding = next((i for i, row in enumerate(rows) if len(row.tokens) > 1), len(rows))
    decoding, reading = list(rows[:num_decoding]), rows[num_decoding:]
    batches = [[reading[i] for i in batch] for batch in batches_of([len(row.tokens) for row in reading])]
    if can_join and decoding and batches:
        yield _packed([decoding, batches.pop()], device)
    elif decoding:
        yield _padded(decoding, device)
    for batch in batches:
        yield _padded(batch, device)


def batches_of(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of the non-empty entries, grouped by similar length, each batch within `READ_TOKENS` when padded."""
    batch: list[int] = []
    for i in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[i] > READ_TOKENS:
            yield sorted(batch)
            batch = []
        batch.append(i)
    if batch:
        yield sorted(batch)


class _Flat:
    """The tokens of rows, concatenated as arrays: lists would take as long as a layer of a small model."""

    def __init__(self, rows: list[Unread]) -> None:
        self.tokens = np.fromiter(chain.from_iterable(row.tokens for row in rows), np.int64)
        self.slots = np.array([row.slot for row in rows])
        self.starts = np.array([row.start for row in rows])
        self.lengths = np.array([len(row.tokens) for row in rows])
        self.first = self.lengths.cumsum() - self.lengths
        """Index of each row's first token."""

    def placed(self, rows: Sequence[Unread], indices: Indices, device: torch.device) -> Tensor | None:
        """Positions [D, *indices] for the model; None if they count tokens."""
        found = [row.placed for row in rows if row.placed is not None]
        if not found:
            return None
        return torch.cat(found, dim=1)[:, torch.from_numpy(indices)].to(device)

    @property
    def width(self) -> int:
        return int((self.starts + self.lengths).max())

    def padded(self, rows: slice) -> Indices:
        """[rows, T] indices of some rows' tokens; shorter rows repeat their last one."""
        first, lengths = self.first[rows, None], self.lengths[rows, None]
        indices: Indices = np.minimum(first + np.arange(lengths.max()), first + lengths - 1)
        return indices

    def adjacent(self, rows: slice, device: torch.device) -> slice | Tensor:
        """The slots of some rows; as a slice if they are adjacent, because a view needs no copy."""
        slots = self.slots[rows]
        if slots[-1] - slots[0] == len(slots) - 1:
            return slice(int(slots[0]), int(slots[-1]) + 1)
        return torch.from_numpy(slots).to(device)


def _padded(rows: list[Unread], device: torch.device) -> Layout:
    flat = _Flat(rows)
    indices = flat.padded(slice(None))
    positions = indices + (flat.starts - flat.first)[:, None]
    return Layout(
        rows,
        ids=torch.from_numpy(flat.tokens[indices]).to(device),
        slots=torch.from_numpy(flat.slots).to(device)[:, None],
        positions=torch.from_numpy(positions).to(device),
        read=flat.adjacent(slice(None), device),
        width=flat.width,
        last=1,
        placed=flat.placed(rows, indices, device),
    )


def _packed(groups: list[list[Unread]], device: torch.device) -> Layout:
    rows = list(chain(*groups))
    flat = _Flat(rows)
    ends = list(accumulate(map(len, groups)))
    slices = [slice(end - len(group), end) for end, group in zip(ends, groups, strict=True)]
    positions = np.arange(len(flat.tokens)) + (flat.starts - flat.first).repeat(flat.lengths)
    return Layout(
        rows,
        ids=torch.from_numpy(flat.tokens).to(device)[None],
        slots=torch.from_numpy(flat.slots.repeat(flat.lengths)).to(device)[None],
        positions=torch.from_numpy(positions).to(device)[None],
        read=slice(None),
        width=flat.width,
        last=torch.from_numpy(flat.first + flat.lengths - 1).to(device),
        placed=flat.placed(rows, np.arange(len(flat.tokens))[None], device),
        groups=[Group(flat.adjacent(part, device), torch.from_numpy(flat.padded(part)).to(device)) for part in slices],
    )
