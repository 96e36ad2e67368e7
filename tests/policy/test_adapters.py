"""LoRA on the embedded policy's shape: what is trained, kept, merged and refused."""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import CheckpointError, ConfigError, PolicyError
from swarm.policy.adapters import BASE_FILE, CONFIG_FILE, WEIGHTS_FILE, Adapters
from swarm.policy.config import LoraSettings, PolicySettings, check_peft
from swarm.policy.loading import Policy, load_policy
from swarm.sapo.mixing import MixSettings
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import MODEL, OPTIMIZER, CheckpointStore, TrainingState, restore
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Sampling
from tests.example_groups import graded
from tests.policy.completions import completion_logprobs

LORA = LoraSettings(rank=4)
PROMPT = "Calculate 12 + 7."


@pytest.fixture
def base(policy: Policy, tmp_path: Path) -> Path:
    policy.save(tmp_path / "base")
    return tmp_path / "base"


def _load(base: Path, weights: Path | None = None, **changes: object) -> Policy:
    settings = PolicySettings(model=str(base), system_prompt="", lora=LORA).model_copy(update=changes)
    return load_policy(settings, weights)


def _updater(policy: Policy) -> PolicyUpdater:
    return PolicyUpdater(policy, UpdateSettings(learning_rate=3e-3), MixSettings(), 1.0)


def _learn(policy: Policy, updater: PolicyUpdater, times: int = 2) -> None:
    for _ in range(times):
        assert not updater.update([], [graded("other", rewards=(1.0, 0.0, 0.0))]).skipped


def _state() -> TrainingState:
    return TrainingState("12D3", "base", 1, 2, 8, [], Ledger().snapshot(), 99)


@torch.no_grad()
def _likelihood(policy: Policy, text: str = "<answer>19</answer>") -> torch.Tensor:
    return completion_logprobs(policy, [policy.encode_prompt(PROMPT)], [policy.tokenizer.encode(text)], 1.0)


def test_new_adapters_change_nothing_and_only_they_learn(policy: Policy, base: Path) -> None:
    adapted = _load(base)
    assert torch.equal(_likelihood(adapted), _likelihood(policy))
    before = {name: value.clone() for name, value in adapted.model.named_parameters()}
    updater = _updater(adapted)
    _learn(adapted, updater)
    changed = {name for name, value in adapted.model.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "lora_" in name} == set(adapted.weights)
    assert sum(p.numel() for group in updater.optimizer.param_groups for p in group["params"]) < 30_000
    head, embeddings = adapted.model.get_output_embeddings(), adapted.model.get_input_embeddings()
    assert head.weight is embeddings.weight, "tied weights stay tied"
    assert not torch.equal(_likelihood(adapted), _likelihood(policy))


def test_without_adapters_the_policy_is_what_it_was(policy: Policy, base: Path) -> None:
    adapted = _load(base)
    _learn(adapted, _updater(adapted))
    learned = _likelihood(adapted)
    assert adapted.adapters
    with adapted.adapters.disabled():
        assert torch.equal(_likelihood(adapted), _likelihood(policy))
    assert torch.equal(_likelihood(adapted), learned)
    _learn(adapted, _updater(adapted))  # they still learn


def test_training_goes_on_exactly_from_a_small_checkpoint(base: Path, tmp_path: Path) -> None:
    unbroken = _load(base)
    updater = _updater(unbroken)
    _learn(unbroken, updater)
    path = CheckpointStore(tmp_path).save(unbroken, updater, _state(), "{}")
    size = sum((path / name).stat().st_size for name in (f"{MODEL}/adapter_model.safetensors", OPTIMIZER))
    assert size < (base / "model.safetensors").stat().st_size
    resumed = _load(base, path / MODEL)
    resumed_updater = _updater(resumed)
    restore(path, resumed_updater)
    assert torch.equal(_likelihood(resumed), _likelihood(unbroken))
    _learn(unbroken, updater)
    _learn(resumed, resumed_updater)
    for name, value in resumed.weights.items():
        torch.testing.assert_close(value, unbroken.weights[name], atol=1e-7, rtol=0)


def test_merged_it_is_a_plain_model_that_says_the_same(base: Path, tmp_path: Path) -> None:
    adapted = _load(base)
    _learn(adapted, _updater(adapted))
    expected = _likelihood(adapted)
    asked = ([PROMPT], 3, Sampling(max_new_tokens=4), 7)
    before = TransformersEngine(adapted, GenerationSettings()).generate(*asked)
    adapted.merge()
    torch.testing.assert_close(_likelihood(adapted), expected, atol=1e-5, rtol=0)
    adapted.save(tmp_path / "merged")
    plain = load_policy(PolicySettings(model=str(tmp_path / "merged"), system_prompt=""))
    torch.testing.assert_close(_likelihood(plain), expected, atol=1e-5, rtol=0)
    assert [c.token_ids for c in before[0]] == [
        c.token_ids for c in TransformersEngine(plain, GenerationSettings()).generate(*asked)[0]
    ], "what was sampled, the adapted model sampled"
    keys = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict().keys()
    assert keys == AutoModelForCausalLM.from_pretrained(base).state_dict().keys()


