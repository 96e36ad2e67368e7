from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from swarm.config import NodeConfig
from swarm.errors import PolicyError
from swarm.policy import reading
from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.preflight.check import preflight

WEIGHTS = "model.safetensors"


def _remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _truncate(directory: Path) -> None:
    (directory / WEIGHTS).write_bytes((directory / WEIGHTS).read_bytes()[:-100])


def _change_config(**values: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        file = directory / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **values}))

    return change


def _drop_tensor(directory: Path) -> None:
    weights = load_file(directory / WEIGHTS)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})


def _shrink_vocabulary(directory: Path) -> None:
    _change_config(vocab_size=100)(directory)
    weights = load_file(directory / WEIGHTS)
    weights["model.embed_tokens.weight"] = torch.zeros(100, 64)
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_remove("config.json"), "config.json"),
        (_remove("tokenizer.json"), "no tokenizer; expected one of tokenizer.json"),
        (_remove(WEIGHTS), WEIGHTS),
        (_truncate, "incomplete"),
        (_drop_tensor, "lack model.layers.1.mlp.up_proj.weight"),
        (_change_config(intermediate_size=100), r"mlp.down_proj.weight must have the shape \[64, 100\]"),
        (_shrink_vocabulary, "322 tokens, its model only 100"),
    ],
    ids=["config", "tokenizer", "weights", "torn weights", "tensor missing", "other shape", "other tokenizer"],
)
def test_a_model_directory_that_is_not_whole_is_refused_by_name(
    policy: Policy, tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    policy.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(PolicyError, match=named):
        load_policy(PolicySettings(model=str(tmp_path)))


def test_a_whole_directory_loads(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    loaded = load_policy(PolicySettings(model=str(tmp_path)))
    for name, value in loaded.model.state_dict().items():
        torch.testing.assert_close(value, policy.model.state_dict()[name], atol=0, rtol=0)


@pytest.mark.parametrize("method", ["fp8", "awq", "gptq", "mxfp4", "bitsandbytes"])
def test_weights_that_have_no_gradients_are_refused_before_they_are_read(
    policy: Policy, tmp_path: Path, method: str
) -> None:
    policy.save(tmp_path)
    _change_config(quantization_config={"quant_method": method, "bits": 4})(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    settings = PolicySettings(model=str(tmp_path))
    for load in (lambda: load_policy(settings), lambda: preflight(NodeConfig(policy=settings), "peer")):
        with pytest.raises(PolicyError, match=f"full precision.*'{method}'.*choose the model"):
            load()


@pytest.mark.parametrize("part", ["AutoConfig", "AutoTokenizer"])
def test_a_package_that_a_model_needs_is_named(
    policy: Policy, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ImportError("needs the package flying")

    policy.save(tmp_path)
    monkeypatch.setattr(getattr(reading, part), "from_pretrained", fail)
    with pytest.raises(PolicyError, match=f"{tmp_path}.*needs the package flying"):
        load_policy(PolicySettings(model=str(tmp_path)))
