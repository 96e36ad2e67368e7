"""The report: the page with its data in one file, true to the files, and in need of nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from swarm.extras.page import public
from swarm.extras.page.report import SCRIPTS, frozen
from swarm.extras.page.site import ASSETS
from swarm.reasons import Reason, sentence
from swarm.telemetry import report
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.live import plain_line
from swarm.telemetry.records import (
    METRICS_FILE,
    EndEvent,
    EvaluationEvent,
    Event,
    FollowingFigures,
    LearningFigures,
    MixDecision,
    NoteEvent,
    RoundEvent,
    StartEvent,
    encode,
)
from swarm.telemetry.report import SwarmSummary, swarm_summary, write_report
from swarm.types import Sample
from swarm.types.media import Image
from swarm.types.thumbnails import as_url, thumbnail
from tests.telemetry import synthetic
from tests.telemetry.folders import ending_at, events, swarm
from tests.test_sanitize import HOSTILE, harmless

CONFIG: dict[str, object] = {"seed": 7, "mix": {"local": 4, "fill": "none"}, "out": Path("out"), "tasks": []}
VERSIONS = {"python": "3.11.9", "swarm": "0.1.0"}


def embedded(html: str) -> dict[str, Any]:
    """The data of a report whose scripts and style are those that its policy names, and that loads nothing."""
    assert html.count("<script") == html.count("</script>") == 2 and html.count("<style") == 1
    data, script = re.findall(r"<script [^>]*>(.*?)</script>", html, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)[0]
    policy = re.findall(r'http-equiv="content-security-policy" content="([^"]*)"', html)[0]
    for text, rule in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert not re.search(
        r"""(src|href)="[^#]|url\((?!#)|@import|^import |^export """, html.replace(data, ""), re.MULTILINE
    )
    return json.loads(data)  # type: ignore[no-any-return]


def made(folder: Path, histories: list[PeerHistory]) -> tuple[dict[str, Any], SwarmSummary]:
    summary = swarm_summary(histories, CONFIG, VERSIONS)
    assert write_report(folder, histories, summary) == folder / "report.html"
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "summary.json"]
    return embedded((folder / "report.html").read_text()), summary


