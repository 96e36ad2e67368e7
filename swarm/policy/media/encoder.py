"""Features of media: what a model's encoder makes of them, computed once and kept.

Those of a frozen encoder stay as they are: generation and updates share them. A trained one computes them anew in each
pass with gradient, and after each change of the weights.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from weakref import finalize

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from swarm.errors import PolicyError
from swarm.policy.media.ids import Kind, Medium

MAX_FEATURE_BYTES = 2**29
"""Of the features kept; those that were used longest ago go first, and are computed anew when they are needed."""
METHODS: Mapping[Kind, str] = MappingProxyType({"image": "get_image_features", "audio": "get_audio_features"})
"""Of a model, by what they encode."""


class Encoder:
    """The part of a model that reads media, frozen unless it is trained."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        """Features are kept in `dtype`."""
        self.num_layers = 1
        """That features enter; known once one has been computed."""
        self.is_trained = is_encoder_trained(model)
        self._model = model
        self.dtype = dtype
        """Of the features."""
        self._changes = 0
        """Of the weights that computed the features kept."""
        self._features: OrderedDict[int, Tensor] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.RLock()  # a medium may end at any time, also while this thread holds it

    def features(self, medium: Medium, changes: int) -> Tensor:
        """[places, D, H] features of a medium; the first of the D are embeddings, others are added to the hidden states
        of the first layers, as DeepStack does (arXiv:2406.04334). `changes` counts those of the policy's weights.

        Raises `PolicyError` if the model gives another number of them.
        """
        if self.is_trained and torch.is_grad_enabled():
            return self._computed(medium)
        with self._lock, torch.inference_mode(False), torch.no_grad():  # generation and updates may ask at once
            if self.is_trained and changes != self._changes:
                self.clear()
                self._changes = changes
            if (known := self._features.get(medium.number)) is not None:
                self._features.move_to_end(medium.number)
                return known
            found = self._computed(medium).to(self.dtype)
            self._features[medium.number] = found
            self._num_bytes += found.nbytes
            while self._num_bytes > MAX_FEATURE_BYTES and len(self._features) > 1:
                _, oldest = self._features.popitem(last=False)
                self._num_bytes -= oldest.nbytes
            finalize(medium, self._forget, medium.number)
            return found

    def clear(self) -> None:
        """Keep no features."""
        with self._lock:
            self._features.clear()
            self._num_bytes = 0

    def _computed(self, medium: Medium) -> Tensor:
        method = getattr(self._model, METHODS[medium.kind])
        taken = inspect.signature(method).parameters
        inputs = {name: self._sent(value) for name, value in medium.inputs.items() if name in taken}
        output = method(**inputs, return_dict=True)
        deeper = getattr(output, "deepstack_features", None) or ()
        found = torch.stack([_flat(output), *map(_flat, deeper)], dim=1)
        self.num_layers = 1 + len(deeper)
        if len(found) != medium.num_features:
            raise PolicyError(
                f"{type(self._model).__name__} gives {len(found)} features of a medium, its processor expects "
                f"{medium.num_features}: they do not match"
            )
        return found

    def _sent(self, value: Tensor) -> Tensor:
        """An input on the model's device, in the type of its weights."""
        return value.to(self._model.device, self._model.dtype if value.is_floating_point() else value.dtype)

    def _forget(self, number: int) -> None:
        with self._lock:
            if (dropped := self._features.pop(number, None)) is not None:
                self._num_bytes -= dropped.nbytes


def _flat(output: object) -> Tensor:
    """[places, H] of what a model's method returns, or a part of it."""
    found = output if isinstance(output, Tensor | tuple | list) else getattr(output, "pooler_output", None)
    if isinstance(found, tuple | list):
        found = torch.cat([each.flatten(0, -2) for each in found])
    if not isinstance(found, Tensor):
        raise PolicyError(f"cannot read the features in {type(output).__name__}")
    return found.flatten(0, -2)


def freeze_encoder(model: PreTrainedModel) -> None:
    """Train nothing but the part of the model that reads and writes text."""
    for parameter in encoder_parameters(model):
        parameter.requires_grad_(False)


def encoder_parameters(model: PreTrainedModel) -> list[nn.Parameter]:
    """Those outside the part that reads and writes text; none for a model that reads text only."""
    if not _has_encoder(model):
        return []
    language = {id(parameter) for parameter in model.get_decoder().parameters()}
    if (head := model.get_output_embeddings()) is not None:
        language |= {id(parameter) for parameter in head.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in language]


def is_encoder_trained(model: PreTrainedModel) -> bool:
    """Whether anything outside the part that reads and writes text is trained."""
    return any(parameter.requires_grad for parameter in encoder_parameters(model))


def encoder_layers(model: PreTrainedModel) -> list[str]:
    """Names of the layers outside the part that reads and writes text; none for a model that reads text only."""
    if not _has_encoder(model):
        return []
    language = {id(module) for module in model.get_decoder().modules()} | {id(model.get_output_embeddings())}
    return [name for name, module in model.named_modules() if id(module) not in language and not any(module.children())]


def _has_encoder(model: PreTrainedModel) -> bool:
    return any(hasattr(model, method) for method in METHODS.values())
