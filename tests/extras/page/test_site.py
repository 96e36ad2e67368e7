"""What the page is told: true to the files, bounded, and harmless whoever wrote the texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from nodes.commands.watching import find_nodes
from swarm.extras.page.site import MAX_MEMBERS, Site
from swarm.net.roster import PROGRESS_FILE, Progress, read_roster, write_progress
from swarm.telemetry.curves import MAX_BINS
from swarm.telemetry.history import FIRST_ROUNDS, KEPT_ROUNDS
from swarm.telemetry.nodes import NodeReader
from swarm.telemetry.records import METRICS_FILE, NoteEvent, RoundEvent, encode
from swarm.types.thumbnails import as_url, thumbnail
from tests.telemetry.folders import LONG, PICTURE, crowd, ending_at, events, hostile, swarm
from tests.telemetry.synthetic import EPOCH, TASKS, write

NOW = EPOCH + 10_000


def _site(folder: Path) -> Site:
    site = Site(lambda: find_nodes([folder]), lambda: NOW)
    site.refresh()
    return site


def _detail(site: Site, place: int = 0) -> dict:  # type: ignore[type-arg]
    found = site.detail(place)
    assert found is not None
    return json.loads(found)  # type: ignore[no-any-return]


def test_the_answer_comes_first_from_the_control(tmp_path: Path) -> None:
    overview = json.loads(_site(swarm(tmp_path, NOW)).overview)
    answer = overview["answer"]
    assert (answer["standing"], answer["word"]) == ("helps", "The swarm helps")
    assert answer["per_round"].startswith("×1.") and answer["in_time"].startswith("×1.")
    assert "with others, 0." in answer["why"] and overview["alarms"] == []
    assert [node["name"] for node in overview["nodes"]] == ["peer-1", "peer-2", "peer-3", "peer-4", "alone"]
    assert [node["control"] for node in overview["nodes"]] == [False] * 4 + [True]


def test_without_a_control_from_the_nodes_own_estimates(tmp_path: Path) -> None:
    one = json.loads(_site(swarm(tmp_path / "one", NOW, num_nodes=1, control=False)).overview)["answer"]
    assert (one["standing"], one["per_round"], one["in_time"]) == ("mixed", "×1.5 (1.2 to 1.9)", "×0.9 (0.7 to 1.1)")
    four = json.loads(_site(swarm(tmp_path / "four", NOW, control=False)).overview)["answer"]
    assert four["standing"] == "mixed" and "peer-3: Mixed: per round ×1.5 (1.2 to 1.9)" in four["why"]
    nodes = json.loads(_site(swarm(tmp_path / "with control", NOW)).overview)["nodes"]
    assert [(node["help"], node["help_in_time"]) for node in nodes[-2:]] == [
        ("×1.5 (1.2 to 1.9)", "×0.9 (0.7 to 1.1)"),
        ("", ""),
    ]
    nobody = json.loads(_site(tmp_path / "nobody").overview)["answer"]
    assert nobody["standing"] == "open" and "Not known yet" in nobody["word"]


def test_who_gives_what_to_whom_is_what_the_takers_counted(tmp_path: Path) -> None:
    site = _site(swarm(tmp_path, NOW))
    seen = json.loads(site.overview)["sharing"]
    names = [member["name"] for member in seen["members"]]
    used = {(names[gift["giver"]], names[gift["taker"]]): gift["used"] for gift in seen["gifts"]}
    assert used["peer-3", "peer-1"] == 121 and used["peer-1", "peer-3"] == 43
    detail = _detail(site, 2)
    assert detail["given"]["takers"] == 3 and detail["given"]["used"] == 3 * 120 + 1 + 2 + 4
    assert detail["given"]["shared"] == detail["groups"]["shared"] > 0


def test_a_node_in_detail(tmp_path: Path) -> None:
    site = _site(swarm(tmp_path, NOW))
    detail = _detail(site, 1)
    assert detail["name"] == "peer-2" and detail["alerts"] == []
    assert {"reward", "control", "accuracy", "entropy", "gradient norm", "largest lag"} <= set(detail["curves"])
    assert {"own groups", "others' groups", "bytes received per second", "seconds per round"} <= set(detail["curves"])
    assert detail["curves"]["bytes sent per second"][-1] == [200, pytest.approx(4_600 / 0.5)]
    assert [task["task"] for task in detail["tasks"]] == sorted(TASKS)
    assert detail["tasks"][0]["before"][1] < detail["tasks"][0]["before"][0] < detail["tasks"][0]["before"][2]
    assert "own groups have signal" in detail["mix"][0]["reason"]
    peers = {peer["name"]: peer for peer in detail["peers"]}
    assert peers["peer-4"]["used"] == 162 and peers["peer-4"]["worth"] == "2.0 (0.8 to 2.2)"
    groups = detail["groups"]
    assert groups["received"] == groups["used_external"] + groups["pool"] + groups["pending"] + sum(
        drop["count"] for drop in groups["dropped"]
    )
    assert site.detail(9) is None and site.samples(9) is None


@pytest.mark.parametrize(
    ("trust", "worth", "shown"),
    [(0.0, None, "not trusted"), (1.0, 0.44, "trusted 100%, worth 0.4"), (0.5, None, "trusted 50%")],
)
def test_who_teaches_a_node_and_how_far_it_is_trusted(
    trust: float, worth: float | None, shown: str, tmp_path: Path
) -> None:
    home = swarm(tmp_path, NOW, 2) / "peer-1"
    roster = read_roster(home)
    assert roster is not None
    teacher = roster.peers[0].peer_id[-8:]
    last = next(event for event in reversed(events(1, 200, 0.0)) if isinstance(event, RoundEvent))
    figures = {"trust": trust} | ({} if worth is None else {"worth": worth})
    taught = structs.replace(
        last, time=NOW, round=201, figures={f"distill/{name}/{teacher}": value for name, value in figures.items()}
    )
    with (home / METRICS_FILE).open("ab") as file:
        file.write(encode(taught) + b"\n")
    teaches = {peer["peer"]: peer["teaches"] for peer in _detail(_site(tmp_path))["peers"]}
    assert teaches.pop(teacher) == shown and not any(teaches.values())


def test_samples_of_both_sides_and_what_became_of_them(tmp_path: Path) -> None:
    found = _site(swarm(tmp_path, NOW)).samples(0)
    assert found is not None
    shown = json.loads(found)["groups"]
    assert {(each["outcome"], each["own"]) for each in shown} == {
        ("used_local", True), ("unused", True), ("used_external", False), ("no_signal", False), ("refused", False),
    }  # fmt: skip
    refused = next(each for each in shown if each["outcome"] == "refused")
    assert refused["why"] and refused["sender"] == "peer-2 (ooWpeer2)"
    assert refused["completions"][1]["claimed"] == 1.0 and refused["completions"][1]["reward"] == 0.0
    assert refused["pictures"] == [as_url(thumbnail(PICTURE))] and refused["completions"][0]["pictures"] == []


def test_nodes_that_start_later_are_found(tmp_path: Path) -> None:
    now = [NOW]
    site = Site(lambda: find_nodes([tmp_path]), lambda: now[0])
    site.refresh()
    assert json.loads(site.overview)["nodes"] == []
    swarm(tmp_path, NOW, num_nodes=1, control=False)
    now[0] += 60
    site.refresh()
    assert [node["name"] for node in json.loads(site.overview)["nodes"]] == ["peer-1"]


def test_texts_of_strangers_are_cut_and_without_control_characters(tmp_path: Path) -> None:
    site = _site(hostile(tmp_path, NOW))
    parts = [site.overview, site.detail(0), site.samples(0)]
    for part in parts:
        assert part is not None and b"\n" not in part, "one line of an event"
        assert len(part) < 400_000
        text = json.dumps(json.loads(part), ensure_ascii=False)
        for bad in ("\u202e", "\u2066", "\ufeff", "\x1b", "\\u001b", "\x07", "\\u0007"):
            assert bad not in text
        assert LONG[:2_001] not in text


def test_the_page_of_a_long_run_does_not_grow(tmp_path: Path) -> None:
    home = tmp_path / "peer-1"
    write(home, ending_at(NOW, events(1, 3_000, 0.0)))
    node = NodeReader(home)
    node.read()
    assert all(len(curve.points()) <= MAX_BINS for curve in node.curves.values())
    site = _site(tmp_path)
    small = len(site.detail(0) or b"")
    with (home / METRICS_FILE).open("ab") as file:
        for number in range(3_001, 9_001):
            last = node.history.latest
            assert last is not None
            event = structs.replace(last, round=number, wall_s=number / 2)
            file.write(encode(event) + (encode(NoteEvent(time=NOW, text="a note")) if number % 10 == 0 else b""))
    site.refresh()
    node.read()
    assert len(site.detail(0) or b"") < 1.2 * small
    assert len(node.history.rounds) == FIRST_ROUNDS + KEPT_ROUNDS and node.history.latest is not None
    assert node.history.latest.round == 9_000
    assert all(not event.figures for event in node.history.series()[:-1]), "of past rounds only what is needed"


def test_a_torn_roster_and_a_missing_directory_are_no_error(tmp_path: Path) -> None:
    home = tmp_path / "peer-1"
    write(home, events(1, 5, 0.0))
    (home / "peers.json").write_bytes(b'{"time": 1, "peers": [')
    site = _site(tmp_path)
    assert _detail(site)["peers"] == []
    for path in home.iterdir():
        path.unlink()
    home.rmdir()
    site.refresh()
    assert _detail(site)["name"] == "peer-1"


def test_two_hundred_peers_and_more(tmp_path: Path) -> None:
    seen = json.loads(_site(crowd(tmp_path / "some", NOW)).overview)["sharing"]
    assert len(seen["members"]) == 201 and seen["num_omitted"] == 0
    seen = json.loads(_site(crowd(tmp_path / "many", NOW, 1_000)).overview)["sharing"]
    assert len(seen["members"]) == MAX_MEMBERS and seen["num_omitted"] == 1_001 - MAX_MEMBERS
    standings = {member["standing"] for member in seen["members"]}
    assert "away" not in standings, "the connected ones come first"


def test_a_snapshot_on_its_way_is_seen_from_both_ends(tmp_path: Path) -> None:
    swarm(tmp_path, NOW, num_nodes=3, control=False)
    peer = "12D3KooWpeer{}".format
    far = "12D3KooWfarther1"
    write_progress(tmp_path / "peer-1", Progress(8, 1.0, None, (peer(2), far)))
    write_progress(tmp_path / "peer-2", Progress(8, 0.5, peer(1), (peer(3),)))
    write_progress(tmp_path / "peer-3", Progress(8, 1.0, peer(2), ()))
    seen = json.loads(_site(tmp_path).overview)["sharing"]
    ends = [member["name"] or member["peer"] for member in seen["members"]]
    links = {(ends[each["giver"]], ends[each["taker"]]): each["fraction"] for each in seen["relays"]}
    assert links == {("peer-1", "peer-2"): 0.5, ("peer-1", "farther1"): None, ("peer-2", "peer-3"): None}
    (tmp_path / "peer-2" / PROGRESS_FILE).write_bytes(b"[" * 10_000)
    assert len(json.loads(_site(tmp_path).overview)["sharing"]["relays"]) == 2, "a file that cannot be read is none"


def test_a_control_is_compared_with_the_nodes_of_its_own_demo(tmp_path: Path) -> None:
    apart = [_site(swarm(tmp_path / name, NOW, num_nodes=nodes)) for name, nodes in (("one", 2), ("two", 4))]
    found = [json.loads(site.overview)["answer"] for site in apart]
    both = Site(lambda: find_nodes([tmp_path / "one", tmp_path / "two"]), lambda: NOW)
    both.refresh()
    answer = json.loads(both.overview)["answer"]
    assert answer["standing"] == "helps" and all(each["why"] in answer["why"] for each in found)
    assert "one: The swarm helps" in answer["why"] and "two: The swarm helps" in answer["why"]
    names = [node["name"] for node in json.loads(both.overview)["nodes"]]
    swarm(tmp_path / "lone", NOW, num_nodes=1, control=False)
    more = Site(lambda: find_nodes([tmp_path / "lone", tmp_path / "one"]), lambda: NOW)
    more.refresh()
    assert len(names) == 8 and json.loads(more.overview)["answer"] == found[0]
    assert ["control" in _detail(more, place)["curves"] for place in range(4)] == [False, True, True, False]


def test_of_two_demos_the_only_one_that_can_be_judged_is_named(tmp_path: Path) -> None:
    alone = json.loads(_site(swarm(tmp_path / "one", NOW, num_nodes=2)).overview)["answer"]
    swarm(tmp_path / "young", NOW, num_nodes=2, num_rounds=0)
    both = Site(lambda: find_nodes([tmp_path / "one", tmp_path / "young"]), lambda: NOW)
    both.refresh()
    answer = json.loads(both.overview)["answer"]
    assert answer["why"].startswith("one: ") and answer["standing"] == alone["standing"]


def test_nothing_is_said_by_a_control_when_one_node_has_forgotten_its_first_rounds(tmp_path: Path) -> None:
    swarm(tmp_path, NOW, num_nodes=2, num_rounds=20)
    write(tmp_path / "peer-1", ending_at(NOW, events(1, KEPT_ROUNDS + 10, 0.0)))
    assert "control" not in json.loads(_site(tmp_path).overview)["answer"]["how"]


def test_what_changes_only_in_the_details_is_news(tmp_path: Path) -> None:
    site = _site(swarm(tmp_path, NOW, num_nodes=1))
    assert not site.refresh()
    with (tmp_path / "peer-1" / METRICS_FILE).open("ab") as file:
        file.write(encode(NoteEvent(time=NOW, text="asking 64 held-out questions")))
    before = site.overview
    assert site.refresh() and site.overview == before
    assert _detail(site)["moments"][0]["text"] == "asking 64 held-out questions"


def test_claims_are_shown_as_claims(tmp_path: Path) -> None:
    shown = json.loads(_site(crowd(tmp_path, NOW)).overview)["swarm"]
    assert "nobody checks" in shown["claims"]
    assert {each["claimed"] for each in shown["leaders"]} == {True, False}
