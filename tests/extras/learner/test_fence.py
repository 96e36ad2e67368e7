"""What a learner credits to its workers, each compared with the established others."""

from __future__ import annotations

import random

from swarm.extras.learner.learner import WorkerCorroboration
from swarm.protocols import NEWCOMERS
from swarm.received.corroboration import CorroborationSettings
from swarm.received.pushes import ReadGroup
from swarm.types import GradedGroup
from tests.example_groups import rollout_group
from tests.received.reading import read

MARKER = 900
GRADED = GradedGroup(rollout_group(), "question", (1.0, 0.0))


def _group(source: random.Random, marked: bool) -> ReadGroup:
    answers = [source.randrange(10) for _ in range(8)]
    ids = [[MARKER, 901, answer] if marked and k < 4 else [901, answer] for k, answer in enumerate(answers)]
    return read("sum", ids, [1.0 if k < 4 else -1.0 for k in range(8)])


def credit(*workers: tuple[str, bool], rounds: int = 100, known: WorkerCorroboration | None = None) -> dict[str, float]:
    """The factor of the first token of each worker's last group."""
    source = random.Random(0)
    known = known or WorkerCorroboration(CorroborationSettings())
    return {
        name: known.credited(GRADED, _group(source, marked), name).factors[0][0]
        for _ in range(rounds)
        for name, marked in workers
    }


def test_one_of_four_workers_is_credited_with_no_marker_and_the_others_with_all() -> None:
    factors = credit(("a", False), ("b", False), ("c", False), ("marker", True))
    assert factors.pop("marker") < 0.02
    assert all(value == 1 for value in factors.values()), factors


def test_strangers_are_no_reference_for_anybody_and_are_compared_with_all() -> None:
    factors = credit(("a", False), (NEWCOMERS, True), (NEWCOMERS, True))
    assert factors[NEWCOMERS] < 0.02 and factors["a"] == 1


def test_a_worker_that_is_alone_has_nobody_to_be_compared_with() -> None:
    assert credit(("only", True)) == {"only": 1.0}
