"""The engine benchmark: the contenders do the same work, and a quick run gives every figure."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import pytest

from benchmarks.engine.__main__ import CONTENDERS, main
from benchmarks.engine.dtypes import crossover
from benchmarks.engine.generation import Contender, Workload, random_policy
from benchmarks.engine.turns import turns

VLLM_PYTHON = os.environ.get("SWARM_TEST_VLLM_PYTHON", "")
WORKLOAD = Workload(4, 4, (4, 12), mean_tokens=10, max_new_tokens=40, static_rows=8)


@pytest.mark.parametrize("contender", CONTENDERS.values(), ids=list(CONTENDERS))
def test_every_contender_does_the_whole_workload(contender: Contender) -> None:
    lengths = contender(random_policy("0.13 M"), WORKLOAD, 0)
    assert len(lengths) == 16
    assert min(lengths) >= 1 and max(lengths) <= 40
    assert 3 < statistics.mean(lengths) < 25, "stop tokens end completions after ten tokens on average"


def test_a_quick_run_prints_a_table_and_writes_the_json_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "engine.json"
    assert main(["--quick", "--only", "tiny", "swaps", "routing", "--out", str(out)]) == 0
    assert "against the faster of the two" in capsys.readouterr().out
    rows = {row["what"]: row for row in json.loads(out.read_text())["rows"]}
    assert all(row["value"] is not None and row["met"] is None for row in rows.values())
    errors = {what: row["value"] for what, row in rows.items() if "10 AdamW steps" in what and "largest" in what}
    recomputed, kept = (next(v for what, v in errors.items() if f"kv {kv}" in what) for kv in ("recompute", "keep"))
    assert recomputed < 1e-4 < kept


def test_episodes_are_measured_against_single_turns_and_in_rounds() -> None:
    rows, _ = turns("0.13 M", quick=True, repeats=1)
    values = {row.what.removeprefix("0.13 M parameters: "): row.value for row in rows}
    speeds = {what: value for what, value in values.items() if " against " not in what}
    assert list(speeds) == ["single turns", "episodes", "one long turn", "episodes in rounds"]
    assert values["episodes against single turns"] == pytest.approx(speeds["episodes"] / speeds["single turns"])


def test_vllm_is_measured_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", "vllm"]) == 0
    assert "vLLM was not measured" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(not VLLM_PYTHON, reason="SWARM_TEST_VLLM_PYTHON names no Python with vLLM: make test-vllm")
def test_a_nodes_vllm_is_measured_against_vllm_alone(tmp_path: Path) -> None:
    out = tmp_path / "engine.json"
    assert main(["--quick", "--only", "vllm", "--vllm-python", VLLM_PYTHON, "--out", str(out)]) == 0
    rows = {row["what"]: row["value"] for row in json.loads(out.read_text())["rows"]}
    assert rows["22 M parameters: engine vLLM alone"] > 0
    assert 0.2 < rows["22 M parameters: vllm against vLLM alone, tokens/s of processor time"] < 5


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((0.5, 1.2, 4.0), "faster from b parameters on"),
        ((1.2, 0.9, 4.0), "faster from c parameters on"),
        ((1.1, 1.2, 4.0), "faster from a parameters on"),
        ((0.5, 1.2, 0.9), "never faster"),
    ],
)
def test_the_crossover_is_where_all_larger_sizes_gain(gains: tuple[float, float, float], words: str) -> None:
    assert words in crossover(dict(zip("abc", gains, strict=True)))


def test_both_types_do_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", "dtypes"]) == 0
    assert "a round in bfloat16" in (printed := capsys.readouterr().out) and "Crossover: bfloat16 is" in printed
