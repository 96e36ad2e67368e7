"""Attention over rows packed into one sequence; each completion attends to its prompt and itself only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "swarm_packed"
UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Attention options that packed attention does not support."""


TOGETHER_TOKENS = 128
"""A prompt and its completions attend in one call up to this many tokens: a call for each would take longer than what
the mask hides."""
FLOAT32_TOKENS = 256
"""On a CPU, calls over up to this many tokens are in float32: PyTorch's attention takes up to four times as long in
bfloat16, and as long for more tokens."""


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU's tensor on `device`, without waiting for what that is computing."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Packing(Protocol):
    """How the tokens of a packed sequence attend."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention of `query` [1, heads, tokens, D] to fewer or as many heads of keys: [1, tokens, heads, D]."""


@dataclass(frozen=True)
class Segments:
    """The segments of a packed sequence, in order."""

    lengths: Sequence[int]
    """Tokens of each."""
    prefixes: Sequence[int | None]
    """The segment that each one continues, which has no prefix itself; None for one that starts a row."""
    in_ranges: bool = False
    """Whether all attend in one call, by `Ranges`, or each in its own, by `Parts`."""

    def inputs(self, device: torch.device) -> dict[str, object]:
        """Arguments for calling the model."""
        kind = Ranges if self.in_ranges else Parts
        return {
            "packing": kind.of(self.lengths, self.prefixes, device),
            "attention_mask": torch.empty(1, 1, 1, 1, device=device),  # not read; without it the model builds its own
        }


@dataclass(frozen=True)
class Ranges:
    """Ranges of queries and of keys for a kernel that attends in all of them at once, on GPUs with CUDA."""

    queries: Tensor
    """[segments + 1] where each segment begins and the last one ends, int32."""
    keys: Tensor
    """[segments + 1] likewise of the keys that each one sees: those of its prefix, and its own."""
    indices: Tensor
    """[keys] where they are in the sequence."""
    longest: tuple[int, int]
    """At least the most queries and keys of a segment: powers of two, of which there are few."""

    @classmethod
    def of(cls, lengths: Sequence[int], prefixes: Sequence[int | None], device: torch.device) -> Ranges:
        """The ranges of segments, see `Segments`."""
        own = torch.tensor(lengths)
        seen = torch.tensor([0 if prefix is None else lengths[prefix] for prefix in prefixes])
        starts = own.cumsum(0) - own
        first = starts[[index if prefix is None else prefix for index, prefix in enumerate(prefixes)]]
        pieces = torch.stack([seen, own], dim=1).flatten()  # a prefix, then what continues it
        begins = torch.stack([first, starts], dim=1).flatten()
        indices = torch.arange(int(pieces.sum())) + (begins - pieces.cumsum(0) + pieces).repeat_interleave(pieces)
        longest = (power_of_two(int(own.max())), power_of_two(int((seen + own).max())))
        return cls(sent(_bounds(own), device), sent(_bounds(seen + own), device), sent(indices, device), longest)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """See `Packing`; in half precision."""
        queries, keys, values = (each[0].transpose(0, 1).to(value.dtype) for each in (query, key, value))
        keys, values = keys.index_select(0, self.indices), values.index_select(0, self.indices)
        return in_ranges(queries.contiguous(), keys, values, self.queries, self.keys, self.longest, scaling)[None]


def in_ranges(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Tensor,
    keys: Tensor,
    longest: tuple[int, int],
    scaling: float | None,
) -> Tensor:
    """Attention [tokens, heads, D] of each range of queries to its range of keys [keys, fewer heads, D].

    The last query of a range sees all of its keys, each one before it a key less. `queries`, `keys` and `longest` as
    in `Ranges`.
    """
    attended: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, queries, keys, *longest, 0.0, True, False, scale=scaling
    )[0]
    return attended


