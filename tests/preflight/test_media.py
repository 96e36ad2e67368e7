"""What a policy needs that reads pictures and sounds, against the loaded one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swarm.config import NodeConfig
from swarm.policy.config import LoraSettings
from swarm.policy.reading import read_config
from swarm.preflight.duties import PEER
from swarm.preflight.model import measure
from swarm.preflight.need import MEDIA_TOKENS, Node
from tests import readers

PICTURES = {"kind": "shapes", "name": "shapes"}
TEXTS = {"kind": "number_guessing", "name": "guess"}


@pytest.mark.parametrize("family", readers.FAMILIES)
@pytest.mark.parametrize("rank", [0, 4])
def test_frozen_encoders_are_counted_as_weights_alone(family: str, rank: int, tmp_path: Path) -> None:
    policy = readers.load(family, tmp_path)
    lora = LoraSettings(rank=rank)
    size = measure(read_config(str(tmp_path), None, False), lora, lambda _: torch.float32)
    assert size.has_encoder
    assert size.problem == ""
    assert size.parameters == sum(weight.numel() for weight in policy.model.parameters())
    if rank == 0:
        assert size.trained == sum(weight.numel() for weight in policy.trained)
        assert size.weight_bytes == 4 * size.parameters
    else:
        assert size.frozen_bytes == 4 * size.parameters
    assert size.trains_head == (rank == 0)


def test_features_and_longer_prompts_are_allowed_for_where_tasks_have_pictures(tmp_path: Path) -> None:
    size = measure(
        read_config(str(readers.directory("smolvlm", tmp_path)), None, False), LoraSettings(), lambda _: torch.float32
    )

    def node(*tasks: dict[str, str]) -> Node:
        config = NodeConfig.model_validate({"tasks": tasks, "mix": {"local": 3, "external": 2}})
        return Node(config, size, PEER, "transformers", "cpu", 2**34)

    seeing, reading = node(PICTURES, TEXTS), node(TEXTS)
    num_questions = seeing.config.num_questions("cpu") + 2
    assert seeing.feature_bytes == num_questions * MEDIA_TOKENS * size.hidden * 4
    assert reading.feature_bytes == 0
    assert seeing.least.total > reading.least.total
