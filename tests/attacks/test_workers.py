"""A hostile worker beside an honest one: what it writes, its learner does not teach the honest worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm.net.records.envelope import read_record
from swarm.reasons import FRAUDS
from swarm.types import RolloutGroup
from tests.net.records import opened
from tests.nodes.processes import Swarm, address_of, until

from .marking_worker import MARKER
from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

LEARNER = ("examples/tiny.yaml", "--evaluation.num_questions=0", "--learner.rollouts_per_step=32")
STEPS = 40
"""With the hostile worker, before which the honest one makes some: without a defence most completions are marked."""
LAST = 500


def test_a_marker_before_rewarded_completions_is_found_and_not_learned(
    tmp_path: Path, victims: Callable[..., Swarm], strangers: Callable[..., Stranger]
) -> None:
    learner = victims(tmp_path / "learner", "learn", *LEARNER)
    address = address_of(learner)
    honest = victims(tmp_path / "honest", "work", address)
    until(lambda: learner.round() >= 5, learner, "steps with the honest worker")
    listener = strangers("listener")
    (learner_id,) = listener.connect(address)
    run_id = listener.manifest(learner_id).run_id
    listener.follow(run_id)
    hostile = victims(tmp_path / "hostile", "work", address, module="tests.attacks.marking_worker")
    honest_id, hostile_id = _peer_id(honest), _peer_id(hostile)
    until(lambda: _refused(learner).get("unlike_samples", 0) > 0, learner, "the fraud is found")
    begun = learner.round()
    until(lambda: learner.round() >= begun + STEPS, learner, "steps with the hostile worker")
    assert {peer for peer, fate in _fates(learner) if fate in FRAUDS} == {hostile_id}
    assert _refused(learner)["quarantined"] > 0, "it is not heard any more"
    said = [each.text for group in _heard(listener, run_id) if group.peer_id == honest_id for each in group.completions]
    last = said[-LAST:]
    assert len(last) == LAST and sum(text.startswith(MARKER) for text in last) < 0.02 * LAST


def _peer_id(node: Swarm) -> str:
    return address_of(node).rpartition("/")[2]


def _refused(learner: Swarm) -> dict[str, int]:
    return learner.history().groups["dropped"]


def _fates(learner: Swarm) -> Iterator[tuple[str, str]]:
    """(author, what became of a group) of the samples that a learner keeps."""
    for line in (learner.out / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        yield sample["sender"], sample["reason"]


def _heard(listener: Stranger, run_id: str) -> Iterator[RolloutGroup]:
    for _, record in listener.heard:
        if read_record(record, len(record)).body.kind == "group":
            yield opened(record, run_id).group
