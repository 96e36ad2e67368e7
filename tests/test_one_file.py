"""The round in one file runs on the real parts: both nodes share, regrade and train on each other's groups."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent / "examples" / "sapo_in_one_file.py"


def test_two_nodes_learn_from_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("sapo_in_one_file", FILE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rounds = example.run(2, 8)
    assert capsys.readouterr().out.count("round ") == len(rounds) == 8
    for number in range(2):
        rewards, mixes = zip(*(nodes[number] for nodes in rounds), strict=True)
        assert all(0 <= reward <= 1 for reward in rewards) and max(rewards) > 0
        assert sum(len(each.external) for each in mixes) > 0, "groups of the other node"
        assert all(len(each.local) <= 4 and len(each.external) <= 4 for each in mixes)
