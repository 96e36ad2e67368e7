"""When a node pauses, why, and until when."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from swarm.config import load_config
from swarm.schedule import (
    PAUSE_FILE,
    AskedPause,
    Schedule,
    ScheduleSettings,
    Window,
    ask,
    asked,
    next_start,
    withdraw,
)

NOON = datetime(2030, 5, 6, 12, 0).timestamp()


@pytest.mark.parametrize(
    ("hours", "at", "starts"),
    [
        (["22:00-07:00"], "23:59", None),
        (["22:00-07:00"], "06:59", None),
        (["22:00-07:00"], "07:00", "22:00"),
        (["22:00-07:00", "12:30-13:00"], "12:00", "12:30"),
        (["22:00-07:00", "12:30-13:00"], "12:45", None),
        (["00:00-24:00"], "03:00", None),
        (["9:00-24:00"], "23:59", None),
        (["9:00-24:00"], "00:00", "09:00"),
        ([], "03:00", None),
    ],
)
def test_work_begins_at_the_next_start_of_a_window(hours: list[str], at: str, starts: str | None) -> None:
    now = datetime.strptime(f"2030-05-06 {at}", "%Y-%m-%d %H:%M")
    found = next_start([Window.parse(text) for text in hours], now)
    assert (found and found.strftime("%H:%M")) == starts
    assert found is None or 0 < (found - now).total_seconds() <= 86_400


@pytest.mark.parametrize(
    "text", ["22-7", "25:00-07:00", "22:60-07:00", "07:00-07:00", "", "22:00-24:30", "١٢:00-13:00"]
)
def test_what_is_no_time_of_the_day_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="such as 22:00-07:00|must end at another time|hours of the day"):
        ScheduleSettings(hours=(text,))


def test_hours_are_read_from_yaml(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("schedule:\n  hours: [22:00-07:00, '12:00 - 13:00']\n  only_on_ac: true\n")
    assert load_config(tmp_path / "run.yaml").config.schedule.hours == ("22:00-07:00", "12:00 - 13:00")


def test_a_pause_that_was_asked_for_ends_when_it_is_withdrawn_or_over(tmp_path: Path) -> None:
    assert asked(tmp_path, NOON) is None
    ask(tmp_path, AskedPause(NOON + 60))
    assert asked(tmp_path, NOON) == AskedPause(NOON + 60)
    assert asked(tmp_path, NOON + 60) is None
    ask(tmp_path, AskedPause())
    assert asked(tmp_path, NOON + 10**9) == AskedPause()
    assert withdraw(tmp_path) and not withdraw(tmp_path)
    assert asked(tmp_path, NOON) is None


@pytest.mark.parametrize("text", [b"", b"stop", b"\xff", b'{"until": "x"}', b"[" * 100_000])
def test_a_file_that_cannot_be_read_asks_for_a_pause(tmp_path: Path, text: bytes) -> None:
    """Who put it there wanted one; `swarm resume` removes it."""
    (tmp_path / PAUSE_FILE).write_bytes(text)
    assert asked(tmp_path, NOON) == AskedPause()


class Watcher:
    reason: str | None = "the machine is needed"

    def why(self) -> str | None:
        return self.reason

    def close(self) -> None:
        pass


def test_the_first_reason_that_holds_is_given(tmp_path: Path) -> None:
    watcher = Watcher()
    schedule = Schedule(ScheduleSettings(hours=("13:00-14:00",), only_on_ac=True), tmp_path, lambda: now, [watcher])
    now = NOON
    ask(tmp_path, AskedPause(NOON + 5))
    found = schedule.pause()
    assert found is not None and found.why == "asked for with `swarm pause`" and found.until == NOON + 5
    now = NOON + 5
    found = schedule.pause()
    assert found is not None and found.why == "outside of the hours 13:00-14:00" and found.until == NOON + 3_600
    now = NOON + 3_600
    found = schedule.pause()
    assert found is not None and found.why == "the machine is needed" and found.until is None
    watcher.reason = None
    assert schedule.pause() is None
