"""A peer whose reference is its own best policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.simulation.configs import Member
from nodes.simulation.in_memory import MemoryRun, Turns, take_turns
from swarm.config import load_config
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE


@pytest.mark.parametrize("reference", ["initial", "best"])
def test_the_reference_is_the_policy_after_the_best_rounds(reference: str, tmp_path: Path) -> None:
    values = {
        "out": str(tmp_path),
        "rounds": 8,
        "seed": 1,
        "evaluation": {"num_questions": 0},
        "mix": {"local": 4, "external": 0},
        "update": {"reference_kl": 1e-9, "reference": reference, "minibatches": 1},
        "watch": {"window_rounds": 2},
    }
    turns = Turns()
    take_turns([MemoryRun([Member(load_config(None, values).config)], lambda: False, turns)], turns, lambda: False)
    rounds = [round for _, round in sorted(PeerHistory.read(tmp_path / METRICS_FILE).rounds.items())]
    means = [(before.reward + after.reward) / 2 for before, after in zip(rounds, rounds[1:], strict=False)]
    best = [2 + k for k in range(len(means)) if means[k] > max(means[:k], default=0.0)]
    renewed = [each.round - 1 for each in rounds[1:] if each.figures["kl"] < 1e-6]
    assert best and rounds[0].figures["kl"] < 1e-6 < rounds[1].figures["kl"]
    assert renewed == ([] if reference == "initial" else [each for each in best if each < len(rounds)])
