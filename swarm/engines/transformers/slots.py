"""A KV cache of slots: one row per sequence, each with its own length, written in place.

A concatenated cache copies everything every step. Here a step writes one position per row; memory is copied only when
the slots grow by a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from swarm.engines.transformers.scheduler import Room, StepPlan, blocks
from swarm.policy.routing import Routing


@dataclass(frozen=True)
class LayerShape:
    """Shape of one layer's keys and values per token."""

    key: tuple[int, int]
    """(heads, dim)"""
    value: tuple[int, int]
    key_dtype: torch.dtype
    value_dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes per token."""
        keys = self.key[0] * self.key[1] * self.key_dtype.itemsize
        return keys + self.value[0] * self.value[1] * self.value_dtype.itemsize


@dataclass(frozen=True)
class Prefix:
    """Keys and values of a prefix, computed once and copied into the slots of all sequences that share it."""

    layers: list[tuple[Tensor, Tensor]]
    """(keys, values) per layer, each [heads, L, dim]."""
    length: int
    routing: Routing | None = None
    """The experts of its tokens, if recorded."""


@dataclass
class _Step:
    """The positions that a forward pass writes and reads."""

    rows: Tensor
    """[B]"""
    positions: Tensor
    """[B] position of each row's new token."""
    width: int
    """Width of the longest row with its new token."""


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer: keys and values [slots, heads, capacity, dim]."""

    is_sliding = False

    def __init__(self, shape: LayerShape, device: torch.device) -> None:
        """No slots yet."""
        super().__init__()
        self.keys = torch.zeros(0, shape.key[0], 0, shape.key[1], dtype=shape.key_dtype, device=device)
        self.values = torch.zeros(0, shape.value[0], 0, shape.value[1], dtype=shape.value_dtype, device=device)
        self.step: _Step | None = None

    def resize(self, num_slots: int, capacity: int, num_rows: int) -> None:
        """Resize and keep the first `num_rows` rows. New positions are zero, because masked values must be finite."""
        self.keys = _resized(self.keys, num_slots, capacity, num_rows)
        self.values = _resized(self.values, num_slots, capacity, num_rows)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows to other slots."""
        self.keys[targets] = self.keys[sources]
        self.values[targets] = self.values[sources]

    def write(self, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write the same prefix, [heads, L, dim] each, at the start of `rows`."""
        self.keys[rows, :, : keys.shape[1]] = keys.to(self.keys.dtype)
        self.values[rows, :, : values.shape[1]] = values.to(self.values.dtype)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one token per row, [B, heads, 1, dim] each; returns the rows' content, [B, heads, width, dim]."""
        assert self.step is not None
        rows, positions, width = self.step.rows, self.step.positions, self.step.width
        self.keys[rows, :, positions] = key_states[:, :, 0].to(self.keys.dtype)
        self.values[rows, :, positions] = value_states[:, :, 0].to(self.values.dtype)
        num_rows = len(rows)
        return self.keys[:num_rows, :, :width], self.values[:num_rows, :, :width]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: shapes are known in advance."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(length, offset) of the result of `update`."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens of the longest row before the step."""
        return self.step.width - 1 if self.step else 0

    def get_max_length(self) -> int:
        """None: -1."""
        return -1


class SlotCache(Cache):  # type: ignore[misc]
    """The layers' slots, resized and moved together."""

    def __init__(self, shapes: Sequence[LayerShape], room: Room, device: torch.device) -> None:
        """An empty cache; slots, and slots times width, stay within `room`."""
        super().__init__(layers=[SlotLayer(shape, device) for shape in shapes])
        self._room = room
        self._device = device
        self._num_slots = 0
        self._capacity = 0

    def arrange(self, plan: StepPlan) -> None:
        """Move rows, then resize for all rows of the plan."""
        if plan.moves:
            sources, targets = torch.tensor(plan.moves, device=self._device).unbind(dim=1)
            for layer in self.layers:
                layer.move(sources, targets)
        if plan.num_kept + len(plan.admitted) > self._num_slots or plan.width > self._capacity:
            self._resize(plan)

    def fill(self, rows: Sequence[int], prefix: Prefix) -> None:
        """Write a shared prefix into each of `rows`."""
        where = torch.tensor(rows, device=self._device)
        for layer, (keys, values) in zip(self.layers, prefix.layers, strict=True):
            layer.write(where, keys, values)

    def at(self, positions: Tensor, width: int) -> SlotCache:
        """Prepare a forward pass that writes one token per row at `positions` [B]."""
        step = _Step(torch.arange(len(positions), device=self._device), positions, width)
        for layer in self.layers:
            layer.step = step
        return self

    def _resize(self, plan: StepPlan) -> None:
        num_rows = plan.num_kept + len(plan.admitted)
        roomy = blocks(plan.width + plan.width // 4)
        self._capacity = roomy if num_rows * roomy <= self._room.tokens else blocks(plan.width)
        affordable = min(self._room.rows, self._room.tokens // self._capacity)
        self._num_slots = max(num_rows, min(affordable, plan.num_open))
        for layer in self.layers:
            layer.resize(self._num_slots, self._capacity, plan.num_kept)


def _resized(old: Tensor, num_slots: int, capacity: int, num_rows: int) -> Tensor:
    new = old.new_zeros(num_slots, old.shape[1], capacity, old.shape[3])
    width = min(capacity, old.shape[2])
    new[:num_rows, :, :width] = old[:num_rows, :, :width]
    return new
