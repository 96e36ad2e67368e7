"""The live view on consoles of several sizes, and the plain lines that stand for it elsewhere."""

from __future__ import annotations

import io
import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from swarm.telemetry.history import PeerHistory
from swarm.telemetry.live import LiveView, Progress, plain_line, sparkline, state_text
from swarm.telemetry.records import MixDecision, NoteEvent, PauseEvent, ResumeEvent, RoundEvent, StartEvent, encode
from swarm.telemetry.report import summary_table, swarm_summary

from . import synthetic

NOW = synthetic.EPOCH + 150


@pytest.fixture
def troubled(tmp_path: Path) -> list[PeerHistory]:
    """Done, running, restarted, alone, starting, not there yet."""
    files = [
        synthetic.peer_events(1, 200, 200),
        synthetic.peer_events(2, 190, 200, end=None),
        synthetic.killed_and_resumed(3, 200, 80, 101)[:-3],
        synthetic.peer_events(4, 190, 200, end=None, alone=True),
        synthetic.peer_events(5, 0, 200, end=None),
    ]
    histories = [PeerHistory.read(synthetic.write(tmp_path / f"peer-{i}", events)) for i, events in enumerate(files, 1)]
    return [*histories, PeerHistory.read(tmp_path / "peer-6" / "metrics.jsonl")]


def rendered(view: LiveView, width: int, height: int = 40) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO(), force_terminal=True)
    console.print(view)
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_it_fits(troubled: list[PeerHistory], width: int) -> None:
    view = LiveView(troubled, clock=lambda: NOW)
    view.note("peer-3: its process died with SIGKILL and was started again", "warning")
    lines = rendered(view, width)
    assert max(cell_len(line) for line in lines) <= width
    # Progress, heading, one row a peer, the verdict, alerts, and the last events.
    assert len(lines) < 40 and lines[-1].startswith(time.strftime("%H:", time.localtime(NOW)))
    assert any(line.startswith("Reward 0.1") or line.startswith("Not known yet") for line in lines)
    assert any("peer-4: No peer has been connected" in line for line in lines)
    assert [line.split()[0] for line in lines[2:8]] == [f"peer-{i}" for i in range(1, 7)]


@pytest.mark.parametrize("width", [100, 140])
def test_what_a_row_says(troubled: list[PeerHistory], width: int) -> None:
    lines = rendered(LiveView(troubled, clock=lambda: NOW), width)
    groups = troubled[0].groups
    row = lines[2]
    for text in ("done", "200", str(groups["received"]), f"{groups['used_local']}+{groups['used_external']}", "1800"):
        assert text in row
    assert f"{sum(groups['dropped'].values())} " in row
    assert "…" not in lines[1]
    assert ("alone since" if width == 140 else "alone ") in lines[5]


def test_a_default_name_fits_and_what_is_cut_shows_it(tmp_path: Path) -> None:
    events = synthetic.peer_events(1, 190, 200, end=None)
    assert isinstance(events[0], StartEvent)
    events[0] = replace(events[0], name="peer (7st5)")
    view = LiveView([PeerHistory.read(synthetic.write(tmp_path, events))], clock=lambda: NOW)
    view.note("a long line " * 20)
    lines = rendered(view, 80)
    assert any(line.startswith("peer (7st5) ") for line in lines[1:])
    (cut,) = [line for line in lines if "a long line" in line]
    assert cut.endswith("…") and cell_len(cut) <= 80


def test_narrow_terminals_keep_what_matters(troubled: list[PeerHistory]) -> None:
    lines = rendered(LiveView(troubled, clock=lambda: NOW), 80)
    assert lines[1].split() == [
        "peer", "state", "round", "reward", "0-0.31", "recv", "used", "dropped", "pool", "peers", "tok/s",
    ]  # fmt: skip


def test_more_peers_than_lines(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path, 32, 5)]
    lines = rendered(LiveView(histories, clock=lambda: NOW), 100, height=24)
    assert len(lines) < 24
    shown = sum(line.startswith("peer-") for line in lines)
    assert f"and {32 - shown} more peers" in lines


def test_a_terminal_without_unicode(troubled: list[PeerHistory]) -> None:
    raw = io.BytesIO()
    console = Console(width=80, file=io.TextIOWrapper(raw, encoding="ascii"), force_terminal=True)
    console.print(LiveView(troubled, clock=lambda: NOW))
    console.print(summary_table(swarm_summary(troubled, {}, {}), ascii_only=True))
    console.file.flush()
    assert b"peer-6" in raw.getvalue()


