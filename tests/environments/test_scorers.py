"""What reaches the scorers of every data set: as written down, as read, and as hostile answers find it."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from reasoning_gym.factory import DATASETS
from reasoning_gym.games.rush_hour import Board

from swarm.environments.answering import RewardSettings
from swarm.environments.scoring.answer_guard import REACH, Reach
from swarm.environments.scoring.scorers import OWN_SCORERS
from swarm.environments.sources.reasoning_gym import ReasoningGymSource, ReasoningGymTask, make_dataset
from swarm.errors import TaskError
from tests.environments.hostile_answers import HOSTILE

ROOT = Path(__file__).parents[2]
READ = Path(__file__).with_name("scorers_read.json")
PAGE = ROOT / "benchmarks" / "results" / "scorers.md"

EVALUATED = {
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
}
HELPERS = {
    "arc_agi": ["reasoning_gym.arc.board_format"],
    "rearc": ["reasoning_gym.arc.board_format"],
    "chain_sum": ["reasoning_gym.utils"],
    "products": ["reasoning_gym.utils"],
    "rubiks_cube": ["magiccube.cube", "magiccube.cube_move"],
    "sokoban": [f"reasoning_gym.games.contrib.sokoban.src.{module}" for module in ("game", "player", "box", "utils")],
}
"""Other modules that a scorer hands the answer to."""
SLOW_TO_MAKE = {
    "arc_agi": 4,
    "futoshiki": 1,
    "intermediate_integration": 4,
    "knight_swap": 1,
    "puzzle24": 4,
    "quantum_lock": 4,
    "sokoban": 4,
    "zebra_puzzles": 1,
}
"""Questions a seed."""
NUM_QUESTIONS = 6
PARTS = sorted(REACH)
NUM_PARTS = 2


def source_digest(name: str) -> str:
    """Digest of all modules that a data set's scorer is in."""
    dataset = DATASETS[name][0]
    scorer = next(parent for parent in dataset.__mro__ if "score_answer" in vars(parent))
    modules = sorted({dataset.__module__, scorer.__module__, *HELPERS.get(name, [])})
    files = [Path(str(importlib.import_module(module).__file__)) for module in modules]
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=12).hexdigest()


def test_every_data_set_of_the_library_has_its_route() -> None:
    assert set(REACH) == set(DATASETS) - {"composite"}
    assert {name for name, reach in REACH.items() if reach is Reach.OWN} == set(OWN_SCORERS)
    assert set(OWN_SCORERS) >= EVALUATED


def test_the_page_says_the_same() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| ([a-z ]+?)(?:[:;].*)? \|$", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == sorted(REACH)
    assert {name: route for name, _, route in rows} == dict(REACH)


@pytest.mark.parametrize("name", sorted(REACH))
def test_the_scorer_is_the_one_that_was_read(name: str) -> None:
    assert source_digest(name) == json.loads(READ.read_text())[name], (
        f"the source of {name}'s scorer changed: read what of an answer reaches what, mend answer_guard.py and "
        f"benchmarks/results/scorers.md, then write {source_digest(name)} into {READ.name}"
    )


def test_a_data_set_that_nobody_read_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "brand_new", DATASETS["gcd"])
    with pytest.raises(TaskError, match="has not been reviewed"):
        ReasoningGymSource(ReasoningGymTask(name="brand_new"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REACH))
def test_the_librarys_own_answer_scores_as_the_library_scores_it(name: str) -> None:
    source = ReasoningGymSource(ReasoningGymTask(name=name, reward=RewardSettings(threshold=None)))
    library = make_dataset(name, 0, {})
    for seed in (2, 3, 4):
        for index in range(SLOW_TO_MAKE.get(name, NUM_QUESTIONS)):
            ref = source.question(seed, index).ref
            oracle = source.oracle(ref)
            if oracle is not None:
                wanted = min(1.0, library.score_answer(oracle, source._entry(ref.seed, ref.index)))
                assert source.score(ref, f"<answer>{oracle}</answer>") == pytest.approx(wanted, abs=1e-12), oracle
    assert source.counts["scorer_failures"] == 0


def solved_rush_hour(board_config: str) -> str:
    """Moves that solve a board, found breadth first."""
    queue, seen = deque([""]), set()
    while queue:
        moves = queue.popleft()
        board = Board(board_config)
        board.perform_moves(moves)
        if board.solved:
            return moves
        state = board.board_str()
        if state not in seen:
            seen.add(state)
            pieces = [chr(ord("A") + i) for i, piece in enumerate(board._pieces) if not piece.fixed]
            queue.extend(f"{moves}{piece}{way}1 " for piece in pieces for way in "+-")
    raise AssertionError("no solution")


def solved_boxnet(state: dict[str, list[str]]) -> str:
    """A plan that carries every box to its target, a column and then a row at a time."""
    plan = []
    for box, start in [(item, key) for key, items in state.items() for item in items if item.startswith("box_")]:
        target = f"target_{box[4:]}"
        x, y = (float(part) for part in start.split("_"))
        end_x, end_y = (float(p) for p in next(key for key, items in state.items() if target in items).split("_"))
        while (x, y) != (end_x, end_y):
            to_x = x + (end_x > x) - (end_x < x)
            to_y = y if to_x != x else y + (end_y > y) - (end_y < y)
            plan.append({f"Agent[{x}, {y}]": f"move({box}, square[{to_x}, {to_y}])"})
            x, y = to_x, to_y
        plan.append({f"Agent[{x}, {y}]": f"move({box}, {target})"})
    return json.dumps(plan)


SOLUTIONS = {
    "boxnet": lambda metadata: solved_boxnet(metadata["initial_state"]),
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "rubiks_cube": lambda metadata: metadata["example_correct_answer"],
    "rush_hour": lambda metadata: solved_rush_hour(metadata["board_config"]),
}
"""For data sets that keep no answer."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLUTIONS)
def test_solutions_of_data_sets_without_an_answer_score_1(name: str) -> None:
    options = {"max_moves": 8} if name == "rush_hour" else {}
    source = ReasoningGymSource(ReasoningGymTask(name=name, options=options))
    for index in range(8):
        ref = source.question(2, index).ref
        solution = SOLUTIONS[name](source._entry(ref.seed, ref.index)["metadata"])
        assert source.score(ref, f"<answer>{solution}</answer>") == 1.0, solution


def tripwire(folder: Path, *arguments: str) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.environments.tripwire", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcome: dict[str, dict] = json.loads(done.stdout.splitlines()[-1])
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_no_hostile_answer_is_run_or_rewarded_or_takes_long_on_any_data_set(part: int, tmp_path: Path) -> None:
    assert len(HOSTILE) > 200
    names = PARTS[part::NUM_PARTS]
    outcome = tripwire(tmp_path, *names)
    assert sorted(outcome) == names
    assert {name: found["events"] for name, found in outcome.items() if found["events"]} == {}
    assert {name: found["rewarded"] for name, found in outcome.items() if found["rewarded"]} == {}
    assert {name: found for name, found in outcome.items() if found["slowest_s"] > 1.0} == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_tripwire_trips_where_the_library_evaluates(tmp_path: Path) -> None:
    names = ("binary_matrix", "n_queens", "puzzle24", "simple_integration", "gcd")
    outcome = tripwire(tmp_path, "--library", *names)
    assert [name for name in names if outcome[name]["events"]] == list(names[:-1])
    assert (tmp_path / "escaped").exists()
