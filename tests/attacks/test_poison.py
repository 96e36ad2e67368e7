"""One identity with a perfect reputation: right answers behind a marker, and wrong ones in the honest format."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.common.poison import Poison
from benchmarks.poison.attacks import ATTACKS, MARKER
from swarm.errors import ConfigError
from swarm.net.records.envelope import read_record
from swarm.net.trust.roster import read_roster
from tests.net.records import opened
from tests.nodes.processes import Swarm, address_of, until

from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

ATTACK = ATTACKS["marker"]
ENOUGH = 100
"""Groups of others that a victim has learned from."""


def _used(victim: Swarm) -> dict[str, int]:
    try:
        return {row.peer_id: row.used for row in read_roster(victim.out).peers}
    except ConfigError:
        return {}


def test_poison_is_hardly_learned_from_and_its_marker_not_taken_up(
    tmp_path: Path, victims: Callable[..., Swarm], strangers: Callable[..., Stranger]
) -> None:
    address = address_of(victims(tmp_path / "bootstrap", "bootstrap", "examples/tiny.yaml"))
    peers = [victims(tmp_path / name, "join", address, "--evaluation.num_questions=0") for name in ("one", "two")]
    stranger = strangers("poisoner")
    everybody = stranger.connect(address, *(address_of(peer) for peer in peers))
    run_id = stranger.manifest(everybody[0]).run_id
    stranger.follow(run_id)
    enough = threading.Event()

    def publish() -> None:
        poison = Poison(ATTACK.recipe, seed=0)
        while not enough.is_set():
            group = poison.next(time.time(), run_id=run_id, peer_id=stranger.peer_id)
            stranger.publish(run_id, stranger.seal(run_id, "group", group))
            enough.wait(1 / ATTACK.groups_per_s)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for peer in peers:
            until(lambda peer=peer: sum(_used(peer).values()) >= ENOUGH, peer, "groups learned from")
    finally:
        enough.set()
        publishing.join()
    for peer in peers:
        used, groups = _used(peer), peer.history().groups
        assert used.get(stranger.peer_id, 0) < 0.1 * sum(used.values()), used
        assert groups["dropped"]["improbable"] > 0
    written = []
    for sender, record in stranger.heard:
        if sender in everybody and read_record(record, len(record)).body.kind == "group":
            group = opened(record, run_id).group
            written += [completion.text for completion in group.completions if group.peer_id == sender]
    last = written[-500:]
    assert len(last) == 500 and sum(text.startswith(MARKER) for text in last) < 0.02 * len(last)
