"""How far the members of a run are: what is measured here, and what is only claimed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from nodes.commands.watching import check_named, find_nodes, show_top
from swarm.errors import ConfigError
from swarm.net.roster import write_roster
from swarm.net.trust.credit import Credit
from swarm.telemetry.history import FIRST_ROUNDS, PeerHistory
from swarm.telemetry.nodes import MAX_CLAIMS, Leader, NodeReader, credited, kinds, leaders
from swarm.telemetry.records import METRICS_FILE
from swarm.types import MemberSummary
from tests.telemetry.folders import crowd, events, hostile, roster, row, swarm
from tests.telemetry.synthetic import EPOCH, write

NOW = EPOCH + 10_000


def _nodes(folder: Path) -> list[NodeReader]:
    nodes = [NodeReader(found.folder, found.name, found.control) for found in find_nodes([folder])]
    for node in nodes:
        node.read()
    return nodes


def test_nodes_of_this_machine_are_measured_and_others_only_claim(tmp_path: Path) -> None:
    swarm(tmp_path, NOW, num_nodes=2)
    told = MemberSummary(rounds=7, given=50, used=40, correct=1, asked=4, evaluated_at=5)
    liar = MemberSummary(rounds=1, correct=10**9, asked=10**9)
    for index, received in ((1, 30), (2, 12)):
        others = [row(3, 10, name="far", received=received, summary=told), row(4, 0, name="liar", summary=liar)]
        about = row(3 - index, 10, summary=MemberSummary(rounds=10**6))
        write_roster(tmp_path / f"peer-{index}", roster(index, NOW, [*others, about, row(5, 5, name="silent")]))
    found = leaders(_nodes(tmp_path))
    assert [(each.name, each.claimed) for each in found] == [
        ("liar", True), ("peer-1", False), ("peer-2", False), ("far", True)
    ]  # fmt: skip
    far = found[-1]
    assert (far.rounds, far.given, far.used, far.received_here, far.used_here) == (7, 50, 40, 42, 20)
    assert far.accuracy is not None and far.accuracy[0] == 0.25 and far.accuracy[1] < 0.1 < 0.6 < far.accuracy[2]
    assert {each.rounds for each in found if not each.claimed} == {200}, "what is measured counts, not what is said"


def test_who_runs_what_is_counted_once_for_each_member(tmp_path: Path) -> None:
    swarm(tmp_path, NOW, num_nodes=2, control=False)
    worker = row(7, 0, role="worker", version="0.2.0", summary=MemberSummary(rounds=1, weights=12))
    for index in (1, 2):
        write_roster(tmp_path / f"peer-{index}", roster(index, NOW, [row(3, 1), row(4, 1), worker]))
    found = [(kind.role, kind.version, kind.weights, kind.members) for kind in kinds(_nodes(tmp_path))]
    assert found == [("peer", "0.1.0", None, 2), ("worker", "0.2.0", 12, 1)]


def test_credit_is_that_which_most_members_measured(tmp_path: Path) -> None:
    swarm(tmp_path, NOW, num_nodes=2, control=False)
    for index, credit in ((1, Credit(0.5, 3)), (2, Credit(0.7, 9))):
        rows = [replace(row(3, 1, name="far"), credit=credit), replace(row(4, 1), credit=Credit(1.0, 2)), row(5, 1)]
        write_roster(tmp_path / f"peer-{index}", roster(index, NOW, rows))
    found = credited(_nodes(tmp_path))
    assert [(each.worth, each.members) for each in found] == [(1.0, 2), (0.7, 9)] and found[1].name == "far"


def test_a_crowd_is_bounded(tmp_path: Path) -> None:
    nodes = _nodes(crowd(tmp_path, NOW))
    found = leaders(nodes)
    assert len(found) == MAX_CLAIMS + 1
    assert sum(kind.members for kind in kinds(nodes)) == 200


def test_strangers_names_are_cut_and_printable(tmp_path: Path) -> None:
    nodes = _nodes(hostile(tmp_path, NOW))
    texts = [text for each in leaders(nodes) for text in (each.name, each.model, each.peer)]
    texts += [text for kind in kinds(nodes) for text in (kind.role, kind.model, kind.version)]
    assert len(texts) > 20 and all(text.isprintable() and len(text) <= 60 for text in texts)


def test_the_terminal_says_that_claims_are_claims(tmp_path: Path) -> None:
    crowd(tmp_path, NOW)
    output = io.StringIO()
    show_top([tmp_path], True, Console(file=output, width=140, height=60))
    assert "member-0" in output.getvalue() and "yellow: What others say" in output.getvalue()


@pytest.mark.parametrize("summary", [None, MemberSummary(rounds=0)])
def test_a_member_without_an_evaluation_has_no_accuracy(tmp_path: Path, summary: MemberSummary | None) -> None:
    swarm(tmp_path, NOW, num_nodes=1, control=False)
    write_roster(tmp_path / "peer-1", roster(1, NOW, [replace(row(3, 1), summary=summary)]))
    claimed: list[Leader] = [each for each in leaders(_nodes(tmp_path)) if each.claimed]
    assert [each.accuracy for each in claimed] == ([] if summary is None else [None])


def test_bounded_histories_say_the_same_of_the_present(tmp_path: Path) -> None:
    path = write(tmp_path, events(1, 100, 0.0))
    whole, short = PeerHistory.read(path), PeerHistory(path, max_rounds=30)
    while short.tail(20_000):
        pass
    assert len(short.rounds) == FIRST_ROUNDS + 30 and short.latest == whole.latest and short.worth == whole.worth
    assert short.recent_reward(20) == whole.recent_reward(20)
    assert short.seconds_per_round() == whole.seconds_per_round()


def test_a_new_run_in_the_folder_starts_over(tmp_path: Path) -> None:
    home = tmp_path / "peer-1"
    write(home, events(1, 40, 0.0))
    node = NodeReader(home)
    node.read()
    write(home, events(1, 5, 0.0))
    node.read()
    assert [number for number, _ in node.curves["reward"].points()] == [1, 2, 3, 4, 5]


def test_find(tmp_path: Path) -> None:
    folder = swarm(tmp_path, NOW, num_nodes=11, num_rounds=1)
    names = [found.name for found in find_nodes([folder])]
    assert names[1] == "peer-2" and names[-2:] == ["peer-11", "alone"]
    assert [found.name for found in find_nodes([folder / "peer-3"])] == ["peer-3"]
    with pytest.raises(ConfigError, match="there is no directory"):
        check_named([tmp_path / "nowhere"])


def test_folders_of_one_name_are_called_with_those_around_them(tmp_path: Path) -> None:
    for folder in ("a/peer", "b/peer", "b/other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / METRICS_FILE).touch()
    found = find_nodes([tmp_path / "a", tmp_path / "b"])
    assert [each.name for each in found] == ["a/peer", "b/peer", "other"]
