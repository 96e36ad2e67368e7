from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from swarm.policy import tiny
from swarm.policy.config import PolicySettings
from swarm.policy.loading import load_policy


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
    monkeypatch.setattr(tiny.WarmStart.__init__, "__defaults__", (1, 20, 3, 8, 5e-3, 2, 0.1, 0.6, 0.25))
    seen: list[tuple[int, int]] = []
    first = tiny.ensure_tiny(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, 3)
    assert tiny.ensure_tiny(progress=lambda done, total: pytest.fail("made twice")) == first
    AutoModelForCausalLM.from_pretrained(first)
    assert load_policy(PolicySettings(model=str(first))).encode_prompt("Calculate 1 + 2.")
