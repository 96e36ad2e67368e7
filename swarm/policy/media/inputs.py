"""What a model is given of sequences with media: embeddings instead of ids, and positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from swarm.errors import PolicyError
from swarm.policy.media.encoder import Encoder
from swarm.policy.media.ids import FIRST_PLACE, PLACES, runs
from swarm.policy.media.processor import Reader, read_processor


class MediaInputs:
    """The inputs of one policy's forward passes."""

    def __init__(self, reader: Reader, encoder: Encoder, has_grid: bool) -> None:
        """`has_grid`: positions have three dimensions."""
        self.reader = reader
        self.encoder = encoder
        self.has_grid = has_grid

    def given(self, model: PreTrainedModel, ids: Tensor) -> dict[str, Tensor]:
        """`input_ids` [B, L], or `inputs_embeds` [B, L, H] if there are places among them."""
        flat = ids.flatten()
        places = (flat >= FIRST_PLACE).nonzero()[:, 0]
        if not len(places):
            return {"input_ids": ids}
        embeddings = model.get_input_embeddings()(ids.masked_fill(ids >= FIRST_PLACE, 0))
        offsets = flat[places] - FIRST_PLACE
        features = torch.empty(len(places), embeddings.shape[-1], dtype=embeddings.dtype, device=embeddings.device)
        numbers = offsets // PLACES
        for number in set(numbers.tolist()):
            chosen = numbers == number
            found = self.encoder.features(self.reader[number])
            features[chosen] = found[(offsets[chosen] % PLACES).to(found.device)].to(features)
        spread = embeddings.flatten(0, -2).index_put((places,), features)
        return {"inputs_embeds": spread.view_as(embeddings)}

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


def _count(positions: Tensor, start: int, end: int, following: int) -> int:
    """Fill in positions of text; returns the next."""
    positions[:, start:end] = torch.arange(following, following + end - start)
    return following + end - start
