"""Makes a model ready to read media, and compares how it then reads them with its own way."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from swarm.errors import PolicyError
from swarm.policy.media.encoder import Encoder
from swarm.policy.media.ids import Kind, Medium, is_place
from swarm.policy.media.inputs import MediaInputs
from swarm.policy.media.processor import Reader, read_processor
from swarm.policy.probing import TOLERANCE
from swarm.types.media import Audio, Image

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

    Families that read media otherwise, such as those that look ahead within a picture, would be sampled wrongly without
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
    """What the processor would give the model of a sequence with one medium."""
    token = reader.feature_id(medium.kind)
    ids = torch.tensor([[token if is_place(each) else each for each in sequence]])
    kinds = (ids == token).int()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **medium.inputs}
    taken = inspect.signature(type(model).forward).parameters
    inputs |= {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in taken}
    return {name: value.to(model.device) for name, value in inputs.items()}
