from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nodes.roles.runtime import check_model
from swarm.config import NodeConfig
from swarm.errors import CheckpointError, PolicyError
from swarm.policy import reading
from swarm.policy.config import PolicySettings, origin
from swarm.policy.loading import Policy, load_policy
from swarm.preflight.check import preflight
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import TrainingState

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


def _as_bin(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Weights as torch writes them, or what became of them."""

    def write(directory: Path) -> None:
        torch.save(load_file(directory / WEIGHTS), directory / "pytorch_model.bin")
        (directory / WEIGHTS).unlink()
        (directory / "pytorch_model.bin").write_bytes(change((directory / "pytorch_model.bin").read_bytes()))

    return write


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def _point(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(POINTER) and None


def _add_adapters(directory: Path) -> None:
    (directory / "adapter_config.json").write_text("{}")


def _only_adapters(directory: Path) -> None:
    _add_adapters(directory)
    (directory / "config.json").unlink()


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
        (_point(WEIGHTS), "model.safetensors is a pointer of Git LFS, not the file itself: run `git lfs pull` there"),
        (_point("tokenizer.json"), "tokenizer.json is a pointer of Git LFS"),
        (_point("config.json"), "config.json is a pointer of Git LFS"),
        (_as_bin(lambda content: POINTER), "pytorch_model.bin is a pointer of Git LFS"),
        (_as_bin(lambda content: b""), "pytorch_model.bin is empty: download it again"),
        (_as_bin(lambda content: content[: len(content) * 3 // 4]), "cut off, or is no file of weights"),
        (_as_bin(lambda content: b"<html>" * len(content)), "cut off, or is no file of weights"),
        (lambda directory: (directory / WEIGHTS).write_bytes(b""), "model.safetensors is empty: download it again"),
        (_add_adapters, r"holds adapters \(adapter_config.json\) beside its weights: merge them"),
        (_only_adapters, "holds adapters alone: merge them into their base model"),
        (_change_config(num_attention_heads=5), "do not fit its config.json"),
    ],
    ids=[
        "config",
        "tokenizer",
        "weights",
        "torn weights",
        "tensor missing",
        "other shape",
        "other tokenizer",
        "pointer",
        "tokenizer pointer",
        "config pointer",
        "bin pointer",
        "empty bin",
        "cut bin",
        "html",
        "empty",
        "with adapters",
        "adapters",
        "impossible",
    ],
)
def test_a_model_directory_that_is_not_whole_is_refused_by_name(
    policy: Policy, tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    policy.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(PolicyError, match=named):
        load_policy(PolicySettings(model=str(tmp_path)))


def test_a_file_is_no_model(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    with pytest.raises(PolicyError, match="must be a directory or a hub id, got the file .*model.safetensors"):
        load_policy(PolicySettings(model=str(tmp_path / WEIGHTS)))


def test_what_a_model_is_does_not_depend_on_its_folder(policy: Policy, tmp_path: Path) -> None:
    places = [tmp_path / "a" / "model", tmp_path / "b" / "model", tmp_path / "c"]
    policy.save(places[0])
    shutil.copytree(places[0], places[2])
    first = {name: value.clone() for name, value in policy.model.state_dict().items()}
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[-1, -1] += 1
    policy.save(places[1])
    policy.model.load_state_dict(first)
    one, other, copy = (origin(str(place), None) for place in places)
    assert one == copy and one != other
    _change_config(rope_theta=123.0)(places[2])
    origin.cache_clear()
    assert origin(str(places[2]), None) != one
    assert origin("OWNER/NAME", None) != origin("OWNER/NAME", "main")
    state = TrainingState("12D3", "model", 1, 1, 8, [], Ledger().snapshot(), 99, origin=one)
    check_model(tmp_path, state, PolicySettings(model=str(places[0])))
    with pytest.raises(CheckpointError, match="has model 'model', but the configuration has 'model', another one of"):
        check_model(tmp_path, state, PolicySettings(model=str(places[1])))
    old = TrainingState("12D3", "model", 1, 1, 8, [], Ledger().snapshot(), 99)
    check_model(tmp_path, old, PolicySettings(model=str(places[1])))


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
