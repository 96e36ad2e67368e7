"""The learner's snapshots in a worker's engine: installed while it samples, rolled back if they cannot generate.

The last snapshot that has generated is kept until a newer one has generated a token. Source: arXiv:2509.19128 (changes
in flight).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from swarm.errors import SnapshotError, WeightsRefused
from swarm.protocols import SnapshotFeed, StreamingEngine
from swarm.types import Completion

if TYPE_CHECKING:
    from torch import Tensor

    from swarm.files import RandomAccessFile


class SnapshotInstaller:
    """Installs snapshots in an engine. Another thread may call `install` while the engine generates."""

    def __init__(
        self, engine: StreamingEngine, feed: SnapshotFeed, read: Callable[[RandomAccessFile], Mapping[str, Tensor]]
    ) -> None:
        """No snapshot yet; `read` opens the weights in one."""
        self.num_installed = 0
        self.num_refused = 0
        """Snapshots that did not fit the policy or could not generate."""
        self.problem: tuple[int, str] | None = None
        """Version that could not be installed last, and why; None once one could."""
        self._engine = engine
        self._feed = feed
        self._read = read
        self._lock = threading.Lock()
        self._installed: tuple[int, RandomAccessFile] | None = None
        self._before: tuple[int, RandomAccessFile] | None = None
        """The last snapshot that has generated, until the installed one has."""
        self._proven: int | None = None
        """The last version that has generated."""

    @property
    def version(self) -> int | None:
        """The installed snapshot; None before the first."""
        installed = self._installed
        return installed[0] if installed else None

    @property
    def announced(self) -> int | None:
        """The newest version that the learner has announced; None before the first."""
        return self._feed.announced()

    def install(self) -> bool:
        """Install the newest complete snapshot if it is newer than the current one; returns whether it was."""
        found = self._feed.newest()
        if found is None:
            return False
        version, snapshot = found
        try:
            weights = self._read(snapshot)
            with self._lock:
                self._engine.swap(weights, version)
                self._before, self._installed = self._before or self._installed, found
        except (SnapshotError, WeightsRefused) as error:
            self.num_refused += 1
            self.problem = version, str(error)
            return False
        self.num_installed += 1
        self.problem = None
        return True

    def confirm(self, completions: Sequence[Completion]) -> None:
        """Release the snapshot before if the installed one has sampled a token of `completions`."""
        with self._lock:
            if self._installed and any(
                span.version == self._installed[0] for completion in completions for span in completion.versions
            ):
                self._before, self._proven = None, self._installed[0]

    def roll_back(self, failed: int | None) -> bool:
        """Reinstall the last snapshot that has generated because the version `failed` cannot; without one, have none.

        A snapshot that was installed in the meantime stays. Returns whether to go on, with it or with the next one:
        not if `failed` has generated before, and the engine itself is broken.
        """
        with self._lock:
            if self.version != failed:
                return True
            if failed is None or failed == self._proven:
                return False
            if self._before is not None:
                version, snapshot = self._before
                self._engine.swap(self._read(snapshot), version)
            self._installed, self._before = self._before, None
        self.num_refused += 1
        self.problem = failed, "the policy cannot generate with it"
        return True
