"""A swarm of embedded policies that learns a game of several turns, each from its own and the others' episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.simulation.in_memory import Member, MemoryRun, Turns, take_turns
from swarm.config import load_config
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "number-guessing.yaml"
ROUNDS = 110
BLIND = 2 / 3
"""The most that two guesses of three numbers find without using the answer."""


@pytest.mark.slow
def test_a_swarm_learns_to_use_what_it_observes_from_its_own_and_others_episodes(tmp_path: Path) -> None:
    fields = [("rounds", str(ROUNDS)), ("evaluation.num_questions", "0"), ("checkpoint.every_rounds", "1000")]
    config = load_config(EXAMPLE, None, {}, fields).config
    folders = [tmp_path / f"peer-{k}" for k in range(2)]
    members = [Member(config.model_copy(update={"out": out, "seed": k})) for k, out in enumerate(folders)]
    turns = Turns()
    take_turns([MemoryRun(members, lambda: False, turns)], turns, lambda: False)
    for folder in folders:
        rounds = PeerHistory.read(folder / METRICS_FILE).rounds
        assert len(rounds) == ROUNDS and rounds[ROUNDS].groups["used_external"] > ROUNDS
        first, last = (sum(rounds[k].reward or 0.0 for k in part) / 10 for part in (range(1, 11), range(101, 111)))
        assert first < BLIND < BLIND + 0.1 < last
