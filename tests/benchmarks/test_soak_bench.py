"""The soak's verdict on planted courses, and its sampling of a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common.children import ChildProcesses
from benchmarks.soak.census import DISK, MEMORY, TEMPORARY, census, growth
from benchmarks.soak.courses import CHURNING_PEER, Course, keep, notes, rows

NUM_NODES = 8
HOURS = [k / 30 for k in range(60)]


def courses(leaking: int | None = None) -> list[Course]:
    found = []
    for index in range(NUM_NODES):
        samples = [
            {MEMORY: 300 + (k if index == leaking else 0), DISK: 5 + 0.01 * k, TEMPORARY: 3.0}
            for k in range(len(HOURS))
        ]
        found.append(Course(f"node-{index}", HOURS, samples, [10 * k for k in range(len(HOURS))]))
    return found


def test_what_is_flat_is_met_and_a_leak_of_one_node_is_not() -> None:
    flat = {row.what.partition(" ")[0]: row for row in rows(courses(), judged=True)}
    assert flat["memory"].met and flat["temporary"].met and flat["disk"].value == pytest.approx(0.001)
    leaking = {row.what.partition(" ")[0]: row for row in rows(courses(leaking=2), judged=True)}
    assert leaking["memory"].met is False
    killed = {row.what.partition(" ")[0]: row for row in rows(courses(leaking=CHURNING_PEER), judged=True)}
    assert killed["memory"].met, "a node that starts again all the time has no drift of its own"


def test_growth_compares_the_last_third_with_the_one_before() -> None:
    assert growth([1, 1, 1, 1, 1]) is None
    assert growth([9, 9, 1, 1, 1.5, 1.5]) == 0.5
    assert growth([0] * 6) == 0 and growth([0, 0, 0, 0, 2, 2]) == 1


def test_a_process_is_counted_with_its_descendants_and_files(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_bytes(bytes(2**20))
    with ChildProcesses(tmp_path) as processes:
        child = processes.start("node", [sys.executable, "-c", code])
        while len(child.tree()) < 2:
            assert child.running
        found = census(child, tmp_path / "out", tmp_path / "none")
    assert (
        found[MEMORY] == pytest.approx(found[f"{MEMORY}, node"] + found[f"{MEMORY}, other"]) and found["threads"] >= 2
    )
    assert found[DISK] == pytest.approx(1) and found[TEMPORARY] == 0


def test_what_was_seen_is_kept_at_any_time(tmp_path: Path) -> None:
    keep(courses(), tmp_path)
    assert len(json.loads((tmp_path / "soak.json").read_text())) == NUM_NODES
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    keep([Course("nothing yet")], tmp_path)
    assert notes([Course("nothing yet")]) and len(rows([Course("x")] * NUM_NODES, judged=True)) == 7


def test_its_options_are_shown() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--help"], capture_output=True, text=True, check=True
    )
    assert "--hours" in shown.stdout and "--only" not in shown.stdout
