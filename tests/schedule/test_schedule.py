"""When a node pauses, why, and until when."""

from __future__ import annotations

import os
import stat
import time
from collections import namedtuple
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from swarm.config import load_config
from swarm.errors import ConfigError
from swarm.schedule.config import ScheduleSettings
from swarm.schedule.gpu import GpuWatch, use_of_others
from swarm.schedule.hours import Window, next_start
from swarm.schedule.pause_file import PAUSE_FILE, AskedPause, ask, asked, withdraw
from swarm.schedule.schedule import Schedule, on_battery

NOON = datetime(2030, 5, 6, 12, 0).timestamp()
PMON = """# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0       {own}     C     97     40      -      -      -      -    python
    0       {other}     G     {used}     10      -      -      -      -    game
    1             -     -      -      -      -      -      -      -    -
"""


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


def test_the_first_reason_that_holds_is_given(tmp_path: Path) -> None:
    battery = True
    schedule = Schedule(
        ScheduleSettings(hours=("13:00-14:00",), only_on_ac=True), tmp_path, lambda: now, lambda: battery
    )
    now = NOON
    ask(tmp_path, AskedPause(NOON + 5))
    found = schedule.pause()
    assert found is not None and found.why == "asked for with `swarm pause`" and found.until == NOON + 5
    now = NOON + 5
    found = schedule.pause()
    assert found is not None and found.why == "outside of the hours 13:00-14:00" and found.until == NOON + 3_600
    now = NOON + 3_600
    found = schedule.pause()
    assert found is not None and found.why == "the machine runs on its battery" and found.until is None
    battery = False
    assert schedule.pause() is None


Battery = namedtuple("Battery", "power_plugged")


@pytest.mark.parametrize(
    ("battery", "expected"), [(None, False), (Battery(True), False), (Battery(None), False), (Battery(False), True)]
)
def test_a_machine_without_a_battery_is_on_ac(
    monkeypatch: pytest.MonkeyPatch, battery: Battery | None, expected: bool
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert on_battery() is expected


def test_a_gpu_that_others_use_pauses_until_it_has_been_idle(tmp_path: Path) -> None:
    use = 80.0
    watch = GpuWatch(lambda: use, every_s=0.01)
    settings = ScheduleSettings(gpu_idle_s=0.2)
    schedule = Schedule(settings, tmp_path, lambda: NOON, lambda: False, watch)
    found = schedule.pause()
    assert found is not None and found.why == "another program has used the GPU within the last 0.2 s"
    use = 1.0
    _until(lambda: schedule.pause() is None)
    use = 50.0
    _until(lambda: schedule.pause() is not None)
    schedule.close()


def test_without_a_tool_that_tells_the_use_of_gpus_such_a_schedule_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="schedule.gpu_idle_s: nvidia-smi is not here"):
        Schedule(ScheduleSettings(gpu_idle_s=300), tmp_path)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (PMON, 63.0),
        (PMON.replace("{used}", "-"), 0.0),
        (PMON.replace("{other}", "99999999"), 0.0),
        ("No devices were found", None),
        ("", None),
    ],
)
def test_only_other_programs_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, expected: float | None
) -> None:
    own = psutil.Process().pid
    (tmp_path / "table").write_text(table.format(own=own, other=os.getppid(), used=63))
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done < {tmp_path}/table\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert use_of_others() == expected


def test_a_tool_that_fails_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert use_of_others() is None


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
