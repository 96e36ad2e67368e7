"""What a model is given of sequences with media: embeddings instead of ids, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm.policy.media.encoder import Encoder
from swarm.policy.media.ids import FIRST_PLACE, PLACES, runs
from swarm.policy.media.processor import Reader


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
        """What the model is called with for ids [B, L]: `input_ids`, if there are no places among them.

        `changes` counts those of the policy's weights.
        """
        is_place = ids >= FIRST_PLACE
        if not bool(is_place.any()):
            return {"input_ids": ids}
        features = self._features(ids[is_place], changes)
        if features.shape[1] > 1:
            return self._with_deeper(model, ids, is_place, features)
        embeddings = model.get_input_embeddings()(ids.masked_fill(is_place, 0))
        placed = is_place.flatten().nonzero()[:, 0]
        spread = embeddings.flatten(0, -2).index_put((placed,), features[:, 0].to(embeddings))
        return {"inputs_embeds": spread.view_as(embeddings)}

    def _features(self, places: Tensor, changes: int) -> Tensor:
        """[places, D, H] their features."""
        offsets = places - FIRST_PLACE
        numbers = offsets // PLACES
        order, parts = [], []
        for number in set(numbers.tolist()):
            chosen = (numbers == number).nonzero()[:, 0]
            order.append(chosen)
            parts.append(self.encoder.features(self.reader[number], changes)[offsets[chosen] % PLACES])
        return torch.cat(parts)[torch.cat(order).argsort()]

    def _with_deeper(
        self, model: PreTrainedModel, ids: Tensor, is_place: Tensor, features: Tensor
    ) -> dict[str, object]:
        """For a model that takes features of its encoder in several layers: they go where their token is.

        A policy may have sampled this token: its embedding, and nothing in deeper layers, is its feature.
        """
        token = self.reader.feature_id("image")
        named = ids.masked_fill(is_place, token)
        of_medium = is_place[named == token]
        spread = features.new_zeros(len(of_medium), *features.shape[1:])
        spread[of_medium] = features
        spread[~of_medium, 0] = model.get_input_embeddings()(ids[~is_place & (ids == token)]).to(features)
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
