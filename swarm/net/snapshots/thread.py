"""The "swarm-snapshots" thread: all work on snapshots except answering peers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from swarm.errors import SnapshotError, TransportError
from swarm.net.snapshots.serving import Serving

logger = logging.getLogger(__name__)

MAX_FAILURES = 8
"""Consecutive failures of any kind after which the thread fails permanently and the node must be told."""
RETRY_S = 0.5


class SnapshotThread:
    """Runs the work when it is due; only a permanent error ends it."""

    def __init__(self, serving: Serving, begin: Callable[[], None], work: Callable[[], float]) -> None:
        """`begin` is called once, then `work` repeatedly; `work` returns the seconds until the next call."""
        self._serving = serving
        self._begin = begin
        self._work = work
        self._num_failures = 0
        self._wake = threading.Event()
        self.closing = threading.Event()
        """Set when the thread must stop."""
        self.failure: str | None = None
        """Reason of a permanent failure."""
        self._thread = threading.Thread(target=self._run, name="swarm-snapshots", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Run the work now."""
        self._wake.set()

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self.closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def require_running(self) -> None:
        """Raises `SnapshotError` after a permanent failure."""
        if self.failure is not None:
            raise SnapshotError(self.failure)

    def _run(self) -> None:
        try:
            self._begin()
            while not self.closing.is_set():
                self._wake.clear()
                self._wake.wait(self._work_or_rest())
        except Exception as error:
            # Last resort: the node must be told, and stop.
            logger.exception("the snapshot thread failed")
            self.failure = f"the snapshot thread failed: {error!r}"

    def _work_or_rest(self) -> float:
        """Run the work; seconds to wait."""
        try:
            rest_s = self._work()
            self._num_failures = 0
            return rest_s
        except OSError as error:
            self._serving.counters.add("disk_errors")
            logger.error(
                "snapshots cannot be written: %s; keeping only the newest and trying again, free disk space", error
            )
            self._serving.store.make_room()
            return self._serving.settings.poll_s
        except TransportError as error:
            logger.debug("the network is down: %s", error)
            return RETRY_S
        except SnapshotError:
            raise
        except Exception:
            # Peers' input must not end this thread; an error of this node itself persists and reaches the limit.
            self._num_failures += 1
            if self._num_failures == MAX_FAILURES:
                raise
            self._serving.counters.add("relay_errors")
            logger.exception("the snapshot thread continues after an error")
            return RETRY_S
