"""Inputs of a model for sequences with media: embeddings instead of ids, and positions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from swarm.errors import PolicyError
from swarm.policy.media.features import FIRST_SLOT, NUM_SLOTS, Encoder, Kind, Medium, is_slot, runs
from swarm.policy.media.processor import Reader, read_processor
from swarm.policy.probing import TOLERANCE
from swarm.types.media import Audio, Image


class MediaInputs:
    """The inputs of one policy's forward passes."""

    def __init__(self, reader: Reader, encoder: Encoder, has_grid: bool) -> None:
        """`has_grid`: positions have three dimensions."""
        self.reader = reader
        self.encoder = encoder
        self.has_grid = has_grid

    @property
    def has_layers(self) -> bool:
        """Whether features enter several layers, as DeepStack has it."""
        return self.encoder.num_layers > 1

    def read_by(self, encoder: Encoder) -> MediaInputs:
        """The same sequences for another model of the kind, whose encoder this is."""
        return MediaInputs(self.reader, encoder, self.has_grid)

    def given(self, model: PreTrainedModel, ids: Tensor, changes: int = 0) -> dict[str, object]:
        """The model's inputs for ids [B, L]: `input_ids`, if there are no slots among them.

        `changes` counts those of the policy's weights.
        """
        is_slot = ids >= FIRST_SLOT
        if not bool(is_slot.any()):
            return {"input_ids": ids}
        features = self._features(ids[is_slot], changes)
        if features.shape[1] > 1:
            return self._with_deeper(model, ids, is_slot, features)
        embeddings = model.get_input_embeddings()(ids.masked_fill(is_slot, 0))
        placed = is_slot.flatten().nonzero()[:, 0]
        spread = embeddings.flatten(0, -2).index_put((placed,), features[:, 0].to(embeddings))
        return {"inputs_embeds": spread.view_as(embeddings)}

    def _features(self, slots: Tensor, changes: int) -> Tensor:
        """[slots, D, H] their features."""
        offsets = slots - FIRST_SLOT
        numbers = offsets // NUM_SLOTS
        order, parts = [], []
        for number in set(numbers.tolist()):
            chosen = (numbers == number).nonzero()[:, 0]
            order.append(chosen)
            parts.append(self.encoder.features(self.reader[number], changes)[offsets[chosen] % NUM_SLOTS])
        return torch.cat(parts)[torch.cat(order).argsort()]

    def _with_deeper(self, model: PreTrainedModel, ids: Tensor, is_slot: Tensor, features: Tensor) -> dict[str, object]:
        """For a model that takes features of its encoder in several layers: they go where their token is.

        A policy may have sampled this token: its embedding, and nothing in deeper layers, is its feature.
        """
        token = self.reader.feature_id("image")
        named = ids.masked_fill(is_slot, token)
        of_medium = is_slot[named == token]
        spread = features.new_zeros(len(of_medium), *features.shape[1:])
        spread[of_medium] = features
        spread[~of_medium, 0] = model.get_input_embeddings()(ids[~is_slot & (ids == token)]).to(features)
        layers = [(each,) for each in spread.unbind(dim=1)]
        output = SimpleNamespace(pooler_output=layers[0], deepstack_features=layers[1:])
        return {"input_ids": named, "mm_encoder_outputs": {"image": output}}

    def positions(self, ids: Sequence[int]) -> Tensor:
        """[3, L] positions of a whole sequence: text counts on from the largest before it.

        Source: Qwen2-VL, arXiv:2409.12191, section 2.1 (M-RoPE).
        """
        positions = torch.empty(3, len(ids), dtype=torch.long)
        read = following = 0
        for run in runs(ids):
            following = _count(positions, read, run.start, following)
            grid = self.reader[run.number].grid
            assert grid is not None  # all of the same model
            positions[:, run.start : run.start + run.length] = grid[:, run.first : run.first + run.length] + following
            following = int(positions[:, run.start : run.start + run.length].max()) + 1
            read = run.start + run.length
        _count(positions, read, len(ids), following)
        return positions


def _count(positions: Tensor, start: int, end: int, following: int) -> int:
    """Fill in positions of text; returns the next."""
    positions[:, start:end] = torch.arange(following, following + end - start)
    return following + end - start


HALF_TOLERANCE = 0.1
"""In nats, for weights in half precision."""
AROUND = (2, 3, 4)
"""Any tokens of text, before and after a medium."""


def read_media(
    source: str,
    revision: str | None,
    trust_remote_code: bool,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
) -> MediaInputs:
    """How a model with an encoder reads media, by its processor in a directory or on the hub; `dtype` is that of its
    forward passes. The tokenizer gets the processor's chat template if it has none.

    Raises `PolicyError`.
    """
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    base = model.base_model
    rope = getattr(base, "get_rope_index", None)
    reader = Reader(read_processor(source, model.config, **options), model.config, rope)
    if not reader.kinds:
        raise PolicyError(f"cannot find which token of {source!r} stands for a picture or sound")
    tokenizer.chat_template = tokenizer.chat_template or reader.template
    return MediaInputs(reader, Encoder(model, dtype), has_grid=rope is not None)


@torch.no_grad()
def check_reading(model: PreTrainedModel, media: MediaInputs) -> None:
    """Compare what follows a medium with the model's own way from processor to logits, on noise.

    Families that read media otherwise, such as those that look ahead within an image, would be sampled wrongly without
    a word. Raises `PolicyError`.
    """
    for kind in media.reader.kinds:
        medium = media.reader.medium(_noise(kind))
        sequence = [*AROUND, *medium.ids, *AROUND]
        ids = torch.tensor([sequence], device=model.device)
        given: dict[str, object] = dict(media.given(model, ids))
        if media.has_grid:
            given["position_ids"] = media.positions(sequence)[:, None].to(model.device)
        ours = model(**given, use_cache=False).logits[0, -1].float()
        theirs = model(**_own_inputs(model, media.reader, medium, sequence), use_cache=False).logits[0, -1].float()
        if hasattr(model.base_model, "rope_deltas"):
            model.base_model.rope_deltas = None  # what the model keeps for its own generation
        off = float((torch.log_softmax(ours, -1) - torch.log_softmax(theirs, -1)).abs().max())
        if off > (TOLERANCE if model.dtype is torch.float32 else HALF_TOLERANCE):
            raise PolicyError(
                f"{type(model).__name__} reads an {kind} in a way that is not known here: log-probabilities after one "
                f"differ by {off:.2g} nats from its own"
            )


def _noise(kind: Kind) -> Image | Audio:
    noise = np.random.default_rng(0)
    if kind == "image":
        return Image(64, 64, noise.integers(0, 256, (64, 64, 3), np.uint8).tobytes())
    return Audio(16_000, noise.integers(-9_999, 9_999, 8_000, np.int16).astype("<i2").tobytes())


def _own_inputs(model: PreTrainedModel, reader: Reader, medium: Medium, sequence: Sequence[int]) -> dict[str, Tensor]:
    """The processor's own inputs for a sequence with one medium."""
    token = reader.feature_id(medium.kind)
    ids = torch.tensor([[token if is_slot(each) else each for each in sequence]])
    kinds = (ids == token).int()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **medium.inputs}
    taken = inspect.signature(type(model).forward).parameters
    inputs |= {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in taken}
    return {name: value.to(model.device) for name, value in inputs.items()}