def _bounds(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def power_of_two(number: int) -> int:
    """The least one that is at least `number`, which is 1 or more."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True)
class Parts:
    """The parts of a packed sequence, in order; each attends in one call."""

    lengths: list[int]
    """Tokens of each part."""
    prefixes: list[int | None]
    """The part that each one continues, which has no prefix itself; None for a part that starts a row."""
    masks: list[Tensor | None]
    """[tokens, tokens of prefix and part] of each part, true where a token attends; None for plain causal attention."""

    @classmethod
    def of(cls, segments: Sequence[int], prefixes: Sequence[int | None], device: torch.device | str = "cpu") -> Parts:
        """The parts of segments, as in `Segments`: each is a separate part, or a prompt that its completions follow
        directly is one part with them."""
        followers: dict[int | None, list[int]] = {}
        for segment, prefix in enumerate(prefixes):
            followers.setdefault(prefix, []).append(segment)
        parts: list[list[int]] = []
        index: dict[int | None, int | None] = {None: None}
        first = 0
        while first < len(segments):
            family = [first, *followers.get(first, [])]
            index[first] = len(parts)
            parts.append(family if _attend_together(family, segments) else [first])
            first += len(parts[-1])
        lengths = [[segments[segment] for segment in part] for part in parts]
        before = [prefixes[part[0]] for part in parts]
        seen = [0 if prefix is None else segments[prefix] for prefix in before]
        longest = max(start + sum(part) for start, part in zip(seen, lengths, strict=True))
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        return cls(
            lengths=[sum(part) for part in lengths],
            prefixes=[index[prefix] for prefix in before],
            masks=[_mask(part, start, causal) for part, start in zip(lengths, seen, strict=True)],
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """See `Packing`."""
        repeats = query.shape[1] // key.shape[1]
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        queries, keys, values = (torch.split(tensor, self.lengths, dim=2) for tensor in (query, key, value))
        outputs = []
        for i, (prefix, mask) in enumerate(zip(self.prefixes, self.masks, strict=True)):
            outputs.append(
                _attend_part(
                    queries[i],
                    keys[i] if prefix is None else torch.cat([keys[prefix], keys[i]], dim=2),
                    values[i] if prefix is None else torch.cat([values[prefix], values[i]], dim=2),
                    mask,
                    scaling,
                )
            )
        return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _attend_together(family: Sequence[int], segments: Sequence[int]) -> bool:
    """Whether a prompt and the segments that continue it, if any, attend in one call."""
    if family != list(range(family[0], family[0] + len(family))):
        return False
    return len(family) <= 2 or sum(segments[segment] for segment in family) <= TOGETHER_TOKENS


def _mask(segments: Sequence[int], seen: int, causal: Tensor) -> Tensor | None:
    """The mask of a part of these segments, which follows `seen` tokens of its prefix; `causal` is [S, S]."""
    end = seen + sum(segments)
    if seen:
        return causal[seen:end, :end]
    if len(segments) <= 2:  # one completion may see all of the prompt
        return None
    owner = torch.arange(len(segments)).repeat_interleave(torch.tensor(segments)).to(causal.device)
    return causal[:end, :end] & ((owner == owner[:, None]) | (owner == 0))


def packed_attention(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Within the block, the model accepts a `packing`; calls without one attend as before, so that other threads can
    use it."""
    return attending_as(model, NAME)


@contextmanager
def attending_as(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Within the block, the model attends by the registered function of this name."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
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
    return packing.attend(query, key, value, scaling), None


def _attend_part(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """One call, [1, heads, tokens, D]."""
    work = partial(scaled_dot_product_attention, attn_mask=mask, is_causal=mask is None, scale=scaling)
    if value.dtype is not torch.bfloat16 or query.device.type != "cpu" or key.shape[2] > FLOAT32_TOKENS:
        return work(query, key, value)
    with torch.autocast("cpu", enabled=False):
        return work(query.float(), key.float(), value.float()).to(value.dtype)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
