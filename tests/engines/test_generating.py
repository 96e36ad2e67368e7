"""The copy that generates in half precision: the trained policy's numbers, at its present weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.engines.transformers.generating import GeneratingModel
from swarm.policy import scoring as head
from swarm.policy.config import LoraSettings, PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.weights import swap_weights
from swarm.types import Answers, Completion, Rejection, Sampling
from tests.engines.models import ARCHITECTURES, make, random_policy
from tests.policy.completions import completion_logprobs

PROMPTS = ["Calculate 12 + 7.", "3 * 5", "What is the greatest common divisor of 12 and 18?"]
SAMPLING = Sampling(max_new_tokens=8, temperature=0.7)


def _half(policy: Policy) -> Policy:
    policy.dtype = torch.bfloat16
    return policy


def _generate(policy: Policy) -> tuple[TransformersEngine, list[Answers]]:
    engine = TransformersEngine(policy, GenerationSettings())
    return engine, engine.generate(PROMPTS, 2, SAMPLING, seed=3)


def _copy_of(engine: TransformersEngine) -> nn.Module:
    return engine._decoder._generating.model


def _completions(answers: list[Answers]) -> list[tuple[str, Completion]]:
    groups = [(prompt, each) for prompt, each in zip(PROMPTS, answers, strict=True) if not isinstance(each, Rejection)]
    return [(prompt, completion) for prompt, group in groups for completion in group]


@torch.no_grad()
def _mismatch(policy: Policy, answers: list[Answers]) -> torch.Tensor:
    """Engine against trainer, nats of each token."""
    found = []
    for prompt, completion in _completions(answers):
        ids = [policy.encode_prompt(prompt)]
        trained = completion_logprobs(policy, ids, [list(completion.token_ids)], SAMPLING.temperature)[0]
        found.append((trained - torch.tensor(completion.logprobs)).abs())
    return torch.cat(found)


@pytest.mark.parametrize(
    ("architecture", "norms"), [("qwen2", 2), ("llama", 2), ("qwen3_moe", 4), ("gemma3", 0), ("gpt2", 0)]
)
def test_norms_of_the_copy_are_one_operation_where_that_gives_the_same(architecture: str, norms: int) -> None:
    """`norms` of a layer; Gemma's multiply by one more than the weight, GPT-2's are others."""
    policy = _half(make(architecture))
    for name, parameter in policy.model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    engine, _ = _generate(policy)
    fused = [name for name, module in _copy_of(engine).named_modules() if "forward" in vars(module) and "norm" in name]
    assert len(fused) == (norms * policy.model.config.num_hidden_layers + 1 if norms else 0)
    hidden = 3 * torch.randn(5, policy.model.config.hidden_size)
    for name in fused:
        own, other = policy.model.get_submodule(name), _copy_of(engine).get_submodule(name)
        sample = hidden[:, : own.weight.shape[0]]
        torch.testing.assert_close(other(sample), own(sample), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(other(sample.bfloat16()), own(sample.bfloat16()), rtol=0, atol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_copy_samples_what_the_trained_model_would(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _half(make(architecture))
    engine, answers = _generate(policy)
    assert _copy_of(engine) is not policy.model
    monkeypatch.setattr(GeneratingModel, "refresh", lambda self: None)
    engine, expected = _generate(policy)
    assert _copy_of(engine) is policy.model
    assert answers == expected


def test_engine_and_trainer_differ_less_with_logits_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hidden states differ by rounding alone; logits of 16 to 32 are multiples of 1/8 in bfloat16."""
    policy = _half(make("llama"))
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(6)
    found = []
    for product in (head._with_remainder, lambda left, right: (left @ right).float()):
        monkeypatch.setattr(head, "_with_remainder", product)
        answers = TransformersEngine(policy, GenerationSettings()).generate(
            PROMPTS, 4, Sampling(max_new_tokens=16, temperature=0.7), seed=3
        )
        found.append(float(_mismatch(policy, answers).square().mean().sqrt()))
    assert found[0] < 0.9 * found[1], "nats a token; the second with rounded logits"


