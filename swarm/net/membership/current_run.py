"""The run that a node is in: the founder's sealed manifest and values derived from it."""

from __future__ import annotations

import math
import threading
import time

from swarm.errors import Refusal
from swarm.net.records.wire import is_outdated, open_manifest
from swarm.reasons import Reason
from swarm.types import RunManifest


class CurrentRun:
    """The run of the newest adopted manifest; none at first. Any thread may adopt and read."""

    def __init__(self, run_id: str | None, sealed: bytes | None) -> None:
        """`run_id`: join this run only; None: any run. `sealed`: a manifest whose date was checked on arrival.

        Raises `Refusal` if it is invalid or of another run.
        """
        self.sealed: bytes | None = None
        self.manifest: RunManifest | None = None
        self.since = time.monotonic()
        """When this node entered the run."""
        self._wanted = run_id
        self._adopting = threading.Lock()
        if sealed is not None:
            self.adopt(sealed, now=math.inf)

    def adopt(self, sealed: bytes, *, now: float | None = None) -> None:
        """Adopt a manifest. Raises `Refusal` if it is invalid, outdated or of another run."""
        with self._adopting:
            expected = self.manifest.run_id if self.manifest else self._wanted
            manifest = open_manifest(sealed, expected, now=now)
            if self.manifest is not None and is_outdated(manifest, self.manifest, now=now):
                raise Refusal(
                    Reason.STALE, f"created at {manifest.created_at}, before the known one ({self.manifest.created_at})"
                )
            if self.manifest is None:
                self.since = time.monotonic()
            self.sealed, self.manifest = sealed, manifest
