"""The "swarm-snapshots" thread: all that a node does about snapshots but answering others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from swarm.errors import SnapshotError, TransportError
from swarm.net.snapshots.serving import Serving

logger = logging.getLogger(__name__)

MAX_FAILURES = 8
"""Failures of the work in a row, of whatever kind, after which the node must hear of it."""
RETRY_S = 0.5


class SnapshotThread:
    """Does what is due, rests, and does it again; only an error that stays ends it."""

    def __init__(self, serving: Serving, begin: Callable[[], None], work: Callable[[], float]) -> None:
        """`begin` is called once; then `work`, which returns the seconds until something may be due again."""
        self._serving = serving
        self._begin = begin
        self._work = work
        self._num_failures = 0
        self._wake = threading.Event()
        self.closing = threading.Event()
        """Set once the work is to end."""
        self.failure: str | None = None
        """Why it has ended."""
        self._thread = threading.Thread(target=self._run, name="swarm-snapshots", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def wake(self) -> None:
        """Something is due."""
        self._wake.set()

    def close(self) -> None:
        """End the work, and wait for it."""
        self.closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def require_running(self) -> None:
        """Raises `SnapshotError` when it has failed for good."""
        if self.failure is not None:
            raise SnapshotError(self.failure)

    def _run(self) -> None:
        try:
            self._begin()
            while not self.closing.is_set():
                self._wake.clear()
                self._wake.wait(self._work_or_rest())
        except Exception as error:
            # The last line of defence of this thread: the node must hear of it and stop.
            logger.exception("the relay of snapshots failed")
            self.failure = f"the relay of snapshots failed: {error!r}"

    def _work_or_rest(self) -> float:
        """Do what is due; seconds to rest."""
        try:
            rest_s = self._work()
            self._num_failures = 0
            return rest_s
        except OSError as error:
            self._serving.counters.add("disk_errors")
            logger.error("snapshots cannot be written: %s; only the newest is kept, and it is tried again", error)
            self._serving.store.collect(keep=1)
            return self._serving.settings.poll_s
        except TransportError as error:
            logger.debug("the network is not up: %s", error)
            return RETRY_S
        except SnapshotError:
            raise
        except Exception:
            # What others send must not end this thread; what this node does wrong itself does not pass.
            self._num_failures += 1
            if self._num_failures == MAX_FAILURES:
                raise
            self._serving.counters.add("relay_errors")
            logger.exception("the relay of snapshots goes on after an error")
            return RETRY_S
