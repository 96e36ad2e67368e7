"""The report: complete, true to the files, and in need of nothing but itself."""

from __future__ import annotations

import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from swarm.telemetry.sections.evaluations import accuracy_ranges, task_table
from swarm.telemetry.sections.traffic import rates, traffic

from swarm.reasons import Reason, sentence
from swarm.telemetry import plots
from swarm.telemetry.history import PeerHistory, reward_window
from swarm.telemetry.intervals import bootstrap_mean, wilson_interval
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
from swarm.telemetry.report import SwarmSummary, page, swarm_summary, write_report
from swarm.types import Sample
from swarm.types.media import Image
from swarm.types.thumbnails import as_url, thumbnail

from . import synthetic

CONFIG: dict[str, object] = {"seed": 7, "mix": {"local": 4, "fill": "none"}, "out": Path("out"), "tasks": []}
VERSIONS = {"python": "3.11.9", "swarm": "0.1.0"}


class Page(HTMLParser):
    """What matters of a page: tags, links, text, and tables by their first heading."""

    VOID = {"meta", "br", "hr", "img"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.tables: list[list[list[str]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], "unclosed tags"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self._open.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "xlink:href", "data", "action")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.text += text
        if any(tag in ("td", "th") for tag in self._open):
            self.tables[-1][-1][-1] += text


def made(folder: Path, histories: list[PeerHistory]) -> tuple[Page, SwarmSummary]:
    summary = swarm_summary(histories, CONFIG, VERSIONS)
    write_report(folder, histories, summary)
    html = (folder / "report.html").read_text()
    parsed = Page(html)
    # Nothing is loaded from anywhere: the only links lead to parts of the page's own pictures.
    assert all(link.startswith("#") for link in parsed.links)
    assert not {"script", "link", "iframe", "img", "object"} & set(parsed.tags)
    assert "@import" not in html and "url(http" not in html
    assert html.count('<figure class="scroll">') == 3
    assert parsed.tags.count("svg") == 3 + html.count('<figure class="curve">')
    png = (folder / "report.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and width > 800 and height > 500
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.png", "summary.json"]
    return parsed, summary


def test_a_whole_run(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", 4, 60)]
    assert histories[0].latest is not None
    histories[0].latest = replace(histories[0].latest, mix=MixDecision("auto", 3, 5, "62% < 80% of own groups"))
    parsed, summary = made(tmp_path / "report", histories)
    assert "3 local + 5 external by auto: 62% < 80% of own groups" in parsed.text
    first, last = summary["mean_reward_first"], summary["mean_reward_last"]
    assert first is not None and last is not None
    assert f"{first:.3f} → {last:.3f}" in parsed.text and f"×{last / first:.2f}" in parsed.text
    assert "Incomplete" not in parsed.text
    assert "unaccounted" not in parsed.text
    for text in ("mix.local", "none", "python", "3.11.9", "gcd"):
        assert text in parsed.text

    written = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert written["mean_reward_last"] == last
    assert written["config"]["out"] == "out" and written["versions"] == VERSIONS
    assert [peer["peer_id"] for peer in written["peers"]] == [f"12D3KooWpeer{i}" for i in range(1, 5)]


def test_the_ledger_table_adds_up(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", 3, 40)]
    parsed, _ = made(tmp_path / "report", histories)
    ledger = next(table for table in parsed.tables if "shared" in table[0])
    for row in ledger[1:]:
        received, *fates = [int(cell.replace(",", "")) for cell in row[2:]]
        assert received == sum(fates) > 0
    assert [row[0] for row in ledger[1:]] == ["peer-1", "peer-2", "peer-3", "all"]
    spare = {heading.removeprefix("+ no loss: ") for heading in ledger[0] if heading.startswith("+ no loss")}
    refused = {heading.removeprefix("+ refused: ") for heading in ledger[0] if heading.startswith("+ refused")}
    assert (spare, refused) == ({Reason.ZERO_ADVANTAGE}, {Reason.UNKNOWN_TASK, Reason.STALE})
    for reason in spare | refused:
        assert sentence(reason) in parsed.text, "the reasons of the table are explained below it"


def test_the_report_says_how_many_of_the_groups_received_and_checked_were_used(tmp_path: Path) -> None:
    events = synthetic.peer_events()
    for event in events:
        if isinstance(event, RoundEvent):
            event.groups.update(received=200, checked=100, used_external=90)
    parsed, _ = made(tmp_path / "report", [PeerHistory.read(synthetic.write(tmp_path / "run", events))])
    assert "45% of those received; 90% of those checked" in parsed.text


def test_drops_that_are_no_loss_are_told_apart_from_those_that_are(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", 2, 40)]
    parsed, _ = made(tmp_path / "report", histories)
    counts = [history.groups["dropped"] for history in histories]
    spare = sum(each["zero_advantage"] for each in counts)
    refused = sum(each.get("unknown_task", 0) + each.get("stale", 0) for each in counts)
    assert f"; {spare:,} dropped without loss; {refused:,} refused" in parsed.text
    no_loss, _, lost = parsed.text.partition("Refused: look at these if they are many")
    assert sentence(Reason.ZERO_ADVANTAGE) in no_loss.partition("No loss:")[2]
    assert sentence(Reason.UNKNOWN_TASK) in lost


def test_figures_have_intervals(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", 3, 60)]
    parsed, _ = made(tmp_path / "report", histories)
    after = [history.evaluation_after() for history in histories]
    correct = sum(each.tasks[task][0] for each in after if each for task in each.tasks)
    low, high = wilson_interval(correct / 3, 3 * 40)
    assert f", then {low:.1%} to {high:.1%}" in parsed.text
    last = np.mean(
        [[event.reward for event in history.series()[-reward_window(60) :]] for history in histories], axis=0
    )
    bounds = bootstrap_mean(last)
    assert bounds is not None and f", then {bounds[0]:.3f} to {bounds[1]:.3f}" in parsed.text
    peers = next(table for table in parsed.tables if "accuracy before" in table[0])
    assert re.fullmatch(r"\d+\.\d% \(\d+%–\d+%\)", peers[1][peers[0].index("after")])


def _with_figures(events: list[Event], **counters: int) -> list[Event]:
    """Each round with the byte counts that grow by these, and with figures that the page must escape."""
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


def test_every_figure_has_a_curve_or_is_said_to_be_constant(tmp_path: Path) -> None:
    paths = [synthetic.write(tmp_path / f"peer-{k}", _with_figures(synthetic.peer_events(k, 250))) for k in (1, 2)]
    made(tmp_path / "report", [PeerHistory.read(path) for path in paths])
    html = (tmp_path / "report" / "report.html").read_text()
    section = html.partition("<h2>All figures</h2>")[2]
    cards = dict(re.findall(r'<figure class="curve"><figcaption>(\S+) <b>.*?</b>.*?(<svg.*?</svg>)', section))
    assert {"reward/mean", "reward/gcd", "entropy", "&lt;b&gt;/odd"} <= cards.keys()
    assert "kl 0.5" in section.partition("The same in all rounds")[2] and "kl" not in cards
    for svg in cards.values():
        lines = re.findall(r'points="([^"]*)"', svg)
        assert 1 <= len(lines) <= 2 and all(len(line.split()) <= 100 for line in lines)
    falling = [float(point.split(",")[1]) for point in re.findall(r'points="([^"]*)"', cards["entropy"])[0].split()]
    assert falling == sorted(falling), "larger is higher, and a picture's y grows downwards"


def test_many_peers_have_one_mean_curve_each(tmp_path: Path) -> None:
    paths = [synthetic.write(tmp_path / f"peer-{k}", _with_figures(synthetic.peer_events(k, 20))) for k in range(1, 10)]
    made(tmp_path / "report", [PeerHistory.read(path) for path in paths])
    html = (tmp_path / "report" / "report.html").read_text()
    assert "mean over 9 peers" in html
    assert all(svg.count("<polyline") == 1 for svg in re.findall(r'<figure class="curve">.*?</figure>', html))


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
    for history in (whole, halves):
        found = traffic(history)
        assert found is not None and (found.sent, found.received, found.wall_s) == (40_000, 2_000_000, 20.0)
        assert found.a_day(found.received) is None, "seconds say nothing of a day"
        assert replace(found, wall_s=7_200.0).a_day(found.received) == 2_000_000 * 12
        assert {rate for _, rate, _ in rates(history)} == {2_000.0}
    parsed, _ = made(tmp_path / "report", [halves])
    table = next(table for table in parsed.tables if "own sent" in table[0])
    assert table[1] == ["peer-1", "0.04", "–", "2.00", "–"]


def test_a_group_that_vanished_is_shown(tmp_path: Path) -> None:
    events = synthetic.peer_events(end=None)
    last = events[-1]
    last.groups["received"] += 3  # type: ignore[union-attr]
    parsed, _ = made(tmp_path / "report", [PeerHistory.read(synthetic.write(tmp_path / "run", events))])
    ledger = next(table for table in parsed.tables if "shared" in table[0])
    assert ledger[0][-1] == "+ unaccounted for" and ledger[1][-1] == "3"


def test_an_interrupted_run(tmp_path: Path) -> None:
    paths = [
        synthetic.write(tmp_path / "peer-1", synthetic.peer_events(1, 30, 50)),
        synthetic.write(tmp_path / "peer-2", synthetic.peer_events(2, 12, 50, end="interrupted")),
        synthetic.write(tmp_path / "peer-3", synthetic.peer_events(3, 0, 50, end=None)),
        tmp_path / "peer-4" / "metrics.jsonl",
    ]
    histories = [PeerHistory.read(path) for path in paths]
    parsed, summary = made(tmp_path / "report", histories)
    assert "peer-2 was interrupted after 12 rounds" in parsed.text
    assert "peer-3 did not end in an orderly way" in parsed.text
    assert "peer-4 never started" in parsed.text
    assert "before and after training, 1 of 4 peers" in parsed.text
    # The headline compares the one peer with itself, not with those that were evaluated once.
    assert f"{summary['peers'][0]['eval_before']:.1%} → {summary['peers'][0]['eval_after']:.1%}" in parsed.text


@pytest.mark.parametrize(("num_peers", "num_rounds"), [(0, 0), (1, 0), (1, 1), (32, 12)])
def test_any_size(tmp_path: Path, num_peers: int, num_rounds: int) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path / "run", num_peers, num_rounds)]
    parsed, _ = made(tmp_path / "report", histories)
    for history in histories:
        assert history.name in parsed.text


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path, 1, 3000)]
    assert len(page(histories, swarm_summary(histories, {}, {}))) < 200_000


def test_names_and_notes_are_text_not_markup(tmp_path: Path) -> None:
    evil = '<script src="x">&"\''
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
    summary = swarm_summary(histories, {evil: {evil: evil}}, {evil: evil})
    write_report(tmp_path / "report", histories, summary)
    parsed = Page((tmp_path / "report" / "report.html").read_text())
    assert "script" not in parsed.tags and parsed.links == [link for link in parsed.links if link.startswith("#")]
    assert evil in parsed.text


def test_answers_before_and_after_are_shown_as_one_line_of_text(tmp_path: Path) -> None:
    def answered(text: str, correct: bool) -> tuple[Sample, ...]:
        same = Sample("<b>2</b>\n+ 2?", "\x1b[31m4", True, expected="<i>4", found="4")
        return (same, Sample("1 + 1?", text, correct, found=""))

    events = [
        replace(event, samples=answered("It is\n3.", False) if event.round == 0 else answered("2" * 2_000, True))
        if isinstance(event, EvaluationEvent)
        else event
        for event in synthetic.peer_events()
    ]
    histories = [PeerHistory.read(synthetic.write(tmp_path / "run", events))]
    parsed, _ = made(tmp_path / "report", histories)
    [table] = [table for table in parsed.tables if table[0] == ["question", "before", "after"]]
    (first, second) = table[1:]
    assert (
        first[:2] == ["1 + 1?", "It is 3.wrong: no answer found in it"]
        and len(first[2]) < 600
        and first[2].endswith("right")
    )
    assert second == ["<b>2</b> + 2?expected: <i>4", "?[31m4right", "?[31m4right"]


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
    histories = [PeerHistory.read(synthetic.write(tmp_path / "run", events))]
    parsed = Page(page(histories, swarm_summary(histories, CONFIG, VERSIONS)))
    [table] = [table for table in parsed.tables if table[0] == ["question", "before", "after"]]
    assert table[1:] == [["Which colour?", "aright", "cright"], ["Which colour?", "bright", "dright"]]
    pictures = [link for link in parsed.links if not link.startswith("#")]
    assert parsed.tags.count("img") == 2 and pictures == [as_url(red), as_url(blue)]


def test_a_run_without_answers_shows_none(tmp_path: Path) -> None:
    parsed, _ = made(
        tmp_path / "report", [PeerHistory.read(synthetic.write(tmp_path / "run", synthetic.peer_events()))]
    )
    assert "Answers before and after" not in parsed.text


def test_pictures_take_the_pages_colours(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path, 2, 30)]
    for draw in (plots.draw_rewards, plots.draw_mix, plots.draw_ledger):
        svg = plots.as_svg(draw, histories, 3.0, "a picture")
        assert "var(--ink)" in svg and "#0a0b0c" not in svg and 'aria-label="a picture"' in svg
        assert svg == plots.as_svg(draw, histories, 3.0, "a picture")


def test_smoothing_is_a_centred_mean_of_what_is_known() -> None:
    values = np.array([1.0, 2.0, np.nan, 4.0, 6.0])
    assert plots.smoothed(values, 3) == pytest.approx(np.array([1.5, 1.5, 3.0, 5.0, 5.0]))
    assert plots.smoothed(values, 1)[[0, 1, 3, 4]] == pytest.approx([1, 2, 4, 6])
    assert np.isnan(plots.smoothed(values, 1)[2])


def test_a_learner_and_its_workers_are_shown_with_what_the_model_says(tmp_path: Path) -> None:
    histories = []
    for index, name in enumerate(("learner", "worker-1", "worker-2")):
        path = tmp_path / name / METRICS_FILE
        path.parent.mkdir()
        path.write_bytes(b"".join(encode(event) for event in follower_events(name, index)))
        histories.append(PeerHistory.read(path, name))
    assert [history.role for history in histories] == ["learner", "worker", "worker"]
    summary = swarm_summary(histories, {}, {})
    assert summary["mean_reward_last"] == histories[0].reward_last(), "workers do not train"
    write_report(tmp_path, histories, summary)
    text = (tmp_path / "report.html").read_text()
    for expected in ("Versions: the learner", "Staleness:", "at most 3", "learner waited", "12.5%", "10.0%", "2 of 2"):
        assert expected in text, expected
    alone = swarm_summary(histories[1:2], {}, {})
    write_report(tmp_path / "alone", histories[1:2], alone)
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
    parsed, summary = made(tmp_path / "report", [history])
    table = next(table for table in parsed.tables if "after round" in table[0])
    assert table[1:] == [
        ["peer-1", f"eval/arithmetic/{figure}", "0.125 (0.075–0.175)", "0.500 (0.450–0.550)", "20", "60"]
        for figure in ("avg@4", "pass@1", "pass@4")
    ]
    written = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert written["peers"][0]["suites"]["arithmetic"]["pass@4"] == {"value": 0.5, "low": 0.45, "high": 0.55}


def test_more_peers_do_not_make_the_same_questions_more(tmp_path: Path) -> None:
    def told(num_peers: int) -> str:
        histories = []
        for index in range(num_peers):
            out = tmp_path / f"{num_peers}-{index}"
            counts = {"gcd": (16, 64)}
            lines = [EvaluationEvent(time=1.0, round=number, accuracy=0.25, num_questions=64, tasks=counts)
                     for number in (0, 5)]  # fmt: skip
            synthetic.write(out, lines)
            histories.append(PeerHistory.read(out / METRICS_FILE))
        return accuracy_ranges(histories) + task_table(histories).replace("peers", "peer").replace(f"{num_peers} ", "")

    assert told(1) == told(16) and "16.0% to 36.8%" in told(1)


def test_a_tasks_accuracy_is_that_of_the_peers_that_were_asked_it(tmp_path: Path) -> None:
    histories = []
    for task in ("gcd", "sums"):
        lines = [EvaluationEvent(time=1.0, round=number, accuracy=0.25, num_questions=64, tasks={task: (16, 64)})
                 for number in (0, 5)]  # fmt: skip
        synthetic.write(tmp_path / task, lines)
        histories.append(PeerHistory.read(tmp_path / task / METRICS_FILE))
    assert task_table(histories).count("(16%–37%)") == 4
    assert accuracy_ranges(histories).count("16.0% to 36.8%") == 2
