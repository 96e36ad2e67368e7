"""What is particular to generation with the weights that are trained: slots, swaps, memory, architectures."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers import TransformersEngine
from swarm.errors import EngineError, OutOfMemory, WeightsRefused
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_tokenizer
from swarm.types import Completion, Rejection, Sampling
from tests.engines.models import ARCHITECTURES, make
from tests.engines.reference import teacher_forced
from tests.engines.test_contract import PROMPTS, tokens


def _engine(policy: Policy, cancelled: Callable[[], bool] = lambda: False, **settings: object) -> TransformersEngine:
    return TransformersEngine(policy, GenerationSettings(**settings), cancelled)


def _watch_forward(policy: Policy, before: Callable[[torch.Size], None]) -> None:
    """Call `before` with the shape of the ids of every forward pass."""
    forward = policy.model.forward

    def watched(*args: object, **kwargs: object) -> object:
        before(kwargs["input_ids"].shape)
        return forward(*args, **kwargs)

    policy.model.forward = watched


def _largest_difference(policy: Policy, prompt: str, completion: Completion, sampling: Sampling) -> float:
    expected = teacher_forced(policy, prompt, completion, sampling)
    return max(abs(ours - theirs) for ours, theirs in zip(completion.logprobs, expected, strict=True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_hold_for_every_architecture_with_rows_refilled_and_preempted(
    architecture: str, attention: str
) -> None:
    policy = make(architecture, attention)
    sampling = Sampling(max_new_tokens=40)
    answers = _engine(policy, max_batch_tokens=300, max_batch_sequences=6).generate(PROMPTS, 3, sampling, seed=1)
    for prompt, group in zip(PROMPTS, answers, strict=True):
        for completion in group:
            assert _largest_difference(policy, prompt, completion, sampling) < 1e-4


def test_prompts_are_read_once_and_every_row_of_every_step_gives_a_token(policy: Policy) -> None:
    engine, shapes = _engine(policy, max_batch_sequences=6), []
    _watch_forward(policy, shapes.append)
    prompts = [f"Calculate {k} + 1." for k in range(7)]
    answers = engine.generate(prompts, 3, Sampling(max_new_tokens=30), 0)
    lengths = [len(completion.token_ids) for group in answers for completion in group]
    steps = [shape[0] for shape in shapes if shape[1] == 1]
    assert sum(shape[0] for shape in shapes if shape[1] > 1) == 7
    assert sum(steps) == sum(lengths)
    assert max(steps) == 6
    assert len(steps) < sum(lengths) / 6 + 30, "a finished row's place is filled at once"


def test_the_token_budget_holds_and_changes_no_completion(policy: Policy) -> None:
    prompts, sampling = PROMPTS * 3, Sampling(max_new_tokens=150)
    free = _engine(policy).generate(prompts, 4, sampling, 2)
    engine, rows = _engine(policy, max_batch_tokens=800), []
    _watch_forward(policy, lambda shape: rows.append(shape[0]) if shape[1] == 1 else None)
    tight = engine.generate(prompts, 4, sampling, 2)
    assert max(rows) <= 800 // 64
    assert tokens(tight) == tokens(free)


def test_a_prompt_beyond_the_token_budget_is_refused(policy: Policy) -> None:
    answers = _engine(policy, max_batch_tokens=128).generate(["x" * 100, "1 + 1"], 2, Sampling(max_new_tokens=8), 0)
    assert isinstance(answers[0], Rejection) and "room for 128" in answers[0].detail
    assert len(answers[1]) == 2


def test_running_out_of_memory_halves_the_batch_and_changes_no_completion(policy: Policy) -> None:
    sampling = Sampling(max_new_tokens=30)
    expected = _engine(policy).generate(PROMPTS, 4, sampling, 2)
    engine, rows = _engine(policy), []

    def fail_above_five(shape: torch.Size) -> None:
        rows.append(shape[0])
        if shape[1] == 1 and shape[0] > 5:
            raise torch.OutOfMemoryError("injected")

    _watch_forward(policy, fail_above_five)
    answers = engine.generate(PROMPTS, 4, sampling, 2)
    assert 12 in rows and rows[-1] <= 5
    assert tokens(answers) == tokens(expected)


def test_no_memory_for_a_single_sequence_is_an_error_in_words(policy: Policy) -> None:
    engine = _engine(policy)

    def fail(shape: torch.Size) -> None:
        raise torch.OutOfMemoryError("injected")

    _watch_forward(policy, fail)
    with pytest.raises(OutOfMemory, match="not even one sequence"):
        engine.generate(PROMPTS, 4, Sampling(max_new_tokens=4), 0)


def _other_weights(policy: Policy) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {name: value + 0.05 * torch.randn_like(value) for name, value in policy.model.state_dict().items()}


def _swapping_engine(policy: Policy, step: int, **settings: object) -> TransformersEngine:
    """An engine that gets other weights, version 1, before decode step `step`."""
    new, count = _other_weights(policy), iter(range(10**6))

    def between_steps() -> bool:
        if next(count) == step:
            engine.swap(new, version=1)
        return False

    engine = _engine(policy, between_steps, **settings)
    return engine


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_new_weights_enter_in_the_middle_and_every_token_says_whose_it_is(
    policy: Policy, kv: Literal["keep", "recompute"]
) -> None:
    old, sampling = copy.deepcopy(policy), Sampling(max_new_tokens=24)
    engine = _swapping_engine(policy, 8, kv=kv, max_batch_sequences=5)
    answers = engine.generate(PROMPTS, 4, sampling, seed=3)
    mixed, worst = 0, 0.0
    for prompt, group in zip(PROMPTS, answers, strict=True):
        for completion in group:
            spans = completion.versions
            assert [span.version for span in spans] == sorted({span.version for span in spans})
            assert sum(span.num_tokens for span in spans) == len(completion.token_ids)
            mixed += len(spans) == 2
            num_old = spans[0].num_tokens if spans[0].version == 0 else 0
            before = teacher_forced(old, prompt, completion, sampling)[:num_old]
            after = teacher_forced(policy, prompt, completion, sampling)[num_old:]
            assert completion.logprobs[:num_old] == pytest.approx(before, abs=1e-4)
            worst = max([worst, *(abs(a - b) for a, b in zip(completion.logprobs[num_old:], after, strict=True))])
    assert mixed > 0 and policy.version == 1
    if kv == "recompute":
        assert worst < 1e-4
    else:
        assert worst > 1e-3, "kept keys and values are those of the old weights"


@pytest.mark.parametrize("wrong", ["shape", "missing", "unknown", "not finite"])
def test_refused_weights_leave_the_old_ones_in_use(policy: Policy, wrong: str) -> None:
    engine, sampling = _engine(policy), Sampling(max_new_tokens=6)
    expected = engine.generate(PROMPTS, 2, sampling, 0)
    weights = _other_weights(policy)
    name = "model.layers.1.mlp.up_proj.weight"  # the last checked would be the last changed
    if wrong == "shape":
        weights[name] = weights[name][:-1]
    elif wrong == "missing":
        del weights[name]
    elif wrong == "unknown":
        name = "model.layers.2.mlp.up_proj.weight"
        weights[name] = torch.zeros(3)
    else:
        weights[name][0, 0] = math.nan
    with pytest.raises(WeightsRefused, match=name):
        engine.swap(weights, version=1)
    assert engine.generate(PROMPTS, 2, sampling, 0) == expected
    assert policy.version == 0


def test_broken_weights_are_an_error_in_words(policy: Policy) -> None:
    engine = _engine(policy)
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(math.nan)
    with pytest.raises(EngineError, match="not finite"):
        engine.generate(PROMPTS, 2, Sampling(max_new_tokens=4), 0)


def test_a_model_that_cannot_be_served_is_refused_by_name() -> None:
    tokenizer = tiny_tokenizer()
    model = BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(EngineError, match="bloom takes no position_ids"):
        _engine(Policy("bloom", model, tokenizer, system_prompt=None))
