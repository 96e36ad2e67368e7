"""Mixture-of-experts models: expert choices recorded at generation, replayed in training; experts in half precision.

Engine and trainer compute with the same weights in a different order. When two experts score almost equally, rounding
decides the choice, and the token's log-probability differs by far more than rounding. Only the choice is replayed: the
experts' weights are recomputed, so that routers still learn. Source: arXiv:2510.11370.

Autocast casts the matrix products of linear layers, but not the grouped ones of transformers' experts, which take their
weights' type: they are cast here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from swarm.errors import PolicyError

Routing = npt.NDArray[np.uint16]
"""Expert ids [tokens, layers, k]."""

STORED = np.dtype("<u2")
LAYER = re.compile(r"\.layers\.(\d+)\.")
"""In the name of a module, the number of its layer."""
PROBE_TOKENS = 8
PROBE_TOLERANCE = 1e-3
"""Tolerance for bfloat16 weights; another rule differs by more."""


@dataclass(frozen=True)
class Piece:
    """Adjacent tokens of a forward pass that belong to one row, and padding after them."""

    row: int
    start: int
    """Position of the first token in prompt and completion."""
    num_tokens: int
    padding: int = 0


class Routers:
    """A model's routers, in the order of its layers."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises `PolicyError` for a model without routers or with an unknown routing rule."""
        found = {name: module for name, module in model.named_modules() if type(module).__name__.endswith("TopKRouter")}
        if not found:
            raise PolicyError(f"{type(model).__name__} has no known routers; set policy.routing_replay to false")
        self._modules = list(found.values())
        self._layers = [int(number) for name in found for number in LAYER.findall(name)[-1:]]
        """The numbers of their layers in the model, which may have others without a router."""
        self._num_layers = int(model.config.get_text_config().num_hidden_layers)
        self._normalised = [_is_normalised(module) for module in self._modules]
        self._experts: Tensor | None = None

    @contextmanager
    def recorded(self) -> Iterator[list[Tensor]]:
        """Yields a list that receives the experts chosen in a forward pass: [tokens, k] per layer."""
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
        """Within the block, forward passes and their recomputation for the gradient use the records given to
        `replay`."""
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
        """Set the records for the next forward pass, whose rows are laid out in `pieces`.

        The router chooses for tokens without a record, such as those of other nodes.
        """
        known = next((record for record in records if record is not None), None)
        if known is None:
            self._experts = None
            return
        experts = np.full((sum(p.num_tokens + p.padding for p in pieces), *known.shape[1:]), -1, dtype=np.int64)
        start = 0
        for piece in pieces:
            record = records[piece.row]
            if record is not None:
                part = record[piece.start : piece.start + piece.num_tokens]
                experts[start : start + len(part)] = part
            start += piece.num_tokens + piece.padding
        self._experts = torch.from_numpy(experts).to(device)

    def read(self, stored: bytes, num_tokens: int) -> Routing | None:
        """The record of a sequence with `num_tokens` input tokens; None when there is none of that size."""
        flat = np.frombuffer(stored, STORED)
        top_k = int(self._modules[0].top_k)
        whole = len(flat) == num_tokens * len(self._modules) * top_k
        return flat.reshape(num_tokens, len(self._modules), top_k) if stored and whole else None

    def stored(self, reported: bytes, num_tokens: int) -> bytes:
        """A completion's record, from what an engine reports of all layers; empty if that is of another size."""
        top_k = int(self._modules[0].top_k)
        flat = np.frombuffer(reported, STORED)
        if len(flat) != num_tokens * self._num_layers * top_k or len(self._layers) != len(self._modules):
            return b""
        return flat.reshape(num_tokens, self._num_layers, top_k)[:, self._layers].tobytes()

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
    """Combine the list from `Routers.recorded` of one forward pass."""
    routing: Routing = torch.stack(list(chosen), dim=1).cpu().numpy().astype(STORED)
    return routing


def _weights(logits: Tensor, experts: Tensor, normalised: bool) -> Tensor:
    """[tokens, k] from logits [tokens, experts], at least float32."""
    weights = torch.softmax(logits.float() if logits.dtype != torch.float64 else logits, dim=-1).gather(-1, experts)
    return weights / weights.sum(dim=-1, keepdim=True) if normalised else weights


@torch.no_grad()
def _is_normalised(router: nn.Module) -> bool:
    """Whether the weights of the chosen experts sum to 1, tested on a few states."""
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
        f"the routing of {type(router).__name__} cannot be replayed: its weights are not a softmax; set "
        "policy.routing_replay to false"
    )


GROUPED, CAST = "grouped_mm", "swarm_grouped_mm"
"""The names of transformers' implementation, and of the same with casts."""


def cast_experts(model: PreTrainedModel) -> None:
    """Make experts that are computed by grouped products take part in autocast."""
    chosen = model.get_experts_implementation()
    model.set_experts_implementation({part: CAST if each == GROUPED else each for part, each in chosen.items()})


def are_cast(module: nn.Module) -> bool:
    """Whether a module holds experts whose parameters `cast_experts` casts."""
    values = vars(module)
    return "is_concatenated" in values and values["config"]._experts_implementation == CAST


class _Rounded:
    """Experts as transformers' function sees them: parameters in another type, all else as it is."""

    def __init__(self, experts: nn.Module, dtype: torch.dtype) -> None:
        self._experts = experts
        self._dtype = dtype

    def __getattr__(self, name: str) -> object:
        value = getattr(self._experts, name)
        return value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _compute(experts: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    kind = hidden.device.type
    seen = _Rounded(experts, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else experts
    result: Tensor = grouped_mm_experts_forward(seen, hidden, chosen, weights)
    return result


ALL_EXPERTS_FUNCTIONS.register(CAST, _compute)
