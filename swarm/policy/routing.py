"""Which experts a mixture-of-experts model sends a token to: recorded at generation, replayed in training.

Engine and trainer compute with the same weights in another order. Where two experts are nearly as good, rounding then
decides which one a token meets, and its log-probability differs by far more than rounding. Only the choice is replayed:
how much each expert counts is computed again, so routers learn as before. Source: arXiv:2510.11370.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from swarm.errors import PolicyError

Routing = npt.NDArray[np.uint16]
"""Expert ids [tokens, layers, k]."""

STORED = np.dtype("<u2")
PROBE_TOKENS = 8
PROBE_TOLERANCE = 1e-3
"""Of weights in bfloat16; those of another rule differ by more."""


@dataclass(frozen=True)
class Piece:
    """Adjacent tokens of a forward pass that belong to one row, and padding after them."""

    row: int
    start: int
    """The first one's place in prompt and completion."""
    num_tokens: int
    padding: int = 0


class Routers:
    """A model's routers, layer by layer."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises `PolicyError` for a model without routers, or with some whose rule is not known here."""
        self._modules = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
        if not self._modules:
            raise PolicyError(
                f"{type(model).__name__} has no routers that are known here; set policy.routing_replay to false"
            )
        self._normalised = [_is_normalised(module) for module in self._modules]
        self._experts: Tensor | None = None

    @contextmanager
    def recorded(self) -> Iterator[list[Tensor]]:
        """The list gets the experts that a forward pass within chooses: [tokens, k] a layer."""
        chosen: list[Tensor] = []

        def record(module: nn.Module, args: object, output: tuple[Tensor, ...]) -> None:
            chosen.append(output[2])

        hooks = [module.register_forward_hook(record) for module in self._modules]
        try:
            yield chosen
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Within, forward passes and what is computed again for their gradient go by what `replay` was told."""
        hooks = [
            module.register_forward_hook(self._replayed(layer, normalised))
            for layer, (module, normalised) in enumerate(zip(self._modules, self._normalised, strict=True))
        ]
        try:
            yield
        finally:
            self._experts = None
            for hook in hooks:
                hook.remove()

    def replay(self, records: Sequence[Routing | None], pieces: Sequence[Piece], device: torch.device) -> None:
        """The next forward pass is of rows with these records, laid out in `pieces`.

        Tokens without a record, such as those of other nodes, are sent where the router sends them now.
        """
        known = next((record for record in records if record is not None), None)
        if known is None:
            self._experts = None
            return
        experts = np.full((sum(p.num_tokens + p.padding for p in pieces), *known.shape[1:]), -1, dtype=np.int64)
        place = 0
        for piece in pieces:
            record = records[piece.row]
            if record is not None:
                part = record[piece.start : piece.start + piece.num_tokens]
                experts[place : place + len(part)] = part
            place += piece.num_tokens + piece.padding
        self._experts = torch.from_numpy(experts).to(device)

    def read(self, stored: bytes, num_tokens: int) -> Routing | None:
        """The record of a sequence of which `num_tokens` tokens were fed; None where there is none of that size."""
        flat = np.frombuffer(stored, STORED)
        top_k = int(self._modules[0].top_k)
        whole = len(flat) == num_tokens * len(self._modules) * top_k
        return flat.reshape(num_tokens, len(self._modules), top_k) if stored and whole else None

    def _replayed(self, layer: int, normalised: bool) -> Callable[[nn.Module, object, tuple[Tensor, ...]], object]:
        def hook(module: nn.Module, args: object, output: tuple[Tensor, ...]) -> object:
            if self._experts is None:
                return None
            logits, weights, own = output
            recorded = self._experts[:, layer]
            experts = torch.where(recorded >= 0, recorded, own)
            return logits, _weights(logits, experts, normalised).to(weights.dtype), experts

        return hook


def together(chosen: Sequence[Tensor]) -> Routing:
    """What `Routers.recorded` gave of one forward pass."""
    routing: Routing = torch.stack(list(chosen), dim=1).cpu().numpy().astype(STORED)
    return routing


def _weights(logits: Tensor, experts: Tensor, normalised: bool) -> Tensor:
    """[tokens, k] from logits [tokens, experts], at least float32."""
    weights = torch.softmax(logits.float() if logits.dtype != torch.float64 else logits, dim=-1).gather(-1, experts)
    return weights / weights.sum(dim=-1, keepdim=True) if normalised else weights


@torch.no_grad()
def _is_normalised(router: nn.Module) -> bool:
    """Whether the weights of the chosen experts add up to 1, seen by giving the router a few states."""
    matrix = router.weight
    assert isinstance(matrix, Tensor)
    states = torch.randn(PROBE_TOKENS, matrix.shape[-1], generator=torch.Generator().manual_seed(0))
    output = router(states.to(matrix.device, matrix.dtype))
    if isinstance(output, tuple) and len(output) == 3:
        logits, weights, experts = output
        for normalised in (True, False):
            expected = _weights(logits, experts, normalised)
            if expected.shape == weights.shape and torch.allclose(expected, weights.float(), atol=PROBE_TOLERANCE):
                return normalised
    raise PolicyError(
        f"the routing of {type(router).__name__} cannot be replayed: its weights are not those of a softmax; set "
        "policy.routing_replay to false"
    )
