"""A KV cache of slots: one row per sequence, each with its own length, updated in place.

A concatenated cache copies everything every step. Here a step writes one position per row; memory is copied only when
the slots grow by a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from swarm.engines.transformers.layout import Layout
from swarm.engines.transformers.scheduler import Room, StepPlan, blocks
from swarm.policy.experts import Routing


@dataclass(frozen=True)
class LayerShape:
    """Shape of one layer's keys and values per token."""

    key: tuple[int, int]
    """(heads, dim)"""
    value: tuple[int, int]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes per token."""
        return (self.key[0] * self.key[1] + self.value[0] * self.value[1]) * self.dtype.itemsize


@dataclass(frozen=True)
class Prefix:
    """Keys and values of a prefix, computed once and copied into the slots of all sequences that share it."""

    layers: list[tuple[Tensor, Tensor]]
    """(keys, values) per layer, each [heads, L, dim]."""
    length: int
    routing: Routing | None = None
    """The experts of its tokens, if recorded."""


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer: keys and values [slots, heads, capacity, dim]."""

    is_sliding = False

    def __init__(self, shape: LayerShape, device: torch.device) -> None:
        super().__init__()
        self.keys = torch.zeros(0, shape.key[0], 0, shape.key[1], dtype=shape.dtype, device=device)
        self.values = torch.zeros(0, shape.value[0], 0, shape.value[1], dtype=shape.dtype, device=device)
        self.step: Layout | None = None

    def resize(self, num_slots: int, capacity: int, num_rows: int) -> None:
        """Resize and keep the first `num_rows` rows. New positions are zero, because masked values must be finite."""
        self.keys = _resized(self.keys, num_slots, capacity, num_rows)
        self.values = _resized(self.values, num_slots, capacity, num_rows)

    def move(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Copy the first `width` tokens of rows to other slots."""
        self.keys[targets, :, :width] = self.keys[sources, :, :width]
        self.values[targets, :, :width] = self.values[sources, :, :width]

    def write(self, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write the same prefix, [heads, L, dim] each, at the start of `rows`."""
        self.keys[rows, :, : keys.shape[1]] = keys.to(self.keys.dtype)
        self.values[rows, :, : values.shape[1]] = values.to(self.values.dtype)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new tokens, [B, heads, T, dim] each; returns the slots to attend to, [slots, heads, width, dim]."""
        assert self.step is not None
        where, read, width = (self.step.slots, slice(None), self.step.positions), self.step.read, self.step.width
        self.keys[where] = key_states.transpose(1, 2).to(self.keys.dtype)
        self.values[where] = value_states.transpose(1, 2).to(self.values.dtype)
        return self.keys[read, :, :width], self.values[read, :, :width]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: shapes are known in advance."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(length, offset) of the result of `update`."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens of the longest row before the step, about."""
        return max(0, self.step.width - self.step.positions.shape[1]) if self.step else 0

    def get_max_length(self) -> int:
        """-1: there is no maximum."""
        return -1


class SlotCache(Cache):  # type: ignore[misc]
    """The layers' slots, resized and moved together."""

    def __init__(self, shapes: Sequence[LayerShape], room: Room, device: torch.device) -> None:
        """An empty cache; slots, and slots times width, stay within `room`."""
        super().__init__(layers=[SlotLayer(shape, device) for shape in shapes])
        self._room = room
        self._device = device
        self.num_slots = 0
        self.capacity = 0
        self.num_resized = 0
        """Number of resizes, each of which replaces all tensors."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(tensor.nbytes for layer in self.layers for tensor in (layer.keys, layer.values))

    @torch.inference_mode()
    def reset(self, room: Room) -> None:
        """Empty the cache and bound it by `room`; the number of slots stays."""
        self._room = room
        for layer in self.layers:
            layer.keys.zero_()
            layer.values.zero_()

    def num_tokens(self, plan: StepPlan) -> int:
        """Size of the slots after `arrange`."""
        num_slots, capacity = self._size(plan)
        return num_slots * capacity

    def arrange(self, plan: StepPlan) -> None:
        """Move rows, then resize for all rows of the plan."""
        if plan.moves:
            sources, targets = torch.tensor(plan.moves, device=self._device).unbind(dim=1)
            for layer in self.layers:
                layer.move(sources, targets, plan.width)
        size = self._size(plan)
        if size != (self.num_slots, self.capacity):
            self.num_slots, self.capacity = size
            self.num_resized += 1
            for layer in self.layers:
                layer.resize(*size, plan.num_kept)

    def fill(self, rows: Sequence[int], prefix: Prefix) -> None:
        """Write a shared prefix into each of `rows`."""
        where = torch.tensor(rows, device=self._device)
        for layer, (keys, values) in zip(self.layers, prefix.layers, strict=True):
            layer.write(where, keys, values)

    def copy(self, row: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """(keys, values) per layer of a row's first `length` tokens, each [heads, length, dim]."""
        return [(layer.keys[row, :, :length].clone(), layer.values[row, :, :length].clone()) for layer in self.layers]

    def at(self, layout: Layout) -> SlotCache:
        """Prepare a forward pass."""
        for layer in self.layers:
            layer.step = layout
        return self

    def _size(self, plan: StepPlan) -> tuple[int, int]:
        """(slots, capacity of each) for all rows of a plan: as now, if that is enough."""
        num_rows = plan.num_kept + len(plan.admitted)
        if num_rows <= self.num_slots and plan.width <= self.capacity:
            return self.num_slots, self.capacity
        roomy = blocks(plan.width + plan.width // 4)
        capacity = roomy if num_rows * roomy <= self._room.tokens else blocks(plan.width)
        affordable = min(self._room.rows, self._room.tokens // capacity)
        return max(num_rows, min(affordable, plan.num_open)), capacity


def _resized(old: Tensor, num_slots: int, capacity: int, num_rows: int) -> Tensor:
    new = old.new_zeros(num_slots, old.shape[1], capacity, old.shape[3])
    width = min(capacity, old.shape[2])
    new[:num_rows, :, :width] = old[:num_rows, :, :width]
    return new
