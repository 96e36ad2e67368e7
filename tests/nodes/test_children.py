"""Children of a simulation, and the terminal's Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nodes.simulation import children
from nodes.simulation.children import Child, stop_all
from tests.net.records import until

PARENT = """
import signal
from nodes.simulation import children
signal.signal(signal.SIGINT, lambda *_: print("asked to stop", flush=True))
children.IMPORTED_ONCE = ["slow_to_import"]
children.start_function(print, "a child").join()
"""
SLOW = """
import pathlib, time
pathlib.Path("importing").touch()
while not pathlib.Path("go on").exists():
    time.sleep(0.01)
"""

WARM = """
from nodes.simulation import children
modules = "'torch', 'hivemind.proto', 'libp2p'"
said = f"import gc, sys; print([module in sys.modules for module in ({modules})], gc.get_freeze_count() > 0)"
children.start_function(exec, said).join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no forks")
def test_a_child_has_what_nodes_need_in_frozen_memory_and_still_chooses_its_network() -> None:
    said = subprocess.run([sys.executable, "-c", WARM], capture_output=True, text=True, check=True).stdout
    assert said.split("] ") == ["[True, False, False", "True\n"]


def test_ctrl_c_during_the_first_imports_reaches_the_parent_alone(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until((tmp_path / "importing").exists, "the imports have begun")
    os.killpg(parent.pid, signal.SIGINT)
    (tmp_path / "go on").touch()
    said, _ = parent.communicate(timeout=300)
    assert sorted(said.splitlines()) == ["a child", "asked to stop"], said


def test_who_was_killed_says_so_last(tmp_path: Path) -> None:
    """As a system without memory does it: nothing is in the log."""
    child = Child("sleeper", [], tmp_path, "tests.nodes.sleeper")
    child.start()
    until(lambda: "asleep" in child.last_words(), "it runs", 300.0)  # what it is forked from is imported first
    child.signal(signal.SIGKILL)
    until(lambda: not child.running, "it is dead")
    assert child.last_words().splitlines() == [
        "asleep",
        "it was killed by SIGKILL, as the system does with a process when memory runs out",
    ]


@pytest.fixture
def saver(tmp_path: Path) -> Child:
    child = Child("saver", [str(tmp_path)], tmp_path, "tests.nodes.saver")
    child.start()
    until(lambda: "asleep" in child.last_words(), "it runs", 300.0)  # what it is forked from is imported first
    return child


def test_who_is_stopped_has_the_time_to_save_its_state(saver: Child, tmp_path: Path) -> None:
    stopping = threading.Thread(target=stop_all, args=([saver], 300.0))
    stopping.start()
    until(lambda: "saving" in saver.last_words(), "it was asked to stop")
    (tmp_path / "go on").touch()
    stopping.join()
    assert saver.exit_code == 0 and saver.last_words().endswith("saved")


def test_a_second_ctrl_c_ends_who_still_saves(saver: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        if "saving" in saver.last_words():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(children.time, "sleep", interrupted)
        stop_all([saver], 300.0)
    until(lambda: not saver.running, "it is dead")
    assert saver.exit_code == -signal.SIGKILL
