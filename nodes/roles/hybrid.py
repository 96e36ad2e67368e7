"""`swarm join --follow PEER`: a peer that trains its own policy, and adopts a learner's snapshot if it answers
better."""

from __future__ import annotations

from nodes.roles.peer import PeerNode
from nodes.roles.snapshots import open_subscriber
from swarm.errors import ConfigError, EngineError, SnapshotError
from swarm.evaluation import evaluate
from swarm.files import RandomAccessFile
from swarm.net.snapshots.subscribe import Subscriber
from swarm.policy.snapshot import most_bytes
from swarm.policy.weights import read_snapshot, swap_weights, whole_weights
from swarm.types import HELD_OUT_STREAMS

COMPARISON_STREAMS = HELD_OUT_STREAMS + 2**40
"""Seed of the questions that compare policies, new ones each time: used neither for training nor for evaluations."""


class HybridNode(PeerNode):
    """A SAPO peer that tests every new snapshot of `follow.learner`."""

    _feed: Subscriber | None = None

    def begin(self) -> None:
        """Begin as a peer. Raises `ConfigError`."""
        if self._coordinator.policy.ranks.size > 1:
            raise ConfigError("a peer that follows a learner runs in one process: omit --follow, or torchrun")
        super().begin()

    def _work(self) -> None:
        """One round, then a test of the learner's newest snapshot."""
        super()._work()
        if self._feed is None:
            if self._transport.manifest() is None:
                return
            learner = self._config.follow.learner or ""
            room = most_bytes(self._coordinator.policy.model)
            self._feed = self._open.enter_context(
                open_subscriber(self._transport, learner, self._config, max_bytes=room)
            )
            self._shell.count_also("snapshots", self._feed.counters)
        self._shell.exchange.judge(self._feed.complaints())
        found = self._feed.newest()
        if found is not None and self._config.follow.adopt_questions:
            self._compare(*found)

    def _compare(self, version: int, snapshot: RandomAccessFile) -> None:
        """Keep the policy that answers more of the same questions; on a tie, the node's own."""
        policy = self._coordinator.policy
        # On the CPU: a GPU may have no room for another copy.
        own = {name: weights.detach().to("cpu", copy=True) for name, weights in whole_weights(policy).items()}
        before = self._num_correct(version)
        is_better = False
        try:
            swap_weights(policy, read_snapshot(policy, snapshot), policy.version)
            after = self._num_correct(version)
            is_better = after > before
        except (SnapshotError, EngineError) as error:  # it cannot be read, does not fit, or cannot generate
            self.note(f"version {version} of the learner cannot be used: {error}", "warning")
            return
        finally:  # also when Ctrl-C interrupts: the next checkpoint has the policy's weights
            if not is_better:
                swap_weights(policy, own, policy.version)
        outcome = "adopted" if is_better else "left"
        asked = self._config.follow.adopt_questions
        self.note(f"{outcome} version {version} of the learner: {after} of {asked} correct, {before} with its own")

    def _num_correct(self, version: int) -> int:
        asked = self._config.follow.adopt_questions
        return evaluate(
            self._coordinator, self._verifier, self._sampling, asked, COMPARISON_STREAMS + version
        ).num_correct
