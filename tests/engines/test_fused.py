"""The decode step in few operations: the numbers of the model's own code, at its present weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.engine import TransformersEngine
from swarm.engines.transformers.generating import FusedStep
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config, tiny_tokenizer
from swarm.policy.weights import swap_weights
from swarm.types import Completion, Rejection, Sampling
from tests.engines.models import make

PROMPTS = ["3 * 5", "What is the greatest common divisor of 12 and 18?", "Calculate 12 + 7."]
SAMPLING = Sampling(max_new_tokens=70, temperature=0.8)
"""More than a block of the cache."""


def qwen3(**changes: object) -> Policy:
    """Random weights, of norms too, which are all one in a new model."""
    torch.manual_seed(0)
    config = tiny_config()
    config.update(changes)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Policy("random", model, tiny_tokenizer(), None)


def generated(engine: TransformersEngine) -> list[Completion]:
    answers = engine.generate(PROMPTS, 3, SAMPLING, seed=5)
    return [completion for group in answers if not isinstance(group, Rejection) for completion in group]


def without_it(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[Completion]:
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "_fuse", lambda self: None)
        return generated(TransformersEngine(policy, GenerationSettings()))


def assert_same(found: list[Completion], expected: list[Completion]) -> None:
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 2}, {"head_dim": 32, "rope_theta": 1e6}], ids=str)
def test_it_samples_what_the_model_would(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    policy = qwen3(**changes)
    engine = TransformersEngine(policy, GenerationSettings())
    assert engine._decoder._fused is not None
    found = generated(engine)
    assert len(found) == 9
    assert_same(found, without_it(policy, monkeypatch))


def test_it_follows_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = qwen3()
    engine = TransformersEngine(policy, GenerationSettings())
    before = generated(engine)
    swap_weights(policy, {name: value + 0.1 * torch.randn_like(value) for name, value in policy.weights.items()}, 1)
    after = generated(engine)
    assert [each.token_ids for each in after] != [each.token_ids for each in before]
    assert_same(after, without_it(policy, monkeypatch))


def test_a_step_that_differs_from_the_model_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    step: Callable[..., Tensor] = FusedStep.step

    def off_by_little(*arguments: object) -> Tensor:
        logits = step(*arguments)
        logits[-1, 0] += 0.02
        return logits

    monkeypatch.setattr(FusedStep, "step", off_by_little)
    assert Decoder(qwen3())._fused is None


@pytest.mark.parametrize(
    "policy",
    [
        lambda: make("llama"),
        lambda: qwen3(attention_bias=True),
        lambda: qwen3(hidden_act="gelu"),
        lambda: qwen3(vocab_size=100_000),
    ],
    ids=["another family", "biases", "another activation", "a larger model"],
)
def test_other_models_run_their_own_code(policy: Callable[[], Policy]) -> None:
    assert Decoder(policy())._fused is None
