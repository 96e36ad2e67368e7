"""A hostile worker beside an honest one: what it writes, its learner does not teach the honest worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.reasons import FRAUDS
from tests.extras.learner.marking_worker import MARKER
from tests.nodes.processes import Swarm, address_of, until

pytestmark = [pytest.mark.slow, pytest.mark.network]

LEARNER = ("examples/tiny.yaml", "--evaluation.num_questions=0", "--learner.rollouts_per_step=32")
STEPS = 40
"""With the hostile worker, before which the honest one makes some: without a defence most completions are marked."""
LAST = 500


def test_a_marker_before_rewarded_completions_is_found_and_not_learned(
    tmp_path: Path, victims: Callable[..., Swarm]
) -> None:
    learner = victims(tmp_path / "learner", "learn", *LEARNER)
    address = address_of(learner)
    honest = victims(tmp_path / "honest", "work", address)
    until(lambda: learner.round() >= 5, learner, "steps with the honest worker")
    hostile = victims(tmp_path / "hostile", "work", address, module="tests.extras.learner.marking_worker")
    honest_id, hostile_id = _peer_id(honest), _peer_id(hostile)
    until(lambda: _refused(learner).get("unlike_samples", 0) > 0, learner, "the fraud is found")
    begun = learner.round()
    until(lambda: learner.round() >= begun + STEPS, learner, "steps with the hostile worker")
    samples = _samples(learner)
    assert {each["sender"] for each in samples if each["reason"] in FRAUDS} == {hostile_id}
    assert {each["sender"] for each in samples if each["outcome"] == "used_external"} == {honest_id}
    said = [
        answer["turns"][0]["text"] for each in samples if each["sender"] == honest_id for answer in each["completions"]
    ]
    last = said[-LAST:]
    assert len(last) == LAST and sum(text.startswith(MARKER) for text in last) < 0.02 * LAST


def _peer_id(node: Swarm) -> str:
    return address_of(node).rpartition("/")[2]


def _refused(learner: Swarm) -> dict[str, int]:
    return learner.history().groups["dropped"]


def _samples(learner: Swarm) -> list[dict[str, Any]]:
    """The groups that a learner keeps for people."""
    return [json.loads(line) for line in (learner.out / "samples.jsonl").read_text().splitlines()]
