"""Splits rows into minibatches and micro-batches, and lays them out for a forward pass: padded or packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm.policy.attention import Packing, packed_attention
from swarm.policy.routing import Piece


class Tokens(Protocol):
    """A prompt and its completion, at least one token each."""

    @property
    def prompt(self) -> Sequence[int]:
        """Token ids."""
        ...

    @property
    def completion(self) -> Sequence[int]:
        """Token ids."""
        ...


R = TypeVar("R", bound=Tokens)


@dataclass(frozen=True)
class Layout:
    """R rows laid out for one forward pass, padded or packed; N completion tokens in total, row after row."""

    ids: Tensor
    """[B, L]"""
    lengths: Tensor
    """[R] completion tokens of each row."""
    targets: Tensor
    """[N] completion tokens."""
    predictors: Tensor
    """[N] positions in the flattened [B * L] output that predict the targets."""
    pieces: list[Piece]
    """The row and tokens of each part of the flattened [B * L] input."""
    positions: Tensor | None = None
    """[B, L]; None counts from 0 in each row."""
    packing: Packing | None = None


class Batching(Protocol):
    """Padded or packed; both compute the same."""

    def cut(self, rows: Sequence[R], max_tokens: int) -> Iterator[list[R]]:
        """Micro-batches of at most `max_tokens` tokens after `lay_out`, or of one row."""
        ...

    def lay_out(self, rows: Sequence[Tokens]) -> Layout:
        """One forward pass of all `rows`."""
        ...

    def attention(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Within the block, `model` accepts the layouts of `lay_out`."""
        ...


class Padded:
    """One batch row per prompt and completion, padded on the right: causal attention needs no mask."""

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
        prompts = torch.tensor([len(row.prompt) for row in rows])
        completions = torch.tensor([len(row.completion) for row in rows])
        width = int((prompts + completions).max())
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        ids[torch.arange(width) < (prompts + completions)[:, None]] = torch.tensor(
            list(chain.from_iterable(chain(row.prompt, row.completion) for row in rows))
        )
        return Layout(
            ids=ids,
            lengths=completions,
            targets=torch.tensor(list(chain.from_iterable(row.completion for row in rows))),
            predictors=_ranges(torch.arange(len(rows)) * width + prompts - 1, completions),
            pieces=[Piece(i, 0, _length(row), width - _length(row)) for i, row in enumerate(rows)],
        )

    def attention(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """The model's own."""
        return nullcontext()


class Packed:
    """All rows in one sequence, each prompt once before its completions; no padding."""

    def cut(self, rows: Sequence[R], max_tokens: int) -> Iterator[list[R]]:
        """Keep the order of rows, so that those of one prompt stay together."""
        micro: list[R] = []
        prompts: set[tuple[int, ...]] = set()
        num_tokens = 0
        for row in rows:
            prompt = tuple(row.prompt)
            added = len(row.completion) + (0 if prompt in prompts else len(prompt))
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
            segments.append(row.completion)
            prefixes.append(known[prompt])
            pieces.append(Piece(i, len(prompt), len(row.completion)))
        lengths = torch.tensor([len(segment) for segment in segments])
        ends = lengths.cumsum(0)
        before = torch.tensor([0 if prefix is None else len(segments[prefix]) for prefix in prefixes])
        is_completion = torch.tensor([prefix is not None for prefix in prefixes])
        own = lengths[is_completion]
        predictors = _ranges((ends - lengths)[is_completion] - 1, own)
        # The last token of its prompt predicts a completion's first token.
        predictors[own.cumsum(0) - own] = ends[[prefix for prefix in prefixes if prefix is not None]] - 1
        return Layout(
            ids=torch.tensor(list(chain.from_iterable(segments)))[None],
            lengths=own,
            targets=torch.tensor(list(chain.from_iterable(row.completion for row in rows))),
            predictors=predictors,
            pieces=pieces,
            positions=_ranges(before, lengths)[None],
            packing=Packing.of([len(segment) for segment in segments], prefixes),
        )

    def attention(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Packed attention, which respects the segments."""
        return packed_attention(model)


def minibatches(groups: Sequence[list[R]], num_parts: int) -> list[list[R]]:
    """Whole groups, distributed over `num_parts` parts, or fewer if there are fewer groups."""
    num_parts = min(num_parts, len(groups))
    return [[row for group in groups[i::num_parts] for row in group] for i in range(num_parts)]


def _length(row: Tokens) -> int:
    return len(row.prompt) + len(row.completion)


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenated ranges [start, start + length) for each of R starts: [sum of lengths]."""
    return torch.arange(int(lengths.sum())) + (starts - lengths.cumsum(0) + lengths).repeat_interleave(lengths)
