"""The benchmark of a demo's processor time finds who used it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.demo.processor_time import NETWORK_AND_CHECKS, REST, processor_time, with_named_threads

BUSY = """
import threading, time

def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    time.sleep(1)  # until it is sampled

thread = threading.Thread(target=work, args=(0.3,), name="swarm-network")
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the processor time of each thread")
def test_the_time_of_a_thread_counts_for_what_it_does(tmp_path: Path) -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], env=with_named_threads(tmp_path, tmp_path))
    found = processor_time(process)
    assert set(found) == {*NETWORK_AND_CHECKS, REST}
    assert found["network threads"] == pytest.approx(0.3, abs=0.1)
    assert found["verification workers"] == found["network daemons"] == 0
    assert 0 < found[REST] < 0.3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the processor time of each thread")
def test_the_time_of_a_process_that_nobody_has_waited_for_stays_its_own(tmp_path: Path) -> None:
    worker = "import time; [None for _ in iter(lambda: time.process_time() < 0.3, False)]; time.sleep(1)"
    started = f"subprocess.Popen([sys.executable, '-c', {worker!r}, 'verification.worker'])"
    parent = f"import subprocess, sys, time; child = {started}; time.sleep(5)"
    process = subprocess.Popen([sys.executable, "-c", parent], env=with_named_threads(tmp_path, tmp_path))
    assert processor_time(process)["verification workers"] == pytest.approx(0.35, abs=0.1)
