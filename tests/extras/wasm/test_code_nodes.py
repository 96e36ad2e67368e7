"""Two nodes whose questions have tests: each runs the other's programs again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("wasmtime", reason="needs the extra tools")

from nodes.simulation.in_memory import Member, MemoryRun, Turns, take_turns  # noqa: E402
from swarm.config import load_config  # noqa: E402
from swarm.environments.mixture import TaskMixture  # noqa: E402
from swarm.telemetry.history import PeerHistory  # noqa: E402
from swarm.telemetry.records import METRICS_FILE  # noqa: E402
from swarm.telemetry.samples import read  # noqa: E402
from swarm.types import Grade  # noqa: E402

EXAMPLE = Path(__file__).parent.parent.parent.parent / "examples" / "code.yaml"
ROUNDS = 12
RIGHT = {
    "add": "a + b",
    "is_odd": "n % 2 == 1",
    "ascending": "sorted(items)",
    "upper": "s.upper()",
    "mean": "(a + b) / 2",
    "count": "len(items)",
}


def test_the_example_s_tests_are_passed_by_right_functions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parent.parent)
    mixture = TaskMixture(load_config(EXAMPLE).config.tasks)
    graded = set()
    for index in range(200):
        question = mixture.question(1, index)
        head = str(question.prompt).split("function ")[1].split(" that")[0]
        name = head.partition("(")[0]
        if name not in RIGHT or name in graded:
            continue
        right, wrong = (f"```python\ndef {head}:\n    return {body}\n```" for body in (RIGHT[name], "None"))
        grade = mixture.grade(question.ref, [(right,), (wrong,)])
        assert isinstance(grade, Grade) and grade.rewards == (1.0, 0.0), grade
        graded.add(name)
    assert len(graded) >= 4 and mixture.counts["malformed_rows"] == 0


@pytest.mark.slow
def test_nodes_run_each_other_s_programs_and_train_on_them(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Calculate {a} + {b}.", "tests": [f"assert f() == {a + b}"], "start": "def f(): return \\"}
        for a in range(1, 4)
        for b in range(1, 4)
    ]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = {"kind": "code", "name": "sums", "path": str(file), "before": "start", "ask": ""}

    def config(name: str) -> Member:
        fields = {
            "tasks": json.dumps([task]),
            "out": tmp_path / name,
            "rounds": ROUNDS,
            "policy.model": "tiny",
            "mix.local": 2,
            "mix.external": 2,
            "evaluation.num_questions": 0,
            "seed": len(name),
            "telemetry.samples_per_outcome": 1_000,
        }
        return Member(load_config(command_line=[(key, str(value)) for key, value in fields.items()]).config)

    clock = Turns()
    take_turns([MemoryRun([config("a"), config("bb")], lambda: False, clock)], clock, lambda: False)
    for name in ("a", "bb"):
        groups = PeerHistory.read(tmp_path / name / METRICS_FILE).rounds[ROUNDS].groups
        assert groups["used_external"] > 0 and groups["dropped"].get("options_differ", 0) == 0, groups
        used = [sample for sample in read(tmp_path / name) if sample.outcome == "used_external"]
        assert used and all({each.reward for each in sample.completions} == {0.0, 1.0} for sample in used)
        for each in (each for sample in used for each in sample.completions):
            assert (each.reward == 1.0) is ("passes 1 of 1" in str(each.found))