def test_peft_itself_loads_what_a_checkpoint_holds(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    adapted = _load(base)
    _learn(adapted, _updater(adapted))
    adapted.save(tmp_path / "adapters")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapters").eval()
    ids = torch.tensor([adapted.encode_prompt(PROMPT)])
    torch.testing.assert_close(theirs(ids).logits, adapted.model(ids).logits)


def test_frozen_weights_are_kept_in_what_is_computed_in(base: Path) -> None:
    low = _load(base, dtype="bfloat16")
    _learn(low, _updater(low))
    kinds = {(parameter.requires_grad, parameter.dtype) for parameter in low.model.parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    full = _load(base, dtype="bfloat16", lora=LoraSettings(rank=4, frozen_dtype="float32"))
    assert {parameter.dtype for parameter in full.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": LoraSettings()}, "holds adapters"),
        ({"lora": LoraSettings(rank=8)}, "policy.lora.rank 4, got 8"),
        ({"lora": LoraSettings(rank=4, alpha=8)}, "policy.lora.alpha 32, got 8"),
        ({"lora": LoraSettings(rank=4, targets=("q_proj",))}, "policy.lora.targets"),
    ],
)
def test_adapters_are_refused_where_they_do_not_fit(
    base: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    _load(base).save(tmp_path / "adapters")
    with pytest.raises(CheckpointError, match=message):
        _load(base, tmp_path / "adapters", **changes)


def test_adapters_of_another_base_are_refused_and_so_is_a_whole_model(
    policy: Policy, base: Path, tmp_path: Path
) -> None:
    _load(base).save(tmp_path / "adapters")
    other = copy.deepcopy(policy)
    with torch.no_grad():
        other.model.model.layers[1].mlp.up_proj.weight.add_(0.1)
    other.save(tmp_path / "other")
    with pytest.raises(CheckpointError, match="another model"):
        _load(tmp_path / "other", tmp_path / "adapters")
    with pytest.raises(CheckpointError, match="all weights"):
        _load(base, tmp_path / "other")


@pytest.mark.parametrize("targets", [("no_such_layer",), ("lm_head",), ("embed_tokens",)])
def test_layers_that_cannot_be_adapted_are_refused(policy: Policy, targets: tuple[str, ...]) -> None:
    with pytest.raises(PolicyError, match=r"policy\.lora\.targets"):
        Adapters(policy.model, LoraSettings(rank=4, targets=targets))


def test_a_missing_peft_is_told_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else find(name))
    check_peft(LoraSettings())
    with pytest.raises(ConfigError, match="make install-lora"):
        check_peft(LORA)


def _changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def apply(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS_FILE)
        change(tensors)
        save_file(tensors, directory / WEIGHTS_FILE)

    return apply


FROZEN = "base_model.model.model.layers.0.mlp.up_proj.base_layer.weight"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda at: (at / WEIGHTS_FILE).write_bytes((at / WEIGHTS_FILE).read_bytes()[:-5]),
    "garbage": lambda at: (at / WEIGHTS_FILE).write_bytes(b"\xff" * 100),
    "other shapes": _changed(lambda found: found.update({name: each[:1].clone() for name, each in found.items()})),
    "a tensor less": _changed(dict.popitem),
    "other names": _changed(lambda found: found.update({"x" + name: found.pop(name) for name in list(found)})),
    "a frozen weight": _changed(lambda found: found.update({FROZEN: torch.zeros(128, 64)})),
    "codes": _changed(lambda found: found.update({name: each.to(torch.int8) for name, each in found.items()})),
    "not finite": _changed(lambda found: next(iter(found.values())).fill_(math.nan)),
    "no settings": lambda at: (at / CONFIG_FILE).write_text("{}"),
    "deep settings": lambda at: (at / CONFIG_FILE).write_text("[" * 100_000),
    "deep digest": lambda at: (at / BASE_FILE).write_text("[" * 100_000),
    "long settings": lambda at: (at / CONFIG_FILE).write_text(" " * 2**21 + (at / CONFIG_FILE).read_text()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_adapters_that_cannot_be_read_are_refused_in_words(base: Path, tmp_path: Path, damage: str) -> None:
    adapted = _load(base)
    adapted.save(tmp_path / "adapters")
    DAMAGES[damage](tmp_path / "adapters")
    with pytest.raises(CheckpointError, match="adapters") as refused:
        _load(base, tmp_path / "adapters")
    assert "\n" not in str(refused.value)
