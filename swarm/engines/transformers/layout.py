"""How the tokens of a forward pass lie in it.

Rows with as many tokens lie side by side, [B, T]. Rows that decode one token and rows that read an observation lie one
after another, [1, N]: then nothing is padded but the attention of those that read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swarm.engines.transformers.attention import Group
from swarm.policy.experts import Routing
from swarm.types import Sampling

Places = NDArray[np.int64]

READ_TOKENS = 8_192
"""Padded tokens of one pass that reads prompts or observations."""


class Unread(NamedTuple):
    """What the cache does not hold of a row yet."""

    slot: int
    start: int
    """Position of the first token."""
    tokens: list[int]
    placed: Tensor | None = None
    """[D, tokens] positions for the model; None where they count tokens."""


class Draws(NamedTuple):
    """How the next tokens of rows are sampled."""

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
    """[B, T] or [1, N]; in the former, rows with fewer tokens repeat their last one at the same place, which writes
    the same again."""
    slots: Tensor
    """[B, 1] or [1, N]"""
    positions: Tensor
    """As `ids`."""
    read: slice | Tensor
    """Slots to attend to."""
    width: int
    """Width of the longest row with its tokens."""
    last: int | Tensor
    """Where the last token of each row is, as models take it."""
    groups: Sequence[Group] = ()
    """Of [1, N]: rows that attend together."""
    placed: Tensor | None = None
    """[D, B, T] or [D, 1, N] positions for a model with D of them a token."""

    def by_row(self, routing: Routing) -> list[Routing]:
        """The experts of each row's tokens, of those of the whole pass."""
        size = self.ids.shape[1] if not self.groups else None
        starts = accumulate((size or len(row.tokens) for row in self.rows), initial=0)
        return [routing[start : start + len(row.tokens)] for start, row in zip(starts, self.rows, strict=False)]


def layouts(rows: Sequence[Unread], can_join: bool, device: torch.device) -> Iterator[Layout]:
    """As many passes as it takes. Rows that read must come after those that decode.

    `can_join`: whether both fit into one.
    """
    num_decoding = next((place for place, row in enumerate(rows) if len(row.tokens) > 1), len(rows))
    decoding, reading = list(rows[:num_decoding]), rows[num_decoding:]
    batches = [[reading[i] for i in batch] for batch in batches_of([len(row.tokens) for row in reading])]
    if can_join and decoding and batches:
        yield _one_after_another([decoding, batches.pop()], device)
    elif decoding:
        yield _side_by_side(decoding, device)
    for batch in batches:
        yield _side_by_side(batch, device)


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
    """The tokens of rows one after another, as arrays: lists would take as long as a layer of a small model."""

    def __init__(self, rows: list[Unread]) -> None:
        self.tokens = np.fromiter(chain.from_iterable(row.tokens for row in rows), np.int64)
        self.slots = np.array([row.slot for row in rows])
        self.starts = np.array([row.start for row in rows])
        self.lengths = np.array([len(row.tokens) for row in rows])
        self.first = self.lengths.cumsum() - self.lengths
        """Where each row's tokens begin."""

    def placed(self, rows: Sequence[Unread], places: Places, device: torch.device) -> Tensor | None:
        """[D, *places] positions for the model; None where they count tokens."""
        found = [row.placed for row in rows if row.placed is not None]
        if not found:
            return None
        return torch.cat(found, dim=1)[:, torch.from_numpy(places)].to(device)

    @property
    def width(self) -> int:
        return int((self.starts + self.lengths).max())

    def padded(self, rows: slice) -> Places:
        """[rows, T] places of some rows' tokens, the last one repeated in rows with fewer."""
        first, lengths = self.first[rows, None], self.lengths[rows, None]
        places: Places = np.minimum(first + np.arange(lengths.max()), first + lengths - 1)
        return places

    def adjacent(self, rows: slice, device: torch.device) -> slice | Tensor:
        """The slots of some rows; as a slice if they are adjacent, because a view needs no copy."""
        slots = self.slots[rows]
        if slots[-1] - slots[0] == len(slots) - 1:
            return slice(int(slots[0]), int(slots[-1]) + 1)
        return torch.from_numpy(slots).to(device)


def _side_by_side(rows: list[Unread], device: torch.device) -> Layout:
    flat = _Flat(rows)
    places = flat.padded(slice(None))
    positions = places + (flat.starts - flat.first)[:, None]
    return Layout(
        rows,
        ids=torch.from_numpy(flat.tokens[places]).to(device),
        slots=torch.from_numpy(flat.slots).to(device)[:, None],
        positions=torch.from_numpy(positions).to(device),
        read=flat.adjacent(slice(None), device),
        width=flat.width,
        last=1,
        placed=flat.placed(rows, places, device),
    )


def _one_after_another(groups: list[list[Unread]], device: torch.device) -> Layout:
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