def test_a_whole_run(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", 4, 60)]
    data, summary = made(tmp_path / "report", histories)
    rows, details = data["overview"]["nodes"], data["details"]
    assert [row["name"] for row in rows] == [each["name"] for each in details] == [f"peer-{k}" for k in range(1, 5)]
    assert {row["state"] for row in rows} == {"done"}
    for row, peer in zip(rows, summary["peers"], strict=True):
        assert row["reward_first"] == peer["reward_first"] and row["round"] == peer["rounds"] == 60
        assert row["accuracy"][0] == peer["eval_after"] and row["accuracy"][1] < peer["eval_after"]
    assert details[0]["curves"]["reward"] != details[1]["curves"]["reward"]
    first = [dict(map(tuple, each["curves"]["reward"]))[1] for each in details]
    assert details[0]["curves"]["all nodes"][0] == [1, pytest.approx(sum(first) / 4)]
    assert data["config"] == [
        ["seed", "7"],
        ["mix.local", "4"],
        ["mix.fill", "none"],
        ["out", '"out"'],
        ["tasks", "[]"],
    ]
    assert data["versions"] == [["python", "3.11.9"], ["swarm", "0.1.0"]]
    written = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert written["mean_reward_last"] == summary["mean_reward_last"]
    assert written["config"]["out"] == "out" and written["versions"] == VERSIONS
    assert [peer["peer_id"] for peer in written["peers"]] == [f"12D3KooWpeer{i}" for i in range(1, 5)]


def test_without_the_page_there_is_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PAGE", "removed.report")
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", 2, 5)]
    out = tmp_path / "report"
    assert write_report(out, histories, swarm_summary(histories, CONFIG, VERSIONS)) == out / "summary.json"
    assert [path.name for path in out.iterdir()] == ["summary.json"]


def test_it_says_what_the_page_of_the_ended_nodes_says(tmp_path: Path) -> None:
    """Verdict, alerts, samples and who gives what to whom, with the control of the demo."""
    swarm(tmp_path / "run", synthetic.EPOCH, 2)
    paths = sorted((tmp_path / "run").glob(f"*/{METRICS_FILE}"), key=lambda path: path.parent.name == "alone")
    histories = [PeerHistory.read(path, control=path.parent.name == "alone") for path in paths]
    data, _ = made(tmp_path / "report", histories)
    assert data["overview"]["answer"]["word"] == "The swarm helps"
    assert data["overview"]["answer"]["per_round"].startswith("×1.")
    assert {"control", "control accuracy", "all nodes"} <= data["details"][0]["curves"].keys()
    assert "control" not in data["details"][-1]["curves"] and data["details"][-1]["control"]
    assert data["overview"]["sharing"]["gifts"] and data["details"][0]["peers"]
    outcomes = {each["outcome"] for each in data["samples"][0]["groups"]}
    assert outcomes == {"used_local", "used_external", "no_signal", "unused", "refused"}
    assert data["overview"]["alarms"] == [], "a report is no live view: nodes are not silent"


def test_the_ledger_adds_up(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", 3, 40)]
    data, _ = made(tmp_path / "report", histories)
    for each in data["details"]:
        groups = each["groups"]
        fates = groups["used_external"] + sum(drop["count"] for drop in groups["dropped"])
        assert groups["received"] == fates + groups["pool"] + groups["pending"] > 0 and groups["lost"] == 0
        assert {drop["reason"] for drop in groups["dropped"] if not drop["loss"]} == {Reason.ZERO_ADVANTAGE}
        refused = {drop["reason"] for drop in groups["dropped"] if drop["loss"]}
        assert Reason.STALE in refused and refused <= {Reason.UNKNOWN_TASK, Reason.STALE}
        assert all(drop["means"] == sentence(drop["reason"]) for drop in groups["dropped"])


def test_the_report_says_how_many_groups_were_received_and_checked(tmp_path: Path) -> None:
    events = synthetic.peer_events()
    for event in events:
        if isinstance(event, RoundEvent):
            event.groups.update(received=200, checked=100, used_external=90)
    data, _ = made(tmp_path / "report", [PeerHistory.read(synthetic.write(tmp_path / "run", events))])
    groups = data["details"][0]["groups"]
    assert (groups["received"], groups["checked"], groups["used_external"]) == (200, 100, 90)


def _with_figures(events: list[Event], **counters: int) -> list[Event]:
    """Each round with the byte counts that grow by these, and with figures that the page must not take for markup."""
    return [
        replace(
            event,
            counters={f"network/{name}": event.round * count for name, count in counters.items()},
            figures={"entropy": 1 / event.round, "kl": 0.5, "<b>/odd": float(event.round)},
            tasks={"gcd": (float(event.round), 10)},
        )
        if isinstance(event, RoundEvent)
        else event
        for event in events
    ]


def test_every_figure_has_a_curve(tmp_path: Path) -> None:
    paths = [synthetic.write(tmp_path / f"peer-{k}", _with_figures(synthetic.peer_events(k, 250))) for k in (1, 2)]
    data, _ = made(tmp_path / "report", [PeerHistory.read(path) for path in paths])
    for each in data["details"]:
        figures = each["figures"]
        assert {"reward/mean", "reward/gcd", "entropy", "kl", "<b>/odd", "time/update_s"} <= figures.keys()
        assert list(figures) == sorted(figures) and all(1 < len(points) <= 125 for points in figures.values())
        falling = [value for _, value in figures["entropy"]]
        assert falling == sorted(falling, reverse=True) and {value for _, value in figures["kl"]} == {0.5}


def test_bandwidth_counts_every_process(tmp_path: Path) -> None:
    """Counts begin at 0 in each process, and so does its clock."""
    events = _with_figures(synthetic.peer_events(1, 40), published_bytes=1_000, received_bytes=50_000)
    first = [event for event in events if not isinstance(event, EndEvent) and getattr(event, "round", 0) <= 30]
    second = [
        replace(
            event,
            wall_s=event.wall_s - 15,
            counters={name: count // event.round * (event.round - 30) for name, count in event.counters.items()},
        )
        for event in events
        if isinstance(event, RoundEvent) and event.round > 30
    ]
    start = events[0]
    assert isinstance(start, StartEvent)
    again = replace(start, time=start.time + 100, resumed_from=30)
    whole = PeerHistory.read(synthetic.write(tmp_path / "one", events))
    halves = PeerHistory.read(synthetic.write(tmp_path / "two", [*first, again, *second]))
    for index, history in enumerate((whole, halves)):
        assert history.figures.traffic == {"sent": 40_000, "received": 2_000_000} and history.wall_s == 20.0
        rates = [value for _, value in history.figures.curves["bytes sent per second"].points()]
        assert set(rates) == {2_000.0}
        data, _ = made(tmp_path / f"report-{index}", [history])
        assert data["details"][0]["traffic"]["received"] == {"bytes": 2_000_000, "a_day": None}, "too short for a day"
    hours = [replace(event, wall_s=360 * event.wall_s) if isinstance(event, RoundEvent) else event for event in events]
    data, _ = made(tmp_path / "long", [PeerHistory.read(synthetic.write(tmp_path / "three", hours))])
    assert data["details"][0]["traffic"]["received"]["a_day"] == pytest.approx(2_000_000 * 12)


def test_a_group_that_vanished_is_shown(tmp_path: Path) -> None:
    events = synthetic.peer_events(end=None)
    last = events[-1]
    last.groups["received"] += 3  # type: ignore[union-attr]
    data, _ = made(tmp_path / "report", [PeerHistory.read(synthetic.write(tmp_path / "run", events))])
    assert data["details"][0]["groups"]["lost"] == 3


def test_an_interrupted_run(tmp_path: Path) -> None:
    paths = [
        synthetic.write(tmp_path / "peer-1", synthetic.peer_events(1, 30, 50)),
        synthetic.write(tmp_path / "peer-2", synthetic.peer_events(2, 12, 50, end="interrupted")),
        synthetic.write(tmp_path / "peer-3", synthetic.peer_events(3, 0, 50, end=None)),
        tmp_path / "peer-4" / "metrics.jsonl",
    ]
    data, _ = made(tmp_path / "report", [PeerHistory.read(path) for path in paths])
    rows = data["overview"]["nodes"]
    assert [(row["state"], row["round"]) for row in rows] == [
        ("done", 30), ("interrupted", 12), ("starting", 0), ("waiting", 0),
    ]  # fmt: skip
    assert [row["accuracy"] is None for row in rows] == [False, True, True, True]


@pytest.mark.parametrize(("num_peers", "num_rounds"), [(0, 0), (1, 0), (1, 1), (32, 12)])
def test_any_size(tmp_path: Path, num_peers: int, num_rounds: int) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", num_peers, num_rounds)]
    data, _ = made(tmp_path / "report", histories)
    assert [each["name"] for each in data["details"]] == [history.name for history in histories]


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path, 1, 3000)]
    assert len(frozen(histories, {}, {})) < 200_000


def test_names_and_notes_are_data_not_markup(tmp_path: Path) -> None:
    evil = '</script><script src="x">&"\''
    events = [
        StartEvent(time=0.0, peer_id=evil, name=evil),
        NoteEvent(time=0.0, text=evil),
        EndEvent(time=1.0, round=0, reason="error"),
        *synthetic.peer_events(end=None)[2:],
    ]
    groups = synthetic.peer_events(end=None)[-1].groups  # type: ignore[union-attr]
    for event in events[3:]:
        if hasattr(event, "groups"):
            event.groups["dropped"] = {evil: 1, **groups["dropped"]}
    histories = [PeerHistory.read(synthetic.write(tmp_path / "run", events))]
    data = embedded(frozen(histories, {evil: {evil: evil}}, {evil: evil}).decode())
    assert data["details"][0]["name"] == evil and data["details"][0]["moments"][-1]["text"] == evil
    assert data["config"] == [[f"{evil}.{evil}", evil]] and data["versions"] == [[evil, evil]]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_harmless(text: str, tmp_path: Path) -> None:
    note = text.encode(errors="replace").decode()  # a metrics file is UTF-8
    asked = {note: (1, 2)}
    events = [
        StartEvent(time=1.0, peer_id="p", name=note, config={"tasks": [note], note: note}),
        *(EvaluationEvent(time=1.0, round=n, accuracy=0.5, num_questions=2, tasks=asked) for n in (0, 1)),
        NoteEvent(time=2.0, text=note, level="warning"),
    ]
    history = PeerHistory.read(synthetic.write(tmp_path / "run", list(events)))
    page = frozen([history], {note: note, "tasks": [note]}, {note: note}).decode()
    assert harmless(page) and embedded(page)


def test_answers_before_and_now_are_shown_cut(tmp_path: Path) -> None:
    def answered(text: str, correct: bool) -> tuple[Sample, ...]:
        same = Sample("<b>2</b>\n+ 2?", "\x1b[31m4", True, expected="<i>4", found="4")
        return (same, Sample("1 + 1?", text, correct, found=""))

    events = [
        replace(event, samples=answered("It is\n3.", False) if event.round == 0 else answered("2" * 2_000, True))
        if isinstance(event, EvaluationEvent)
        else event
        for event in synthetic.peer_events()
    ]
    data, _ = made(tmp_path / "report", [PeerHistory.read(synthetic.write(tmp_path / "run", events))])
    first, second = data["samples"][0]["answers"]
    assert (first["question"], first["before"]) == (
        "1 + 1?",
        {"text": "It is\n3.", "correct": False, "why": "no answer found in it"},
    )
    assert first["now"] == {"text": "2" * 1_000, "correct": True, "why": ""}
    assert (second["question"], second["expected"]) == ("<b>2</b>\n+ 2?", "<i>4")
    assert second["before"] == second["now"] == {"text": "?[31m4", "correct": True, "why": ""}


def test_answers_about_pictures_are_matched_by_picture_and_show_it(tmp_path: Path) -> None:
    red, blue = (thumbnail(Image(1, 1, bytes(colour))) for colour in ((255, 0, 0), (0, 0, 255)))

    def answered(*texts: str) -> tuple[Sample, ...]:
        return tuple(Sample("Which colour?", text, True, (png,)) for text, png in zip(texts, (red, blue), strict=True))

    events = [
        replace(event, samples=answered("a", "b") if event.round == 0 else answered("c", "d"))
        if isinstance(event, EvaluationEvent)
        else event
        for event in synthetic.peer_events()
    ]
    data, _ = made(tmp_path / "report", [PeerHistory.read(synthetic.write(tmp_path / "run", events))])
    answers = data["samples"][0]["answers"]
    assert [(each["before"]["text"], each["now"]["text"]) for each in answers] == [("a", "c"), ("b", "d")]
    assert [each["pictures"] for each in answers] == [[as_url(red)], [as_url(blue)]]


def test_a_run_without_answers_shows_none(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "run", synthetic.peer_events())
    data, _ = made(tmp_path / "report", [PeerHistory.read(path)])
    assert data["samples"] == [{"groups": [], "answers": []}]


def test_a_learner_and_its_workers_are_shown_with_what_the_model_says(tmp_path: Path) -> None:
    histories = []
    for index, name in enumerate(("learner", "worker-1", "worker-2")):
        path = tmp_path / name / METRICS_FILE
        path.parent.mkdir()
        path.write_bytes(b"".join(encode(event) for event in follower_events(name, index)))
        histories.append(PeerHistory.read(path, name))
    assert [history.role for history in histories] == ["learner", "worker", "worker"]
    data, summary = made(tmp_path / "report", histories)
    assert summary["mean_reward_last"] == histories[0].reward_last(), "workers do not train"
    learner, worker, _ = data["details"]
    rows = {name: values for name, *values in learner["learning"]}
    assert rows["largest staleness, versions"] == [2, 3] and rows["active workers"] == [2, 2]
    assert rows["part of its time that the learner waited"] == [0.125, 0.1]
    assert learner["curves"]["weights"][-1] == [10, 10] and worker["curves"]["weights"][-1] == [10, 8]
    assert learner["curves"]["largest lag"][0] == [1, 2] and worker["learning"] == []
    assert [row["version"] for row in data["overview"]["nodes"]] == [10, 8, 8]
    made(tmp_path / "alone", histories[1:2])
    line = plain_line(histories[0], lambda: 0.0)
    assert "version 10, lag 2 of 3" in line and "waits 12% (predicted 10%)" in line
    assert "version 8 of 10" in plain_line(histories[1], lambda: 0.0)


def follower_events(name: str, index: int) -> list[Event]:
    """Ten steps of a learner, or as many batches of a worker."""
    groups = Ledger()
    events: list[Event] = [StartEvent(time=synthetic.EPOCH, peer_id=f"peer-{index}", name=name, rounds=10)]
    for step in range(1, 11):
        figures = {"sampling/lag_mean": 1.5, "sampling/lag_max": 2.0}
        learning = LearningFigures(step, 3, 1.0, 7.0, 2, 2, 9.0, 8.0, 0.5, 0.125, 0.1)
        following = FollowingFigures(step - 2, step, step, 0, 0.0)
        events.append(
            RoundEvent(
                time=synthetic.EPOCH + step,
                round=step,
                wall_s=float(step),
                reward=0.05 * step,
                groups=groups.snapshot(),
                figures=figures if index == 0 else {},
                learning=learning if index == 0 else None,
                following=None if index == 0 else following,
            )
        )
    return events


def test_suites_are_shown_before_and_at_the_end_with_their_intervals(tmp_path: Path) -> None:
    events = synthetic.peer_events(num_rounds=20)
    events[1:1] = [synthetic.suite(synthetic.EPOCH, 0, 0.125), synthetic.suite(synthetic.EPOCH, 20, 0.5)]
    history = PeerHistory.read(synthetic.write(tmp_path / "run", events))
    data, _ = made(tmp_path / "report", [history])
    before, latest = ({"value": value, "low": value - 0.05, "high": value + 0.05} for value in (0.125, 0.5))
    assert data["details"][0]["suites"] == [
        {"figure": f"arithmetic {figure}", "before": before, "latest": latest, "round": 20, "questions": 60}
        for figure in ("avg@4", "pass@1", "pass@4")
    ]
    written = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert written["peers"][0]["suites"]["arithmetic"]["pass@4"] == {"value": 0.5, "low": 0.45, "high": 0.55}


def test_a_mix_that_decides_says_why(tmp_path: Path) -> None:
    decision = MixDecision("auto", 3, 5, "62% < 80% of own groups")
    rounds = [replace(event, mix=decision) if isinstance(event, RoundEvent) else event for event in events(1, 5, 0.0)]
    history = PeerHistory.read(synthetic.write(tmp_path / "run", ending_at(synthetic.EPOCH, rounds)))
    data, _ = made(tmp_path / "report", [history])
    assert [each["reason"] for each in data["details"][0]["mix"]] == ["62% < 80% of own groups"]


@pytest.mark.parametrize("scripts", [SCRIPTS, public.SCRIPTS])
def test_scripts_are_joined_in_the_order_of_their_imports_and_name_nothing_twice(scripts: tuple[str, ...]) -> None:
    joined: list[str] = []
    for script in scripts:
        text = (ASSETS / script).read_text()
        assert set(re.findall(r'from "\./(.*?)"', text)) <= set(joined)
        joined.append(script)
    everything = "\n".join((ASSETS / script).read_text() for script in scripts)
    declared = re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", everything, re.MULTILINE)
    assert len(declared) == len(set(declared))
    assert {path.name for path in ASSETS.glob("*.js")} == {*SCRIPTS, *public.SCRIPTS}
