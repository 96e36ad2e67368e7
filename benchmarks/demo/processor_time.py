"""Processor time of a tree of processes, by what they do, as Linux counts it for each thread."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import psutil

EVERY_S = 0.15
"""What a process uses between the last sample and its end is not seen."""
PROCESSES = {
    "hivemind_cli/p2pd": "network daemons",
    "hivemind.directory_process": "peer directories",
    "verification.worker": "verification workers",
}
"""What a process is for, by a part of its command."""
THREADS = {"swarm-network": "network threads", "verification": "verification threads"}
"""What a thread of a node is for, by its name."""
NETWORK_AND_CHECKS = (*PROCESSES.values(), *THREADS.values())
REST = "everything else"
NAMED = """
import threading

run = threading.Thread.run

def run_named(self):
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write(self.name[:15])
    run(self)

threading.Thread.run = run_named
"""
"""The module `sitecustomize` of what is measured: before Python 3.14 the kernel is not told the names of threads."""


def with_named_threads(folder: Path, checkout: Path) -> dict[str, str]:
    """The environment of a command of this checkout whose threads have names; `folder` is for a file."""
    (folder / "sitecustomize.py").write_text(NAMED)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout), str(folder)))}


def processor_time(process: Popen[bytes]) -> dict[str, float]:
    """Seconds that a command and its descendants use until it ends, by what they do."""
    used: dict[tuple[int, int], float] = {}
    purposes: dict[tuple[int, int], str] = {}
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            for each in (root, *root.children(recursive=True)):
                with suppress(psutil.Error, OSError):
                    _sample(each, used, purposes)
        time.sleep(EVERY_S)
    found = dict.fromkeys((*NETWORK_AND_CHECKS, REST), 0.0)
    for thread, seconds in used.items():
        found[purposes[thread]] += seconds
    return found


def _sample(process: psutil.Process, used: dict[tuple[int, int], float], purposes: dict[tuple[int, int], str]) -> None:
    command = " ".join(process.cmdline())
    if not command:  # it has ended, and its last sample counts
        return
    purpose = next((purpose for part, purpose in PROCESSES.items() if part in command), None)
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        nanoseconds = int((task / "schedstat").read_text().split()[0])
        thread = process.pid, int(task.name)
        used[thread] = nanoseconds / 1e9
        purposes[thread] = purpose or THREADS.get((task / "comm").read_text().strip(), REST)
