"""Reasons to pause that the machine gives."""

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

from swarm.errors import ConfigError
from swarm.extras.schedule.watchers import BatteryWatch, GpuWatch, use_of_others
from swarm.schedule import Schedule, ScheduleSettings

NOON = datetime(2030, 5, 6, 12, 0).timestamp()
PMON = """# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0       {own}     C     97     40      -      -      -      -    python
    0       {other}     G     {used}     10      -      -      -      -    game
    1             -     -      -      -      -      -      -      -    -
"""


Battery = namedtuple("Battery", "power_plugged")


@pytest.mark.parametrize(
    ("battery", "expected"), [(None, False), (Battery(True), False), (Battery(None), False), (Battery(False), True)]
)
def test_a_machine_without_a_battery_is_on_ac(
    monkeypatch: pytest.MonkeyPatch, battery: Battery | None, expected: bool
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert (BatteryWatch().why() is not None) is expected


def test_a_gpu_that_others_use_pauses_until_it_has_been_idle(tmp_path: Path) -> None:
    use = 80.0
    schedule = Schedule(ScheduleSettings(), tmp_path, lambda: NOON, [GpuWatch(0.2, lambda: use, every_s=0.01)])
    found = schedule.pause()
    assert found is not None and found.why == "another program has used the GPU within the last 0.2 s"
    use = 1.0
    _until(lambda: schedule.pause() is None)
    use = 50.0
    _until(lambda: schedule.pause() is not None)
    schedule.close()


def test_a_battery_pauses_a_node_that_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: Battery(False), raising=False)
    for asked in (True, False):
        found = Schedule(ScheduleSettings(only_on_ac=asked), tmp_path, lambda: NOON).pause()
        assert (found is not None and found.why == "the machine runs on its battery") is asked


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
