"""What vLLM gets of a model: all that a published checkpoint has, by the names that a published checkpoint has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from swarm.engines.vllm import delivery
from swarm.engines.vllm.messages import Packed
from swarm.policy.adapters import Adapters
from swarm.policy.config import LoraSettings
from swarm.policy.loading import Policy
from tests.engines.models import PUBLISHED, make_published

WITH_BUFFERS = {"gemma4_text": "layer_scalar", "glm4_moe": "gate.e_score_correction_bias"}
WITH_BUFFERS |= {"minimax_m2": "block_sparse_moe.e_score_correction_bias"}


def expected(policy: Policy, directory: Path) -> dict[str, Tensor]:
    """The checkpoint that transformers writes, rounded as vLLM would; buffers are not."""
    policy.save(directory)
    (files,) = directory.glob("*.safetensors")
    return {
        name: value if is_buffer(name) else value.to(policy.compute_dtype) for name, value in load_file(files).items()
    }


def is_buffer(name: str) -> bool:
    return name.endswith(tuple(WITH_BUFFERS.values()))


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=0, rtol=0, msg=name)


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_files_hold_all_that_a_published_checkpoint_does(architecture: str, tmp_path: Path) -> None:
    policy = make_published(architecture)
    policy.dtype = torch.bfloat16
    wanted = expected(policy, tmp_path / "saved")
    assert any(map(is_buffer, wanted)) == (architecture in WITH_BUFFERS)
    with delivery.model_files(policy, tmp_path) as (directory, _):
        assert_same(load_file(directory / delivery.WEIGHTS_FILE), wanted)
    with delivery.changed_files(policy, tmp_path) as (directory, _):
        assert_same(load_file(directory / delivery.WEIGHTS_FILE), wanted)


@pytest.mark.parametrize("room", [2**28, 2**12])
@pytest.mark.parametrize("architecture", PUBLISHED)
def test_pieces_hold_the_same(architecture: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "BUFFER_BYTES", room)
    policy = make_published(architecture)
    policy.dtype = torch.bfloat16
    outline = list(delivery.trained_weights(policy, outlined=True))
    assert all(value.is_meta for _, value, _ in outline), "the buffer's size is known without copies"
    needed = delivery.buffer_bytes(outline)
    buffer = SimpleNamespace(content=torch.empty(needed, dtype=torch.uint8), shared=None, flush=lambda: None)
    found = {
        name: value
        for piece in delivery.pieces(buffer, delivery.trained_weights(policy))
        for name, value in unpacked(buffer.content, piece)
    }
    assert_same(found, expected(policy, tmp_path))


def unpacked(content: Tensor, piece: Packed) -> Iterator[tuple[str, Tensor]]:
    """As vLLM does it."""
    start = 0
    for name, shape in zip(piece.names, piece.shapes, strict=True):
        num_bytes = torch.Size(shape).numel() * piece.item_bytes
        yield name, content[start : start + num_bytes].clone().view(getattr(torch, piece.dtype)).view(shape)
        start += num_bytes


def test_experts_are_parted_one_layer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parting copies them, and beside training there is no room for another model."""
    seen: list[set[str]] = []
    revert = delivery.revert_weight_conversion

    def recorded(model: object, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.append({name.partition(".self_attn")[0].partition(".mlp")[0] for name in weights if "layers." in name})
        return revert(model, weights)

    monkeypatch.setattr(delivery, "revert_weight_conversion", recorded)
    weights = delivery.trained_weights(make_published("mixtral"))
    names = [name for name, *_ in weights]
    assert "model.layers.1.block_sparse_moe.experts.3.w1.weight" in names
    assert not any(name.endswith("experts.gate_up_proj") for name in names)
    layers = [{name for name in group if name.count(".") == 2} for group in seen]
    assert sorted(map(sorted, filter(None, layers))) == [["model.layers.0"], ["model.layers.1"]]


@pytest.mark.parametrize(
    ("architecture", "named"), [("phimoe", "PhiMoEForCausalLM"), ("mixtral", "MixtralForCausalLM")]
)
def test_the_configuration_names_the_model_as_vllm_does(architecture: str, named: str, tmp_path: Path) -> None:
    policy = make_published(architecture)
    policy.save(tmp_path / "saved")  # which overwrites the name in the model's configuration
    with delivery.model_files(policy, tmp_path) as (directory, _):
        assert json.loads((directory / "config.json").read_text())["architectures"] == [named]


def test_frozen_weights_beside_adapters_come_with_their_buffers(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra lora")
    plain, policy = make_published("gemma4_text"), make_published("gemma4_text")
    policy.adapters = Adapters(policy.model, LoraSettings(rank=2))
    with delivery.model_files(policy, tmp_path) as (directory, _):
        assert_same(load_file(directory / delivery.WEIGHTS_FILE), expected(plain, tmp_path / "saved"))