def test_only_matrices_are_copied_and_the_cache_has_their_type() -> None:
    policy = _half(random_policy())
    engine, _ = _generate(policy)
    copied = dict(_copy_of(engine).named_parameters())
    own = {name for name, value in policy.model.named_parameters() if copied[name] is not value}
    linear = {f"{name}.weight" for name, module in policy.model.named_modules() if type(module) is nn.Linear}
    assert own == linear - {"lm_head.weight"}, "the head is tied"
    assert {copied[name].dtype for name in own} == {torch.bfloat16}
    output = _copy_of(engine).get_output_embeddings()
    assert output.weight.dtype == torch.bfloat16, "it has a matrix of its own besides the embeddings"
    exact = TransformersEngine(random_policy(), GenerationSettings())
    assert engine._decoder.bytes_per_token == exact._decoder.bytes_per_token / 2


def test_experts_are_copied_too() -> None:
    policy = _half(make("qwen3_moe"))
    engine, before = _generate(policy)
    copied = dict(_copy_of(engine).named_parameters())
    experts = [name for name in copied if ".experts." in name]
    assert len(experts) == 4 and {copied[name].dtype for name in experts} == {torch.bfloat16}
    swap_weights(policy, {name: -value if ".experts." in name else value for name, value in policy.weights.items()}, 1)
    after = engine.generate(PROMPTS, 2, SAMPLING, seed=3)
    assert after == _generate(policy)[1] != before


def test_in_float32_the_trained_model_generates() -> None:
    policy = random_policy()
    engine, _ = _generate(policy)
    assert _copy_of(engine) is policy.model


def test_new_weights_reach_the_copy_before_the_next_token() -> None:
    policy = _half(random_policy())
    engine, before = _generate(policy)
    torch.manual_seed(1)
    swap_weights(policy, {name: value + 0.1 * torch.randn_like(value) for name, value in policy.weights.items()}, 1)
    after = engine.generate(PROMPTS, 2, SAMPLING, seed=3)
    fresh = TransformersEngine(policy, GenerationSettings()).generate(PROMPTS, 2, SAMPLING, seed=3)
    assert after == fresh != before


def _adapted(tmp_path: Path) -> Policy:
    pytest.importorskip("peft", reason="needs the extra lora")
    random_policy().save(tmp_path)
    lora = LoraSettings(rank=4)
    policy = load_policy(PolicySettings(model=str(tmp_path), system_prompt="", dtype="bfloat16", lora=lora))
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in policy.trained:
            weight.normal_(std=0.02)
    return policy


def test_adapters_stay_beside_matrices_that_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged, they would be rounded once more than in the trained model."""
    policy = _adapted(tmp_path)
    engine, answers = _generate(policy)
    copied = dict(_copy_of(engine).named_parameters())
    own = {name for name, value in policy.model.named_parameters() if copied[name] is not value}
    assert own == set(policy.weights) and {copied[name].dtype for name in own} == {torch.bfloat16}
    monkeypatch.setattr(GeneratingModel, "refresh", lambda self: None)
    engine, expected = _generate(policy)
    assert _copy_of(engine) is policy.model
    assert answers == expected
    unadapted = copy.deepcopy(policy)
    with torch.no_grad():
        for weight in unadapted.trained:
            weight.zero_()
    with_them, without = (float(_mismatch(each, answers).mean()) for each in (policy, unadapted))
    assert 5 * with_them < without, "they matter"


def test_adapters_that_learned_reach_the_copy(tmp_path: Path) -> None:
    policy = _adapted(tmp_path)
    engine, before = _generate(policy)
    swap_weights(policy, {name: 2 * value for name, value in policy.weights.items()}, 1)
    after = engine.generate(PROMPTS, 2, SAMPLING, seed=3)
    assert after == _generate(policy)[1] != before
