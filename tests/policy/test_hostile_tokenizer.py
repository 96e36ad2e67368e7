"""Tokenizers of a hostile model directory: refused in one line, before they hang or fill the node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from swarm.errors import PolicyError
from swarm.policy.config import PolicySettings
from swarm.policy.loading import find_source, load_policy
from swarm.policy.reading import TOKENIZER_FILE, try_tokenizer


def _split(pattern: str) -> dict[str, object]:
    rule = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": rule}


def _replace(pattern: dict[str, str], content: str, times: int = 1) -> dict[str, object]:
    rule = {"type": "Replace", "pattern": pattern, "content": content}
    return {"normalizer": {"type": "Sequence", "normalizers": [rule] * times}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(find_source("tiny"), tmp_path / "model")
    return tmp_path / "model"


def _change(directory: Path, **changes: object) -> None:
    file = directory / TOKENIZER_FILE
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **changes}))


LONG_START = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0] * 500_000, "tokens": ["<s>"] * 500_000}},
}
"""What a prompt without a chat template begins with."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (_split("(a+)+$"), "retry-limit"),
        (_split("magic(q|qq)+$"), "retry-limit"),
        (_split("(?=(?:z|z){18}b)"), "takes over 2 s"),
        (_replace({"Regex": "(a|aa)+$"}, "x"), "retry-limit"),
        (_replace({"String": "a"}, "aaaaaaaaaa", 7), "memory"),
        (_split("|".join(f"a{number}" for number in range(10_000))), "its patterns have"),
        (_split("("), "Oniguruma"),
        ({"model": {"type": "BPE", "vocab": 3}}, "Exception"),
        ({"post_processor": LONG_START}, "tokens of"),
    ],
    ids=[
        "nested",
        "behind a word",
        "every place",
        "normalizer",
        "growth",
        "long",
        "malformed",
        "no vocabulary",
        "start",
    ],
)
def test_a_tokenizer_that_hangs_or_fills_memory_is_refused_in_one_line(
    directory: Path, changes: dict[str, object], reason: str
) -> None:
    _change(directory, **changes)
    with pytest.raises(PolicyError, match=reason) as refused:
        load_policy(PolicySettings(model=str(directory), device="cpu"))
    assert "\n" not in str(refused.value)


def test_an_honest_tokenizer_is_tried_and_loaded(directory: Path) -> None:
    try_tokenizer(str(directory), None)
    (directory / TOKENIZER_FILE).unlink()
    try_tokenizer(str(directory), None)  # others have no patterns of their authors