def test_it_follows_the_files(tmp_path: Path) -> None:
    """A picture is drawn from what the file holds at that moment; a node that joined alone has no end."""
    path = synthetic.write(tmp_path / "me", [StartEvent(time=NOW, peer_id="p", name="me")])
    view = LiveView([PeerHistory(path)], title="swarm join", clock=lambda: NOW)
    console = Console(width=100, height=30, file=io.StringIO(), force_terminal=True)
    with view.shown(console):
        pass
    assert "starting" in console.file.getvalue()  # type: ignore[attr-defined]
    with path.open("ab") as file:
        file.write(encode(synthetic.peer_events(1, 7, None)[8]))
        file.write(encode(NoteEvent(time=NOW, text="bootstrap unreachable, training alone", level="warning")))
    lines = rendered(view, 100)
    assert "7 rounds" in lines[0] and "left" not in lines[0]
    assert lines[-1].endswith("bootstrap unreachable, training alone")


def test_time_left_is_that_of_the_slowest(tmp_path: Path) -> None:
    histories = [
        PeerHistory.read(synthetic.write(tmp_path / str(i), synthetic.peer_events(i, rounds, 100, end=end)))
        for i, (rounds, end) in enumerate([(100, "done"), (40, None), (70, None), (10, "interrupted")], 1)
    ]
    progress = Progress.of(histories)
    # Half a second a round, and 60 to go; the interrupted peer will do no more than its 10.
    assert (progress.done, progress.total) == (220, 310)
    assert progress.left_s == pytest.approx(30)
    assert Progress.of([]) == Progress(0, None, None)


def test_states(troubled: list[PeerHistory], tmp_path: Path) -> None:
    assert [state_text(history, NOW, short=True).split()[0] for history in troubled] == [
        "done", "running", "restart", "alone", "starting", "waiting",
    ]  # fmt: skip
    assert state_text(troubled[1], NOW + 3600) == "silent 1:00:55"
    failed = synthetic.write(tmp_path / "x", synthetic.peer_events(num_rounds=1, end="error"))
    assert state_text(PeerHistory.read(failed), NOW) == "failed"


def test_plain_lines(troubled: list[PeerHistory]) -> None:
    line = plain_line(troubled[1], clock=lambda: NOW)
    groups = troubled[1].groups
    assert "\n" not in line and line.startswith("peer-2 | running | round 190/200 | reward 0.2")
    assert f"received {groups['received']}" in line and f"+ {groups['used_external']} external" in line
    assert f"no loss: zero_advantage {groups['dropped']['zero_advantage']}" in line
    assert plain_line(troubled[5], clock=lambda: NOW) == "peer-6 | waiting"
    assert "alone since" in plain_line(troubled[3], clock=lambda: NOW)


def test_speed_comes_with_the_share_of_slots_that_was_busy_where_that_is_known(tmp_path: Path) -> None:
    *events, last = [*synthetic.peer_events(1, 3, 200, end=None)]
    assert isinstance(last, RoundEvent)
    for figures, said in (({}, "1800 tokens/s"), ({"generate/slots_busy": 0.968}, "1800 tokens/s, 97% of slots busy")):
        path = synthetic.write(tmp_path / f"peer-{len(figures)}", [*events, replace(last, figures=figures)])
        assert said in plain_line(PeerHistory.read(path), clock=lambda: NOW).split(" | ")


@pytest.mark.parametrize(
    ("policy", "line"),
    [("auto", "mix 3 local + 5 external by auto: 62% of own groups without signal"), ("fixed", None)],
)
def test_a_decision_about_the_mix_is_one_line(tmp_path: Path, policy: str, line: str | None) -> None:
    decision = MixDecision(policy, 3, 5, "62% of own groups without signal")
    events = [
        replace(event, mix=decision) if isinstance(event, RoundEvent) else event
        for event in synthetic.peer_events(1, 20, 200, end=None)
    ]
    history = PeerHistory.read(synthetic.write(tmp_path / "peer-1", events))
    lines = rendered(LiveView([history], clock=lambda: NOW), 80)
    plain = plain_line(history, clock=lambda: NOW).split(" | ")
    if line is None:
        assert not any("mix" in each for each in [*lines, *plain])
    else:
        assert line in plain and line.replace("mix ", "mix: ") in [each.strip() for each in lines]


