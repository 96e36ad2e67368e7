"""Sketches of the gradient of each group of an update, read from the update's own passes.

A linear layer's gradient is the sum over tokens t of d_t a_t^T, with a_t [in] its input and d_t [out] the loss's
gradient at its output. Hooks read both, a random projection shortens them to at most `MAX_WIDTH` numbers, and sums over
a group's tokens are its sketch: inner products of sketches estimate those of gradients. Nothing is computed twice, and
the update does not change. Source: arXiv:2405.13954, section 3 (LoGra), with random projections.

Deviations: at most `MAX_LAYERS` layers, a random selection of all; layers with inputs of one size share a projection,
and so do those with outputs of one size; embeddings, norms and the output head are left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from swarm.policy.experts import Piece
from swarm.policy.loading import Policy
from swarm.training.config import UpdateSettings
from swarm.training.rows import Row

MAX_LAYERS = 64
MAX_WIDTH = 64
"""A sketch has at most 64 x 64 x 64 numbers: one MiB for each group of an update."""


class Sketcher:
    """Sketches the steps of an update's first epoch on request. See `GradientSketcher`."""

    def __init__(self, policy: Policy, settings: UpdateSettings) -> None:
        """Sketch the gradients of the linear layers that `policy` trains."""
        self.seconds = 0.0
        """Time spent in hooks so far."""
        self.active = False
        """Whether gradients are being read."""
        self._device = policy.device
        self._layers = _layers(policy)
        self.refusal = _refusal(policy, settings, self._layers)
        self._projections: dict[tuple[bool, int], Tensor] = {}
        self._wanted = False
        self._owners: dict[int, int] = {}
        """The group of each row, by the row's identity, before its step."""
        self._step: dict[int, int] = {}
        """The same of the current step's rows."""
        self._read: set[int] = set()
        """Rows of the step whose gradient is in the sketches."""
        self._sizes: dict[int, int] = {}
        """Groups in the step of each group."""
        self._tokens: list[tuple[int, Tensor]] = []
        """The current micro-batch: groups, and which of its tokens are theirs."""
        self._num_tokens = 0
        self._sketches: list[Tensor] | None = None
        """Sketches of each layer, [groups, out, in]."""

    def begin_sketches(self) -> None:
        """Sketch the groups of the next update."""
        self._wanted, self._sketches = True, None

    def expect(self, groups: Sequence[Sequence[Row]]) -> None:
        """The groups of an update, before its first step."""
        self._owners = {id(row): owner for owner, rows in enumerate(groups) for row in rows}
        if self._wanted:
            self._sizes = {}
            self._sketches = [
                torch.zeros(len(groups), *(min(size, MAX_WIDTH) for size in module.weight.shape), device=self._device)
                for module in self._layers
            ]

    @contextmanager
    def reading(self, rows: Sequence[Row]) -> Iterator[None]:
        """While the block computes the gradient of a step on `rows`, sketch their groups, once each, if wanted."""
        self._step = {id(row): self._owners.pop(id(row)) for row in rows if id(row) in self._owners}
        self.active = bool(self._step) and self._sketches is not None
        handles = []
        if self.active:
            self._clear()
            self._sizes |= dict.fromkeys(self._step.values(), len(set(self._step.values())))
            handles = [module.register_forward_hook(self._hook(layer)) for layer, module in enumerate(self._layers)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.active, self._step, self._tokens = False, {}, []

    def owner(self, row: Row) -> int | None:
        """The group of a row of the current step, in an update's first epoch."""
        return self._step.get(id(row))

    def follow(self, rows: Sequence[Row], pieces: Sequence[Piece]) -> None:
        """The next forward pass is of these rows, in these pieces."""
        fresh = {id(row) for row in rows}
        if fresh & self._read:  # memory ran out: the gradient is computed again, in smaller parts
            self._clear()
        self._read |= fresh
        owners = [self._step[id(rows[piece.row])] for piece in pieces]
        lengths = [piece.num_tokens + piece.padding for piece in pieces]
        owner = torch.tensor(owners).repeat_interleave(torch.tensor(lengths)).to(self._device)
        self._tokens = [(each, (owner == each).nonzero()[:, 0]) for each in sorted(set(owners))]
        self._num_tokens = len(owner)

    def take_sketches(self) -> npt.NDArray[np.float32] | None:
        """The update's sketches [groups, numbers] since `begin_sketches`, each times the number of groups in its step.

        Groups without a token have none.
        """
        sketches, self._sketches, self._wanted, self._owners = self._sketches, None, False, {}
        if sketches is None:
            return None
        whole = torch.cat([each.flatten(1) for each in sketches], dim=1)
        sizes = torch.tensor([[self._sizes.get(owner, 0)] for owner in range(len(whole))], device=self._device)
        found: npt.NDArray[np.float32] = (whole * sizes).cpu().numpy()
        return found

    def _clear(self) -> None:
        """Forget the gradient of the current step's groups."""
        self._read = set()
        for sketch in self._sketches or ():
            sketch[sorted(set(self._step.values()))] = 0

    def _hook(self, layer: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        """A forward hook that keeps the layer's projected input until the gradient of its output arrives."""

        def forward(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.requires_grad or output.shape[:-1].numel() != self._num_tokens:
                return  # generation in another thread, or the head's stand-in
            began = time.perf_counter()
            inputs = self._projected(args[0].detach(), is_input=True)
            tokens, sketch = self._tokens, (self._sketches or [])[layer]

            def backward(gradient: Tensor) -> None:
                began = time.perf_counter()
                outputs = self._projected(gradient.detach(), is_input=False)
                for owner, indices in tokens:
                    sketch[owner].addmm_(outputs[indices].T, inputs[indices])
                self.seconds += time.perf_counter() - began

            output.register_hook(backward)  # type: ignore[no-untyped-call]
            self.seconds += time.perf_counter() - began

        return forward

    def _projected(self, vectors: Tensor, is_input: bool) -> Tensor:
        """[..., size] as float32 [tokens, at most `MAX_WIDTH`], inner products kept in expectation."""
        flat = vectors.flatten(0, -2).float()
        size = flat.shape[1]
        if size <= MAX_WIDTH:
            return flat
        key = (is_input, size)
        if key not in self._projections:
            source = torch.Generator().manual_seed(2 * size + is_input)
            matrix = torch.randn(size, MAX_WIDTH, generator=source) / MAX_WIDTH**0.5
            self._projections[key] = matrix.to(flat.device)
        # A forward hook runs within autocast, which would return the product in half precision.
        with torch.autocast(flat.device.type, enabled=False):
            return flat @ self._projections[key]


def _layers(policy: Policy) -> list[nn.Linear]:
    """The trained linear layers to read, without the output head; a selection of many."""
    head = policy.model.get_output_embeddings()
    layers = [
        module
        for module in policy.model.modules()
        if type(module) is nn.Linear and module.weight.requires_grad and module is not head
    ]
    chosen = sorted(random.Random(0).sample(range(len(layers)), min(MAX_LAYERS, len(layers))))
    return [layers[i] for i in chosen]


def _refusal(policy: Policy, settings: UpdateSettings, layers: Sequence[nn.Linear]) -> str | None:
    if policy.ranks.size > 1:
        return "several processes share the policy"
    if policy.dtype is torch.float16:
        return "float16 scales the loss"
    if settings.compile:
        return "update.compile is set"
    return None if layers else "the model has no linear layers that are trained"
