"""A founder's data sets that become large when they are converted, and a real `swarm join` as the victim."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from swarm.environments.digests import content_digest
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from swarm.types import TaskSpec
from tests.environments.bombs import ROWS, lines, parquet
from tests.environments.hub import serving
from tests.nodes.processes import LOOPBACK

from .stranger import Stranger
from .test_founder import GCD, LIMIT_S, Founder

pytestmark = [pytest.mark.slow, pytest.mark.network]

MB = 2**20
BOMBS = {
    "copies.parquet": parquet(4_000),
    "lines.jsonl": gzip.compress(lines(1_000), 1),
    "cell.csv": gzip.compress(b"question,answer\n" + b"a" * (300 * MB) + b",1\n", 1),
}


class Victim:
    """A `swarm join` of one round, and the most of memory and disk that it and its processes took."""

    def __init__(self, folder: Path, address: str, *arguments: str, **environment: str) -> None:
        self.memory_bytes = self.disk_bytes = 0
        self._hf = folder / "hf"
        one_round = ("--rounds=1", "--evaluation.num_questions=0", "--generation.max_new_tokens=4")
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HOME": str(self._hf), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "nodes.cli", "join", f"--bootstrap={address}", *one_round, *arguments]
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--out", str(folder / "peer"), *LOOPBACK],
                env={**os.environ, **own, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        watch = threading.Thread(target=self._watch, args=(psutil.Process(process.pid),))
        watch.start()
        try:
            self.code = process.wait(2 * LIMIT_S)
        finally:
            process.kill()
            watch.join()
        self.text = (folder / "log.txt").read_text(errors="replace")
        self.kept_bytes = self._on_disk()
        self.notes = [moment.text for moment in PeerHistory.read(folder / "peer" / METRICS_FILE).moments]

    def _watch(self, process: psutil.Process) -> None:
        """Memory is that of the largest process beside the node's own."""
        with suppress(psutil.Error):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                for child in process.children(recursive=True):
                    with suppress(psutil.Error):
                        self.memory_bytes = max(self.memory_bytes, child.memory_info().rss)
                self.disk_bytes = max(self.disk_bytes, self._on_disk())
                time.sleep(0.03)

    def _on_disk(self) -> int:
        total = 0
        for file in self._hf.rglob("*"):
            with suppress(OSError):
                total += file.stat().st_size
        return total


def _check(victim: Victim, bombs: Mapping[str, bytes]) -> None:
    assert victim.code == 0 and "Traceback" not in victim.text, victim.text
    for name in (file.split(".")[0] for file in bombs):
        assert f"omitting the run's task {name}: task '{name}': " in victim.text, victim.text
    assert victim.text.count("above the limit of") >= len(bombs)
    assert "run's task good" not in victim.text
    assert victim.memory_bytes < 700 * MB, f"{victim.memory_bytes / MB:.0f} MB"
    assert victim.disk_bytes < 300 * MB


def test_copies_of_a_founders_files_fill_neither_memory_nor_disk(
    tmp_path: Path, strangers: Callable[..., Stranger]
) -> None:
    """A file of 3,094 bytes became 4 GB on the disk and 2.6 GB of memory."""
    specs, arguments = [GCD], []
    for name, content in {**BOMBS, "good.jsonl": ROWS}.items():
        file, task = tmp_path / name, name.split(".")[0]
        file.write_bytes(content)
        specs.append(TaskSpec(task, "dataset", 1.0, {"path": "local", "digest": content_digest([file])}))
        arguments.append(f"--files.{task}={file}")
    founder = Founder(strangers("copies"))
    founder.tell(founder.manifest(*specs))
    victim = Victim(tmp_path, founder.address, *arguments)
    _check(victim, BOMBS)
    assert victim.kept_bytes < MB


def test_a_founders_data_sets_on_the_hub_fill_neither_memory_nor_disk(
    tmp_path: Path, strangers: Callable[..., Stranger]
) -> None:
    card = b"---\nlicense: mit\n---\n"
    files = {"copies.parquet": BOMBS["copies.parquet"], "lines.jsonl.gz": BOMBS["lines.jsonl"], "good.jsonl": ROWS}
    repositories = {
        f"evil/{name.split('.')[0]}": {f"data/{name}": content, "README.md": card} for name, content in files.items()
    }
    specs = [TaskSpec(path.split("/")[1], "dataset", 1.0, {"path": path}) for path in repositories]
    founder = Founder(strangers("hub"))
    founder.tell(founder.manifest(GCD, *specs))
    with serving(repositories) as hub:
        victim = Victim(tmp_path, founder.address, **hub.environment())
    _check(victim, {name: content for name, content in files.items() if content != ROWS})
    assert victim.kept_bytes < 20 * MB
