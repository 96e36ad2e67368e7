"""`swarm work` as a stop-and-wait loop: sample a snapshot's rollouts, send them, wait for the next snapshot.

    python -m benchmarks.overlap.waiting work CONFIG --bootstrap MULTIADDR ...

It samples only what is needed, truncates nothing, and sends nothing before the batch's last completion ends.
"""

from __future__ import annotations

import swarm.extras.learner.roles.worker
from benchmarks.overlap.following import NUM_WORKERS
from nodes.cli import main
from swarm.extras.learner.follower import BatchReport, Follower
from swarm.extras.learner.roles.worker import WorkerNode


class WholeBatches(Follower):
    """Sends a batch when it is complete."""

    _sampling_now = False

    def run_batch(self) -> BatchReport:
        """Answer the next questions and hold the answers."""
        self._sampling_now = True
        try:
            return super().run_batch()
        finally:
            self._sampling_now = False

    def send(self) -> None:
        """Share graded groups, unless a batch is running."""
        if not self._sampling_now:
            super().send()


class StopAndWait(WorkerNode):
    """A worker that samples exactly its share of each version's groups."""

    _version: int | None = None
    _shared_before = 0

    def step(self) -> None:
        """A batch while groups with signal are missing, else a short pause."""
        self.assignment.follower.snapshots.install()
        self.assignment.follower.send()
        counts = self.assignment.follower.groups.ledger.snapshot()
        version = self.assignment.follower.snapshots.version
        if self._version != version:
            self._version, self._shared_before = version, counts["shared"]
        settings, group_size = self._config.learner, self._config.generation.group_size
        share = settings.period * settings.rollouts_per_step / group_size / NUM_WORKERS
        grading = counts["generated"] > counts["shared"] + sum(counts["local"].values())
        if grading or counts["shared"] - self._shared_before >= share:
            self.assignment.wait()
        else:
            super().step()


if __name__ == "__main__":
    vars(swarm.extras.learner.roles.worker).update(Follower=WholeBatches, WorkerNode=StopAndWait)
    main()
