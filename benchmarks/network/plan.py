"""How much a run measures, and of whom: our nodes, and the public peer's in its two modes."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.children import ChildProcesses
from benchmarks.network.fleet import Fleet, Kind, Setting

KIB, MIB = 2**10, 2**20
PEER_AT_4_KB = (
    "Latency, CPU and memory of the public peer are at 4 KB and one round a second, which is as fast as its rounds go: "
    "at 16 KB its DHT process fails (see the row on the largest group)."
)


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    quick: bool
    repeats: int
    peer_python: Path | None
    folder: Path

    def kinds(self, *, barrier: bool = True, quick: bool = True) -> list[Kind]:
        """The interleaved contenders; with `quick` false a quick run omits the public peer."""
        if self.peer_python is None or (self.quick and not quick):
            return ["ours"]
        return ["ours", "peer", "peer-barrier"] if barrier and not self.quick else ["ours", "peer"]

    def scaled(self, full: float, quick: float) -> float:
        """A duration or a number, by the kind of run."""
        return quick if self.quick else full

    @contextmanager
    def fleet(
        self,
        kind: Kind,
        count: int,
        *,
        loss: float = 0,
        delay_s: float = 0,
        poll_s: float = 0.0,
        num_patient: int = 0,
        wants: float = 0.0,
    ) -> Iterator[Fleet]:
        """Nodes that end with the block."""
        setting = Setting(kind, count, loss, delay_s, poll_s, self.peer_python, num_patient, wants)
        with self.processes() as processes:
            yield Fleet(processes, setting, kind)

    @contextmanager
    def processes(self) -> Iterator[ChildProcesses]:
        """Children, and a new folder for what they write."""
        with ChildProcesses(Path(tempfile.mkdtemp(dir=self.folder))) as processes:
            yield processes


def versus(mode: str, kinds: Collection[Kind]) -> str:
    """Suffix of a row's name that describes its baseline."""
    return f" (peer: {mode})" if len(kinds) > 1 else ""
