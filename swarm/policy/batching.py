"""Splits rows into minibatches and micro-batches, and lays them out for a forward pass: padded or packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from swarm.policy.attention import Segments, packed_attention
from swarm.policy.experts import Piece


class Insert(NamedTuple):
    """Tokens of the environment or the engine within a completion: the model reads them, and never predicts them."""

    after: int
    """Completion tokens before it."""
    ids: Sequence[int]
    within: bool = False
    """Whether it is within a turn, as the end of a thought that the engine inserts."""


class Tokens(Protocol):
    """A prompt and its completion, at least one token each."""

    @property
    def prompt(self) -> Sequence[int]:
        """Token ids."""

    @property
    def completion(self) -> Sequence[int]:
        """Token ids, the policy's own."""

    @property
    def inserts(self) -> Sequence[Insert]:
        """In their order; none in a completion of a single turn."""


R = TypeVar("R", bound=Tokens)


@dataclass(frozen=True)
class Layout:
    """R rows laid out for one forward pass, padded or packed; N completion tokens in total, row after row."""

    ids: Tensor
    """[B, L]"""
    lengths: Tensor
    """[R] completion tokens of each row."""
    targets: Tensor
    """[N] completion tokens, without inserts: a loss covers these and no others."""
    predictors: Tensor
    """[N] positions in the flattened [B * L] output that predict the targets."""
    pieces: list[Piece]
    """The row and tokens of each part of the flattened [B * L] input."""
    positions: Tensor | None = None
    """[B, L], or [D, B, L] for a model with D positions a token; None counts from 0 in each row."""
    packing: Segments | None = None


