"""Media in sequences of token ids, and their features: computed once by a model's encoder and kept.

Ids from `FIRST_SLOT` on are slots for features. Features of a frozen encoder stay as they are: generation and updates
share them. A trained encoder computes them again in each pass with gradient, and after each change of the weights.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from types import MappingProxyType
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary, finalize

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from swarm.errors import PolicyError

MAX_FEATURE_BYTES = 2**29
"""Most bytes of features kept; the least recently used go first, and are computed again when needed."""
METHODS: Mapping[Kind, str] = MappingProxyType({"image": "get_image_features", "audio": "get_audio_features"})
"""A model's encoding methods, by kind of medium."""


class Encoder:
    """The part of a model that reads media, frozen unless it is trained."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        """Features are kept in `dtype`."""
        self.num_layers = 1
        """Layers that features enter; known once one has been computed."""
        self.is_trained = is_encoder_trained(model)
        self._model = model
        self.dtype = dtype
        self._changes = 0
        """Number of weight changes when the kept features were computed."""
        self._features: OrderedDict[int, Tensor] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.RLock()  # a medium may end at any time, also while this thread holds it

    def features(self, medium: Medium, changes: int) -> Tensor:
        """Features [N, D, H] of a medium; the first of the D are embeddings, others are added to the hidden states of
        the first layers, as DeepStack does (arXiv:2406.04334). `changes` counts those of the policy's weights.

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
    """[features, H] of what a model's method returns, or a part of it."""
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
    """Parameters outside the part that reads and writes text; none for a model that reads text only."""
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


FIRST_SLOT = 2**40
"""Ids from here on are slots for features: above every vocabulary."""
NUM_SLOTS = 2**20
"""Slots of one medium, at most."""
Kind = Literal["image", "audio"]
"""Kinds of encoder input; a clip is read as its frames."""


class Medium:
    """The tokens and features of one image, sound or frame; equal content is one medium while it is referenced."""

    def __init__(
        self, number: int, kind: Kind, ids: Sequence[int], inputs: Mapping[str, Tensor], grid: Tensor | None
    ) -> None:
        """`ids` are its tokens, with this medium's slots for its features."""
        self.number = number
        self.kind = kind
        self.ids = ids
        self.inputs = inputs
        """The encoder's inputs."""
        self.grid = grid
        """[3, features] temporal, vertical and horizontal position of each feature, from 0; None where positions are
        plain."""

    @property
    def num_features(self) -> int:
        """Slots among its tokens."""
        return sum(map(is_slot, self.ids))


class TokenIds(list[int]):
    """Token ids that keep the media alive whose slots are among them."""

    def __init__(self, ids: Iterable[int], media: Iterable[Medium]) -> None:
        """A separate sequence."""
        super().__init__(ids)
        self.media = tuple(media)


class Known:
    """The media that somebody holds, by content and by number."""

    def __init__(self) -> None:
        self._numbers = count()
        self._by_digest: WeakValueDictionary[str, Medium] = WeakValueDictionary()
        self._by_number: WeakValueDictionary[int, Medium] = WeakValueDictionary()

    def get(self, digest: str) -> Medium | None:
        """The medium of a content."""
        return self._by_digest.get(digest)

    def add(
        self,
        digest: str,
        kind: Kind,
        ids: Iterable[int | None],
        inputs: Mapping[str, Tensor],
        grid: Tensor | None = None,
    ) -> Medium:
        """A new medium; None among `ids` stands for the next feature."""
        number = next(self._numbers)
        slots = iter(range(first_slot(number), first_slot(number + 1)))
        medium = Medium(number, kind, [next(slots) if each is None else each for each in ids], inputs, grid)
        self._by_digest[digest] = medium
        self._by_number[number] = medium
        return medium

    def __getitem__(self, number: int) -> Medium:
        """The medium with a number, which somebody holds."""
        return self._by_number[number]


class Run(NamedTuple):
    """Neighbouring slots of one medium in a sequence."""

    start: int
    """Index in the sequence."""
    number: int
    """The medium's."""
    first: int
    """The medium's feature at `start`."""
    length: int


def joined(parts: Iterable[Sequence[int]]) -> list[int]:
    """Sequences one after another; keeps alive what they do."""
    parts = list(parts)
    ids = chain.from_iterable(parts)
    media = [medium for part in parts if isinstance(part, TokenIds) for medium in part.media]
    return TokenIds(ids, media) if media else list(ids)


def is_slot(token: int) -> bool:
    """Whether an id is the slot of a feature."""
    return token >= FIRST_SLOT


def first_slot(number: int) -> int:
    """The id of a medium's first feature."""
    return FIRST_SLOT + number * NUM_SLOTS


def runs(ids: Sequence[int]) -> Iterator[Run]:
    """The slots in a sequence, in order; neighbours of one medium together."""
    start = 0
    while start < len(ids):
        if not is_slot(ids[start]):
            start += 1
            continue
        end = start + 1
        while end < len(ids) and ids[end] == ids[end - 1] + 1:
            end += 1
        number, first = divmod(ids[start] - FIRST_SLOT, NUM_SLOTS)
        yield Run(start, number, first, end - start)
        start = end
