"""`swarm work` as a loop that stops and waits has it: sample what a snapshot is for, send it, wait for the next one.

    python -m benchmarks.overlap.waiting work CONFIG --bootstrap MULTIADDR ...

Nothing is sampled that is not needed, nothing is cut off, and nothing is sent before the batch's last completion ends.
"""

from __future__ import annotations

from dataclasses import replace

import nodes.roles.worker
from benchmarks.overlap.following import NUM_WORKERS
from nodes.cli import main
from nodes.roles.worker import WORKER, WorkerNode
from swarm.central.follower import BatchReport, Follower


class WholeBatches(Follower):
    """Sends a batch when it is over."""

    _sampling_now = False

    def run_batch(self) -> BatchReport:
        """Answer the next questions, and keep the answers for now."""
        self._sampling_now = True
        try:
            return super().run_batch()
        finally:
            self._sampling_now = False

    def send(self) -> None:
        """Give away what has been graded, unless a batch is under way."""
        if not self._sampling_now:
            super().send()


class StopAndWait(WorkerNode):
    """A worker that has its share of the groups that the learner takes of every version, and not one batch more."""

    _version: int | None = None
    _shared_before = 0

    def step(self) -> None:
        """A batch while groups with signal are missing, else a short pause."""
        self._follower.install()
        self._follower.send()
        counts = self._follower.ledger.snapshot()
        if self._version != self._follower.version:
            self._version, self._shared_before = self._follower.version, counts["shared"]
        settings, group_size = self._config.learner, self._config.generation.group_size
        share = settings.period * settings.rollouts_per_step / group_size / NUM_WORKERS
        grading = counts["generated"] > counts["shared"] + sum(counts["local"].values())
        if grading or counts["shared"] - self._shared_before >= share:
            self._pause()
        else:
            super().step()


if __name__ == "__main__":
    vars(nodes.roles.worker)["Follower"] = WholeBatches
    nodes.roles.worker.WORKER = replace(WORKER, make=StopAndWait)
    main()
