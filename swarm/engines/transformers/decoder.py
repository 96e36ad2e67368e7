"""The model's interface for the engine: prefill, and decode one token for every row."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from swarm.engines.transformers.scheduler import Room
from swarm.engines.transformers.slots import LayerShape, Prefix, SlotCache
from swarm.errors import EngineError
from swarm.policy.loading import Policy
from swarm.policy.logprobs import pad
from swarm.policy.routing import Routing, together

FORWARD = ("input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep")
ATTENTION = ("sdpa", "eager")
READ_TOKENS = 8_192
"""Padded tokens of one prefill pass."""


class Decoder:
    """Forward passes of one policy over a slot cache. Works with any causal model with a standard KV cache."""

    def __init__(self, policy: Policy) -> None:
        """Raises `EngineError` for a model with an unsupported cache or attention."""
        self._policy = policy
        self._windows = _windows(policy)
        self.shapes = self._probe()
        self.bytes_per_token = sum(shape.num_bytes for shape in self.shapes)
        self.vocabulary = int(policy.model.get_output_embeddings().weight.shape[0])

    def cache(self, room: Room) -> SlotCache:
        """An empty cache for this model."""
        return SlotCache(self.shapes, room, self._policy.device)

    def read(self, pasts: Sequence[list[int]]) -> list[Prefix]:
        """Keys and values of each prefix, in a few forward passes over prefixes of similar length."""
        prefixes = [Prefix(self._nothing(), 0)] * len(pasts)
        for batch in _batches([len(past) for past in pasts], READ_TOKENS):
            for i, prefix in zip(batch, self._read_together([pasts[i] for i in batch]), strict=True):
                prefixes[i] = prefix
        return prefixes

    def step(self, cache: SlotCache, tokens: Sequence[int], positions: Sequence[int]) -> tuple[Tensor, Routing | None]:
        """Feed one token per row; returns logits [B, V] of the next tokens, and the experts of the fed ones."""
        device = self._policy.device
        where = torch.tensor(positions, device=device)[:, None]
        width = max(positions) + 1
        with self._policy.compute(), self._recorded() as chosen:
            output = self._policy.model(
                input_ids=torch.tensor(tokens, device=device)[:, None],
                attention_mask=self._mask(where, width),
                position_ids=where,
                past_key_values=cache.at(where, width),
                use_cache=True,
            )
        logits: Tensor = output.logits[:, -1]
        return logits, together(chosen) if chosen else None

    def extend(
        self, cache: SlotCache, rows: Sequence[int], starts: Sequence[int], tokens: Sequence[list[int]]
    ) -> list[Routing | None]:
        """Feed each of `rows` some tokens after its first `starts`; returns the experts of the fed ones."""
        routing: list[Routing | None] = [None] * len(rows)
        for batch in _batches([len(each) for each in tokens], READ_TOKENS):
            fed = self._extend_together(
                cache, [rows[i] for i in batch], [starts[i] for i in batch], [tokens[i] for i in batch]
            )
            for i, experts in zip(batch, fed, strict=True):
                routing[i] = experts
        return routing

    def _recorded(self) -> AbstractContextManager[list[Tensor]]:
        return self._policy.routers.recorded() if self._policy.routers is not None else nullcontext([])

    def _mask(self, positions: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """Attention mask [B, 1, T, width] of tokens at `positions` [B, T], 0 or minus infinity; by layer type if there
        are several."""
        places = torch.arange(width, device=positions.device)
        masks = {}
        for kind, window in self._windows.items():
            hidden = places > positions[:, :, None]
            if window is not None:
                hidden |= places <= positions[:, :, None] - window
            mask = torch.zeros(hidden.shape, dtype=self.shapes[0].key_dtype, device=positions.device)
            masks[kind] = mask.masked_fill_(hidden, -torch.inf)[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _extend_together(
        self, cache: SlotCache, rows: Sequence[int], starts: Sequence[int], tokens: Sequence[list[int]]
    ) -> list[Routing | None]:
        """One pass. A row with fewer tokens repeats its last one at the same place, which writes the same again."""
        longest = max(map(len, tokens))
        ids = [[*each, *each[-1:] * (longest - len(each))] for each in tokens]
        ends = [start + len(each) - 1 for start, each in zip(starts, tokens, strict=True)]
        places = [[min(start + i, end) for i in range(longest)] for start, end in zip(starts, ends, strict=True)]
        device = self._policy.device
        where, width = torch.tensor(places, device=device), max(ends) + 1
        with self._policy.compute(), self._recorded() as chosen:
            self._policy.model(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=self._mask(where, width),
                position_ids=where,
                past_key_values=cache.at(where, width, rows),
                use_cache=True,
                logits_to_keep=1,
            )
        if not chosen:
            return [None] * len(rows)
        routing = together(chosen).reshape(len(rows), longest, len(chosen), -1)
        return [experts[: len(each)] for experts, each in zip(routing, tokens, strict=True)]

    def _read_together(self, pasts: list[list[int]]) -> list[Prefix]:
        """One pass, padded on the right: causal attention ignores the padding, so it needs no mask."""
        ids, _ = pad(pasts, pasts[0][0])  # transformers warns about pad tokens without a mask
        with self._recorded() as chosen:
            cache = self._read_padded(ids.to(self._policy.device))
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        routing = together(chosen).reshape(*ids.shape, len(chosen), -1) if chosen else None
        return [
            Prefix(
                [(keys[row, :, : len(past)], values[row, :, : len(past)]) for keys, values in layers],
                len(past),
                routing[row, : len(past)] if routing is not None else None,
            )
            for row, past in enumerate(pasts)
        ]

    def _read_padded(self, ids: Tensor) -> DynamicCache:
        cache = DynamicCache()
        with self._policy.compute():
            self._policy.model(
                input_ids=ids,
                attention_mask=None,
                position_ids=torch.arange(ids.shape[1], device=ids.device)[None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return cache

    def _nothing(self) -> list[tuple[Tensor, Tensor]]:
        """The empty prefix of a one-token sequence."""
        return [
            (
                torch.zeros(shape.key[0], 0, shape.key[1], device=self._policy.device),
                torch.zeros(shape.value[0], 0, shape.value[1], device=self._policy.device),
            )
            for shape in self.shapes
        ]

    @torch.no_grad()
    def _probe(self) -> list[LayerShape]:
        """Shapes that each layer stores per token, found by running the model on one."""
        policy = self._policy
        token = torch.full((1, 1), policy.pad_id, device=policy.device)
        cache = policy.ranks.forward(lambda: self._read_padded(token))
        if len(cache.layers) != len(DynamicCache(config=policy.model.config).layers):
            raise EngineError(f"{policy.name} does not keep keys and values of every layer, which this engine needs")
        return [
            LayerShape(
                (layer.keys.shape[1], layer.keys.shape[3]),
                (layer.values.shape[1], layer.values.shape[3]),
                layer.keys.dtype,
                layer.values.dtype,
            )
            for layer in cache.layers
        ]


def _windows(policy: Policy) -> dict[str, int | None]:
    """The window of each of the model's attention types; None is unlimited."""
    config = policy.model.config
    missing = [name for name in FORWARD if name not in inspect.signature(policy.model.forward).parameters]
    if missing:
        raise EngineError(f"the forward pass of {policy.name} takes no {', '.join(missing)}, which this engine needs")
    if config._attn_implementation not in ATTENTION:
        raise EngineError(
            f"{policy.name} attends with {config._attn_implementation!r}, this engine needs one of "
            f"{', '.join(ATTENTION)}: load the model with attn_implementation='sdpa'"
        )
    windows: dict[str, int | None] = {}
    for layer in DynamicCache(config=config).layers:
        window = layer.sliding_window if type(layer) is DynamicSlidingWindowLayer else None
        kind = "full_attention" if window is None else "sliding_attention"
        known = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
        # Chunked attention stores the same cache as a sliding window but attends differently.
        chunked = getattr(config, "attention_chunk_size", None) is not None
        if not known or (window and chunked) or windows.setdefault(kind, window) != window:
            raise EngineError(
                f"{policy.name} has layers of another kind than full attention and one sliding window, got "
                f"{type(layer).__name__} with a window of {window}: this engine cannot fill their cache"
            )
    return windows


def _batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of the non-empty entries, grouped by similar length, each batch within `max_tokens` when padded."""
    batch: list[int] = []
    for i in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[i] > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
