"""`share.summary`: what a member tells of itself reaches another, as its claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.net.roster import read_roster
from swarm.types import MemberSummary
from tests.nodes.processes import LOOPBACK, Swarm, address_of, swarm, until

pytestmark = [pytest.mark.slow, pytest.mark.network]

OPTIONS = [*LOOPBACK, "--evaluation.num_questions=16", "--checkpoint.every_rounds=100000"]


def test_a_member_tells_only_what_its_user_chose(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    def told(out: Path) -> list[MemberSummary]:
        return [row.summary for row in read_roster(out).peers if row.summary is not None]

    def knows(peer: Swarm) -> bool:
        return (peer.out / "peers.json").exists() and any(row.version for row in read_roster(peer.out).peers)

    with (
        swarm(one, "join", "--out", str(one), *OPTIONS, "--share.summary=true") as telling,
        swarm(two, "join", address_of(telling), "--out", str(two), *OPTIONS) as silent,
    ):
        until(lambda: knows(silent) and bool(told(two)), silent, "a summary")
        until(lambda: told(two)[0].rounds > 3, silent, "a later one")
        latest = told(two)[0]
        assert latest.rounds <= telling.round() and latest.given <= telling.history().groups["shared"]
        assert latest.asked == 16 and latest.evaluated_at == 0
        until(lambda: knows(telling), telling, "the other's entry")
        assert told(one) == [], "the other chose nothing"