class Batching(Protocol):
    """Padded or packed; both compute the same."""

    def cut(self, rows: Sequence[R], max_tokens: int) -> Iterator[list[R]]:
        """Micro-batches of at most `max_tokens` tokens after `lay_out`, or of one row."""

    def lay_out(self, rows: Sequence[Tokens]) -> Layout:
        """One forward pass of all `rows`."""

    def attention(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Within the block, `model` accepts the layouts of `lay_out`."""


Positions = Callable[[Sequence[int]], Tensor]
"""[D, L] positions of a whole sequence of L tokens."""


class Padded:
    """One batch row per prompt and completion, padded on the right: causal attention needs no mask."""

    def __init__(self, positions: Positions | None = None) -> None:
        """`positions` are the model's; None where they count tokens."""
        self._positions = positions

    def cut(self, rows: Sequence[R], max_tokens: int) -> Iterator[list[R]]:
        """Micro-batches of rows of similar length."""
        micro: list[R] = []
        for row in sorted(rows, key=_length):
            if micro and (len(micro) + 1) * _length(row) > max_tokens:
                yield micro
                micro = []
            micro.append(row)
        if micro:
            yield micro

    def lay_out(self, rows: Sequence[Tokens]) -> Layout:
        """Ids [R, longest]."""
        lengths = torch.tensor([_length(row) for row in rows])
        width = int(lengths.max())
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        ids[torch.arange(width) < lengths[:, None]] = torch.tensor(
            list(chain.from_iterable(chain(row.prompt, _read(row)) for row in rows))
        )
        return Layout(
            ids=ids,
            lengths=torch.tensor([len(row.completion) for row in rows]),
            targets=torch.tensor(list(chain.from_iterable(row.completion for row in rows))),
            predictors=_predictors(rows, [i * width + len(row.prompt) for i, row in enumerate(rows)]),
            pieces=[Piece(i, 0, _length(row), width - _length(row)) for i, row in enumerate(rows)],
            positions=self._padded_positions(rows, width),
        )

    def _padded_positions(self, rows: Sequence[Tokens], width: int) -> Tensor | None:
        if self._positions is None:
            return None
        found = [self._positions([*row.prompt, *_read(row)]) for row in rows]
        return torch.stack([pad(each, (0, width - each.shape[1])) for each in found], dim=1)

    def attention(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """The model's own."""
        return nullcontext()


class Packed:
    """All rows in one sequence, each prompt once before its completions; no padding."""

    def __init__(self, positions: Positions | None = None, in_ranges: bool = False) -> None:
        """`positions` are the model's; None where they count tokens. `in_ranges` as in `Segments`."""
        self._positions = positions
        self._in_ranges = in_ranges

    def cut(self, rows: Sequence[R], max_tokens: int) -> Iterator[list[R]]:
        """Keep the order of rows, so that those of one prompt stay together."""
        micro: list[R] = []
        prompts: set[tuple[int, ...]] = set()
        num_tokens = 0
        for row in rows:
            prompt = tuple(row.prompt)
            added = _length(row) - (len(prompt) if prompt in prompts else 0)
            if micro and num_tokens + added > max_tokens:
                yield micro
                micro, prompts, num_tokens, added = [], set(), 0, _length(row)
            micro.append(row)
            prompts.add(prompt)
            num_tokens += added
        if micro:
            yield micro

    def lay_out(self, rows: Sequence[Tokens]) -> Layout:
        """Ids [1, tokens of all segments]."""
        segments: list[Sequence[int]] = []
        prefixes: list[int | None] = []
        pieces: list[Piece] = []
        known: dict[tuple[int, ...], int] = {}
        for i, row in enumerate(rows):
            prompt = tuple(row.prompt)
            if prompt not in known:
                known[prompt] = len(segments)
                segments.append(prompt)
                prefixes.append(None)
                pieces.append(Piece(i, 0, len(prompt)))
            segments.append(_read(row))
            prefixes.append(known[prompt])
            pieces.append(Piece(i, len(prompt), len(segments[-1])))
        lengths = torch.tensor([len(segment) for segment in segments])
        ends = lengths.cumsum(0)
        before = torch.tensor([0 if prefix is None else len(segments[prefix]) for prefix in prefixes])
        is_completion = torch.tensor([prefix is not None for prefix in prefixes])
        own = torch.tensor([len(row.completion) for row in rows])
        predictors = _predictors(rows, (ends - lengths)[is_completion].tolist())
        # The last token of its prompt predicts a completion's first token, unless an insert is between them.
        first = torch.tensor([not any(insert.ids for insert in row.inserts if insert.after == 0) for row in rows])
        of_prompts = ends[[prefix for prefix in prefixes if prefix is not None]] - 1
        predictors[(own.cumsum(0) - own)[first]] = of_prompts[first]
        return Layout(
            ids=torch.tensor(list(chain.from_iterable(segments)))[None],
            lengths=own,
            targets=torch.tensor(list(chain.from_iterable(row.completion for row in rows))),
            predictors=predictors,
            pieces=pieces,
            positions=_ranges(before, lengths)[None] if self._positions is None else self._placed(segments, prefixes),
            packing=Segments([len(segment) for segment in segments], prefixes, self._in_ranges),
        )

    def _placed(self, segments: Sequence[Sequence[int]], prefixes: Sequence[int | None]) -> Tensor:
        """[D, 1, tokens of all segments]"""
        assert self._positions is not None
        placed = []
        for segment, prefix in zip(segments, prefixes, strict=True):
            before = () if prefix is None else segments[prefix]
            placed.append(self._positions([*before, *segment])[:, len(before) :])
        return torch.cat(placed, dim=1)[:, None]

    def attention(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Packed attention, which respects the segments."""
        return packed_attention(model)


def minibatches(groups: Sequence[list[R]], num_parts: int) -> list[list[R]]:
    """Whole groups, distributed over `num_parts` parts, or fewer if there are fewer groups."""
    num_parts = min(num_parts, len(groups))
    return [[row for group in groups[i::num_parts] for row in group] for i in range(num_parts)]


def num_read(row: Tokens) -> int:
    """Tokens that the model reads after the prompt: those of the completion and of its inserts."""
    return len(row.completion) + sum(len(insert.ids) for insert in row.inserts)


def _length(row: Tokens) -> int:
    return len(row.prompt) + num_read(row)


def by_turn(row: Tokens) -> Iterator[slice]:
    """Each turn's slice of the completion."""
    begin = 0
    for insert in (*row.inserts, Insert(len(row.completion), ())):
        if not insert.within:
            yield slice(begin, insert.after)
            begin = insert.after


def _by_insert(row: Tokens) -> Iterator[tuple[slice, Sequence[int]]]:
    """Each slice of the completion up to an insert, and that insert's tokens."""
    begin = 0
    for insert in (*row.inserts, Insert(len(row.completion), ())):
        yield slice(begin, insert.after), insert.ids
        begin = insert.after


def _read(row: Tokens) -> Sequence[int]:
    """Completion with inserts, as the model reads them."""
    if not row.inserts:
        return row.completion
    return [token for part, shown in _by_insert(row) for token in (*row.completion[part], *shown)]


def _predictors(rows: Sequence[Tokens], starts: Sequence[int]) -> Tensor:
    """[N] the positions before each completion token; `starts` [R] are those of what follows the prompts."""
    begins, lengths = [], []
    for row, position in zip(rows, starts, strict=True):
        for part, shown in _by_insert(row):
            begins.append(position - 1)
            lengths.append(part.stop - part.start)
            position += lengths[-1] + len(shown)
    return _ranges(torch.tensor(begins), torch.tensor(lengths))


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenated ranges [start, start + length) for each of R starts: [sum of lengths]."""
    return torch.arange(int(lengths.sum())) + (starts - lengths.cumsum(0) + lengths).repeat_interleave(lengths)
