"""What is compiled for GPUs, as far as a machine without one can tell."""

from __future__ import annotations

import copy
import logging
from functools import cache, partial

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import Qwen2ForCausalLM

from swarm.policy import attention
from swarm.policy.adapters import Adapters
from swarm.policy.batching import Packed
from swarm.policy.config import FrozenDtype, LoraSettings
from swarm.policy.loading import Policy
from swarm.policy.scoring import compiled, read_at_once, slope_at_once
from swarm.sapo.mixing import MixSettings
from swarm.training import forward
from swarm.training.config import UpdateSettings
from swarm.training.forward import TrainingLayers, is_compiled, pays
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup
from tests.engines.models import make
from tests.example_groups import rollout_group
from tests.policy.ranges import in_ranges


def test_kernels_read_logits_and_their_gradient_as_torch_does() -> None:
    torch.manual_seed(0)
    logits, targets = 3 * torch.randn(5, 31).double(), torch.randint(31, (5,))
    logits.requires_grad_()
    upstream = torch.randn(5).double()
    distribution = torch.distributions.Categorical(logits=logits)
    expected = distribution.log_prob(targets)
    (slope,) = torch.autograd.grad((expected * upstream).sum(), logits)
    with torch.no_grad():
        logprobs, entropies = read_at_once(logits, targets)
        found = slope_at_once(logits, targets, logprobs, upstream, torch.float64)
    torch.testing.assert_close(logprobs, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(entropies, distribution.entropy(), atol=1e-12, rtol=0)
    torch.testing.assert_close(found, slope, atol=1e-12, rtol=0)


def test_what_cannot_be_compiled_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no C compiler")

    def doubled(values: Tensor) -> Tensor:
        return 2 * values

    monkeypatch.setattr(torch, "compile", lambda code, dynamic: torch._dynamo.optimize(fails, dynamic=dynamic)(code))
    with caplog.at_level(logging.WARNING):
        code = compiled(doubled)
        assert [code(torch.ones(1)).item() for _ in range(2)] == [2, 2]
    assert len(caplog.records) == 1 and "no C compiler" in caplog.text


def test_an_error_of_the_code_itself_is_no_failure_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(values: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda code, dynamic: code)
    code = compiled(short)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            code(torch.ones(1))


def test_layers_are_compiled_where_it_pays(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pays(policy.model, "cuda"), "smaller models are fast already"
    monkeypatch.setattr(forward, "COMPILED_PARAMETERS", 0)
    assert pays(policy.model, "cuda") and not pays(policy.model, "cpu")
    assert not pays(make("qwen3_moe").model, "cuda")
    assert is_compiled(True, policy) and not is_compiled(False, policy) and not is_compiled(None, policy)


@pytest.mark.parametrize(("rank", "frozen"), [(0, "compute"), (4, "compute"), (4, "nf4")])
def test_compilations_grow_neither_with_layers_nor_with_updates_lengths_and_groups(
    rank: int, frozen: FrozenDtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each would take seconds, and torch gives up after a few. Two: with and without gradient."""
    if rank:
        pytest.importorskip("peft", reason="needs the extra lora")
    monkeypatch.setattr(attention, "in_ranges", in_ranges)
    monkeypatch.setattr(forward, "choose_batching", lambda *_: Packed(in_ranges=True))
    counts = []
    for num_layers in (2, 5):
        counter = CompileCounterWithBackend("eager")
        compile_code = partial(torch.compile, backend=counter)
        made = cache(lambda code, compile_code=compile_code: compile_code(code, dynamic=True))
        monkeypatch.setattr(forward, "TrainingLayers", partial(TrainingLayers, compile_code=made))
        torch._dynamo.reset()
        policy = _policy(num_layers, LoraSettings(rank=rank, frozen_dtype=frozen))
        settings = UpdateSettings(compile=True, micro_batch_tokens=150, epochs=2, gradient_checkpointing=num_layers > 2)
        updater = PolicyUpdater(policy, settings, MixSettings(), 1.0)
        for texts in (("a", "bcd"), ("a much longer answer", "b", "cc", "ddd"), ("12", "345", "6")):
            updater.update([], [_group(index, texts) for index in range(len(texts))])
            counts.append(len([graph for graph in counter.graphs if len(graph.graph.nodes)]))
    assert counts == [2] * 6


def _policy(num_layers: int, lora: LoraSettings) -> Policy:
    policy = make("qwen2")
    config = copy.deepcopy(policy.model.config)
    config.num_hidden_layers, config.layer_types = num_layers, ["full_attention"] * num_layers
    model = Qwen2ForCausalLM(config)
    adapters = Adapters(model, lora) if lora.rank else None
    return Policy("deep", model, policy.tokenizer, None, torch.bfloat16, adapters)


def _group(index: int, texts: tuple[str, ...]) -> GradedGroup:
    completions = tuple(Completion(text, "stop") for text in texts)
    rewards = tuple(float(place % 2) for place in range(len(texts)))
    return GradedGroup(rollout_group(completions=completions, rewards=rewards), f"Calculate {index}.", rewards)
