"""How rows are cut into minibatches and micro-batches, and laid out for a forward pass: padded or packed."""

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
    """A prompt and a completion of it, at least one token each."""

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
    """R rows as one forward pass takes them, padded or packed; N completion tokens in all, row after row."""

    ids: Tensor
    """[B, L]"""
    lengths: Tensor
    """[R] completion tokens of each row."""
    targets: Tensor
    """[N] completion tokens."""
    predictors: Tensor
    """[N] where in the flattened [B * L] the output lies that predicts each of them."""
    pieces: list[Piece]
    """Which tokens of which row the flattened [B * L] is made of."""
    positions: Tensor | None = None
    """[B, L]; None counts from 0 in each row."""
    packing: Packing | None = None


class Batching(Protocol):
    """Padded or packed. What is computed is the same."""

    def cut(self, rows: Sequence[R], max_tokens: int) -> Iterator[list[R]]:
        """Micro-batches of at most `max_tokens` as `lay_out` makes them, or of one row."""
        ...

    def lay_out(self, rows: Sequence[Tokens]) -> Layout:
        """One forward pass of all `rows`."""
        ...

    def attention(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Within, `model` accepts what `lay_out` makes."""
        ...


class Padded:
    """A row of the batch for each completion with its prompt, padded on the right: causal attention needs no mask."""

    def cut(self, rows: Sequence[R], max_tokens: int) -> Iterator[list[R]]:
        """Rows of similar length together."""
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
    """All in one sequence, each prompt once with its completions after it; no padding."""

    def cut(self, rows: Sequence[R], max_tokens: int) -> Iterator[list[R]]:
        """Rows in their order, so that those of one prompt stay together."""
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
        # A completion's first token is predicted by the last one of its prompt, wherever that is.
        predictors[own.cumsum(0) - own] = ends[[prefix for prefix in prefixes if prefix is not None]] - 1
        longest = int((before + lengths).max())
        return Layout(
            ids=torch.tensor(list(chain.from_iterable(segments)))[None],
            lengths=own,
            targets=torch.tensor(list(chain.from_iterable(row.completion for row in rows))),
            predictors=predictors,
            pieces=pieces,
            positions=_ranges(before, lengths)[None],
            packing=Packing(
                lengths=lengths.tolist(),
                prefixes=tuple(prefixes),
                causal=torch.ones(longest, longest, dtype=torch.bool).tril(),
            ),
        )

    def attention(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """One that knows where a prompt and a completion begin and end."""
        return packed_attention(model)


def minibatches(groups: Sequence[list[R]], num_parts: int) -> list[list[R]]:
    """Whole groups dealt into `num_parts`; fewer when there are fewer groups."""
    num_parts = min(num_parts, len(groups))
    return [[row for group in groups[i::num_parts] for row in group] for i in range(num_parts)]


def _length(row: Tokens) -> int:
    return len(row.prompt) + len(row.completion)


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """start, start + 1, ..., `length` numbers for each of R starts, one after the other: [sum of lengths]."""
    return torch.arange(int(lengths.sum())) + (starts - lengths.cumsum(0) + lengths).repeat_interleave(lengths)
