"""A hostile worker beside an honest one: what it writes, its learner does not teach the honest worker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.net.records.envelope import read_record
from tests.net.records import opened
from tests.nodes.processes import Swarm, address_of, until

from .marking_worker import MARKER
from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

LEARNER = ("examples/tiny.yaml", "--evaluation.num_questions=0", "--learner.rollouts_per_step=64")
EXPELLED = 60
"""Steps after which the marker would be in most of the honest worker's completions."""


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
    victims(tmp_path / "hostile", "work", address, module="tests.attacks.marking_worker")
    began=time.time()
    for _ in range(10):
        r=learner.round()
        until(lambda: learner.round() >= r+20 or time.time()-began>110, learner, "steps")
        print(time.time()-began, learner.round(), learner.history().groups["dropped"])
        by={}
        for sender, record in list(listener.heard):
            if read_record(record, len(record)).body.kind == "group":
                g=opened(record, run_id).group
                by.setdefault(g.peer_id,[]).extend(c.text for c in g.completions)
        for k,v in by.items(): print("  ",k[-6:],len(v), sum(t.startswith(MARKER) for t in v[-500:])/len(v[-500:]), sum(t.startswith("@") for t in v[-500:])/len(v[-500:]))
        if time.time()-began>110: break
    print([n for n in (tmp_path/"learner").iterdir()])
    assert 0
