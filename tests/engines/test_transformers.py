"""What is particular to generation with the weights that are trained: slots, swaps, memory, architectures."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import EngineError, OutOfMemory
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
