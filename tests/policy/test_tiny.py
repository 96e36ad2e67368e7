from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.environments.tiny import TINY_TASKS, TINY_TOOL_TASK
from swarm.environments.verification.inline import InlineVerifier
from swarm.evaluation import evaluate
from swarm.policy import tiny
from swarm.policy.config import TINY, TINY_SPARSE, TINY_TOOL, PolicySettings
from swarm.policy.loading import load_policy
from swarm.types import HELD_OUT_STREAMS, Past, Sampling, Step, Text
from tests.environments.test_tool_use import product


def test_the_shipped_tokenizer_is_what_the_code_builds() -> None:
    assert tiny.build_tokenizer().to_str(pretty=True) == tiny.TOKENIZER_FILE.read_text()


@given(st.text(max_size=60))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = tiny.tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


def test_digits_letters_and_tags_are_single_tokens() -> None:
    tokenizer = tiny.tiny_tokenizer()
    assert len(tokenizer.encode("<answer>123</answer>")) == 5
    assert len(tokenizer.encode("abc")) == 3


def test_prompts_are_short() -> None:
    from reasoning_gym import create_dataset

    tokenizer = tiny.tiny_tokenizer()
    lengths = [
        len(tokenizer.encode(create_dataset(task.name, seed=1, size=50, **task.options)[k]["question"]))
        for task in tiny.TINY_TASKS
        for k in range(50)
    ]
    assert sum(lengths) / len(lengths) < 12


def test_the_model_has_the_promised_size() -> None:
    num_parameters = sum(p.numel() for p in Qwen3ForCausalLM(tiny.tiny_config()).parameters())
    assert 120_000 < num_parameters < 140_000


@pytest.mark.slow
def test_the_policy_is_made_once_and_loads_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    quick = tiny.WarmStart(seed=1, questions_per_task=20, steps=3, batch_size=8, warmup_steps=2)
    monkeypatch.setitem(tiny.STARTS, TINY, quick)
    seen: list[tuple[int, int]] = []
    first = tiny.ensure_tiny(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, 3)
    assert tiny.ensure_tiny(progress=lambda done, total: pytest.fail("made twice")) == first
    AutoModelForCausalLM.from_pretrained(first)
    assert load_policy(PolicySettings(model=str(first))).encode_prompt("Calculate 1 + 2.")


def test_a_tool_is_practised_as_it_is_used_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    quick = tiny.ToolStart(questions_per_task=40, steps=1, batch_size=2, begun=0.0)
    monkeypatch.setitem(tiny.STARTS, TINY_TOOL, quick)
    policy = load_policy(PolicySettings(model=TINY_TOOL))
    entry = tiny._entries(TINY_TOOL_TASK.name, TINY_TOOL_TASK.options, quick)[1]
    call, result = product(entry["question"])
    called = [*policy.tokenizer.encode(call), policy.tokenizer.eos_token_id]
    past = policy.encode(Past(entry["question"], (Step(tuple(called), (Text(result),)),)))
    answer = [*policy.tokenizer.encode(f"<answer>{result}</answer>"), policy.tokenizer.eos_token_id]
    ids, labels = tiny._examples(quick, tiny.tiny_tokenizer())[1]
    assert ids == [*past, *answer]
    trained = [label for label in labels if label != tiny.IGNORED]
    assert trained == [*called[1:], *answer], "not the question, what the tool says, and the call's first token"


@pytest.mark.slow
def test_the_sparse_start_is_another_policy_and_hardly_ever_right() -> None:
    dense, sparse = (load_policy(PolicySettings(model=name)) for name in (TINY, TINY_SPARSE))
    assert dense.name != sparse.name and dense.tokenizer_hash == sparse.tokenizer_hash
    verifier = InlineVerifier(TINY_TASKS)
    found = []
    for policy in (dense, sparse):
        engine = TransformersEngine(policy, GenerationSettings(max_batch_sequences=1024))
        found.append(evaluate(engine, verifier, Sampling(max_new_tokens=16), 360, HELD_OUT_STREAMS).accuracy or 0.0)
    assert found[0] > 0.05 > 0.03 > found[1]