@pytest.mark.parametrize(
    ("dropped", "plain", "cell"),
    [
        ({"pool_full": 50, "expired": 2}, "dropped 52 (no loss: pool_full 50, expired 2)", "52 pool_full"),
        (
            {"pool_full": 50, "unknown_task": 2},
            "(no loss: pool_full 50; refused: unknown_task 2)",
            "2 unknown_task",
        ),
        ({}, "dropped 0 |", " 0 "),
    ],
)
def test_drops_that_are_no_loss_are_told_apart(tmp_path: Path, dropped: dict[str, int], plain: str, cell: str) -> None:
    events = [
        replace(event, groups={**event.groups, "dropped": dropped}) if isinstance(event, RoundEvent) else event
        for event in synthetic.peer_events(1, 20, 200, end=None)
    ]
    history = PeerHistory.read(synthetic.write(tmp_path / "peer-1", events))
    assert plain in plain_line(history, clock=lambda: NOW)
    assert any(cell in line for line in rendered(LiveView([history], clock=lambda: NOW), 140))


def test_the_first_reward_stays_and_a_restart_is_shown_for_a_while(troubled: list[PeerHistory]) -> None:
    told = plain_line(troubled[1], clock=lambda: NOW).partition("(at first ")[2][:5]
    early = [event.reward for event in troubled[1].series()[:20]]
    assert told == f"{sum(early) / 20:.3f}", "of the first rounds, however many follow"
    assert state_text(troubled[2], NOW) == "restarted x1"
    latest = troubled[2].latest
    assert latest is not None
    later = replace(latest, time=NOW + 1000)
    troubled[2].latest, troubled[2].alive_at = later, later.time
    assert state_text(troubled[2], NOW + 1000) == "running"


def test_a_resized_terminal_is_cleared_once(troubled: list[PeerHistory]) -> None:
    console = Console(width=100, height=30, file=io.StringIO(), force_terminal=True)
    before = signal.getsignal(signal.SIGWINCH)
    with LiveView(troubled, clock=lambda: NOW).shown(console):
        assert "\x1b[2J" not in console.file.getvalue()  # type: ignore[attr-defined]
        signal.raise_signal(signal.SIGWINCH)
        assert "\x1b[2J" in console.file.getvalue()  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGWINCH) == before


def test_sparklines() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10, 1.0) == "▁▅█"
    assert sparkline([0.0, 0.2, 1.0, 1.0], 2, 1.0) == "▂█"
    assert sparkline([None, 1.0], 2, 1.0) == " █"
    assert sparkline([], 5, 1.0) == ""
    assert sparkline([0.0, 0.0], 2, 0.0) == "▁▁"
    assert sparkline([2.0], 1, 1.0) == "█"


@pytest.mark.parametrize("width", [80, 100])
def test_summary_table(troubled: list[PeerHistory], width: int) -> None:
    summary = swarm_summary(troubled, {}, {})
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(summary_table(summary))
    text = console.export_text()
    assert max(cell_len(line) for line in text.splitlines()) <= width
    row = next(line for line in text.splitlines() if line.strip().startswith("peer-1"))
    peer = summary["peers"][0]
    assert f"{peer['reward_first']:.3f} → {peer['reward_last']:.3f}" in row
    assert f"{peer['groups']['used_local']}+{peer['groups']['used_external']}" in row
    assert any(line.strip().startswith("all") for line in text.splitlines())
    alive = ", ".join(peer["name"] for peer in summary["peers"] if peer["state"] == "running")
    assert alive and f"not ended: {alive}" in {line.strip() for line in text.splitlines()}


def test_a_pause_says_why_and_until_when_and_is_no_silence(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "peer-1", synthetic.peer_events(1, 20, 200, end=None))
    history = PeerHistory.read(path)
    with path.open("ab") as file:
        file.write(encode(PauseEvent(time=NOW, why="outside of the hours 22:00-07:00", until=NOW + 3_600)))
    history.tail()
    when = time.strftime("%H:%M", time.localtime(NOW + 3_600))
    assert state_text(history, NOW + 10_000) == f"paused until {when}"
    assert state_text(history, NOW + 10_000, short=True) == "paused"
    frame = "\n".join(rendered(LiveView([history], clock=lambda: NOW + 10_000), 100))
    assert f"{when}: outside of the hours 22:00-07:00" in frame
    with path.open("ab") as file:
        file.write(encode(ResumeEvent(time=NOW + 3_600, paused_s=3_600.0)))
    history.tail()
    assert history.pause is None and "resumed after a pause of 3600 s" in history.moments[-1].text
