"""A learner's snapshots at its workers, and at a peer that follows it (`swarm join --follow PEER`).

Such a peer trains its own policy, and adopts a snapshot if it answers better.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nodes.roles.runtime import RoleRuntime
from swarm.config import NodeConfig
from swarm.errors import EngineError, SnapshotError
from swarm.evaluation import evaluate
from swarm.extras.learner.packing import most_bytes, read_snapshot, whole_weights
from swarm.extras.learner.snapshots.publish import Publisher
from swarm.extras.learner.snapshots.subscribe import Subscriber
from swarm.files import RandomAccessFile
from swarm.net.records.identity import Identity
from swarm.net.roster import Progress, write_progress
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.protocols import RolloutEngine, Transport, Verifier
from swarm.types import HELD_OUT_STREAMS

FOLDER = "snapshots"
REPORT_EVERY_S = 0.5

COMPARISON_STREAMS = HELD_OUT_STREAMS + 2**40
"""Seed of the questions that compare policies, new ones each time: used neither for training nor for evaluations."""


@contextmanager
def open_publisher(transport: Transport, identity: Identity, config: NodeConfig) -> Iterator[Publisher]:
    """Publish this node's own snapshots. Raises `SnapshotError` when the run is unknown or they cannot be stored."""
    publisher = Publisher(transport, identity, config.out / FOLDER, config.network)
    publisher.start()
    try:
        with _reporting(config.out, publisher.progress):
            yield publisher
    finally:
        publisher.close()


@contextmanager
def open_subscriber(
    transport: Transport, learner: str, config: NodeConfig, *, max_bytes: float
) -> Iterator[Subscriber]:
    """Fetch the snapshots of the peer `learner`, and serve them to others.

    Snapshots larger than `max_bytes` are refused before the download. Raises `SnapshotError` when the run is unknown or
    they cannot be stored.
    """
    subscriber = Subscriber(transport, learner, config.out / FOLDER, config.network, max_bytes=max_bytes)
    subscriber.start()
    try:
        with _reporting(config.out, subscriber.progress):
            yield subscriber
    finally:
        subscriber.close()


@contextmanager
def _reporting(out: Path, progress: Callable[[], Progress | None]) -> Iterator[None]:
    """Write the progress of the newest snapshot whenever it changes, for the page: it spreads in the background."""
    ended = threading.Event()

    def report() -> None:
        reported = None
        while not ended.wait(REPORT_EVERY_S):
            if (now := progress()) is not None and now != reported:
                with suppress(OSError):  # the node itself says when a disk is full
                    write_progress(out, now)
                reported = now

    thread = threading.Thread(target=report, name="snapshot progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class SnapshotAdoption:
    """Compares each new snapshot of a learner with a peer's own policy, and keeps the better one."""

    def __init__(
        self,
        learner: str,
        runtime: RoleRuntime,
        transport: Transport,
        policy: Policy,
        engine: RolloutEngine,
        verifier: Verifier,
    ) -> None:
        """`engine` generates with `policy`."""
        self._learner = learner
        self._runtime = runtime
        self._transport = transport
        self._policy = policy
        self._engine = engine
        self._verifier = verifier
        self._open = ExitStack()
        self._feed: Subscriber | None = None
        """None until the run is known."""

    def look(self) -> None:
        """Compare the learner's newest snapshot, if there is a new one. Raises what an evaluation does."""
        if self._feed is None:
            if self._transport.manifest() is None:
                return
            room = most_bytes(self._policy.model)
            feed = open_subscriber(self._transport, self._learner, self._runtime.config, max_bytes=room)
            self._feed = self._open.enter_context(feed)
            self._runtime.count_also("snapshots", self._feed.counters)
        self._runtime.exchange.judge(self._feed.complaints())
        found = self._feed.newest()
        if found is not None and self._runtime.config.follow.adopt_questions:
            self._compare(*found)

    def close(self) -> None:
        """Fetch no more snapshots."""
        self._open.close()

    def _compare(self, version: int, snapshot: RandomAccessFile) -> None:
        """Keep the policy that answers more of the same questions; on a tie, the node's own."""
        policy = self._policy
        # On the CPU: a GPU may have no room for another copy.
        own = {name: weights.detach().to("cpu", copy=True) for name, weights in whole_weights(policy).items()}
        before = self._num_correct(version)
        is_better = False
        try:
            swap_weights(policy, read_snapshot(policy, snapshot), policy.version)
            after = self._num_correct(version)
            is_better = after > before
        except (SnapshotError, EngineError) as error:  # it cannot be read, does not fit, or cannot generate
            self._runtime.note(f"version {version} of the learner cannot be used: {error}", "warning")
            return
        finally:  # also when Ctrl-C interrupts: the next checkpoint has the policy's weights
            if not is_better:
                swap_weights(policy, own, policy.version)
        outcome = "adopted" if is_better else "left"
        asked = self._runtime.config.follow.adopt_questions
        self._runtime.note(
            f"{outcome} version {version} of the learner: {after} of {asked} correct, {before} with its own"
        )

    def _num_correct(self, version: int) -> int:
        config = self._runtime.config
        sampling, asked = config.generation.sampling(), config.follow.adopt_questions
        return evaluate(self._engine, self._verifier, sampling, asked, COMPARISON_STREAMS + version).num_correct
