"""A worker's part: snapshots are fetched from the learner or other workers, verified, stored and passed on.

    announced ─▶ fetch chunks, verify, store ─▶ newest()
                              └─▶ the peers fed from here: each chunk as soon as it is stored

A worker polls the learner for news, which also keeps it in the plan; while the learner is away it asks any other peer.
A manifest is valid only with the learner's signature, whichever peer passes it on.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from swarm.errors import Refusal, SnapshotError, TransportError
from swarm.extras.learner.snapshots.fetching import Downloads, Fetching
from swarm.extras.learner.snapshots.messages import (
    DIRECT_PROTOCOL,
    Signed,
    SnapshotAnnouncement,
    StatusRequest,
    next_version,
    request_status,
)
from swarm.extras.learner.snapshots.plan import LinkLimits, Slot
from swarm.extras.learner.snapshots.serving import RETRY_S, DirectClient, Serving, SnapshotThread, direct_links
from swarm.extras.learner.snapshots.store import PartName, Stored, apply_delta
from swarm.files import RandomAccessFile
from swarm.net.bandwidth import LinkLimit
from swarm.net.config import NetworkSettings
from swarm.net.roster import Progress
from swarm.protocols import Transport
from swarm.reasons import Reason

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
NUM_ASKERS = 8
"""Requests in parallel."""
MAX_COMPLAINTS = 256
CATCH_UP_S = 1.0
"""Burst: sources are paced already, so a node that was delayed may catch up faster."""


class Subscriber:
    """`SnapshotFeed` of a peer that follows a learner."""

    def __init__(
        self,
        transport: Transport,
        learner: str,
        folder: Path,
        settings: NetworkSettings,
        *,
        max_bytes: float = math.inf,
    ) -> None:
        """Snapshots of the peer `learner`, stored in `folder`; those larger than `max_bytes` are not fetched.

        Raises `SnapshotError` if the run is not known.
        """
        self._transport = transport
        self._learner = learner
        self._settings = settings.snapshots
        self._limits = LinkLimits(settings.upload_bytes_per_s, settings.download_bytes_per_s)
        self._serving = Serving(transport, learner, folder, settings, max_bytes=max_bytes)
        self._thread = SnapshotThread(self._serving, self)
        self._downloads = Downloads(
            transport=transport,
            stall_s=settings.snapshots.stall_s,
            direct=self._direct(settings),
            bytes_per_s=settings.download_bytes_per_s,
            bucket=LinkLimit(settings.download_bytes_per_s, burst_s=CATCH_UP_S),
            askers=ThreadPoolExecutor(NUM_ASKERS, "swarm-snapshots-ask"),
            counters=self._serving.counters,
            complaints=deque(maxlen=MAX_COMPLAINTS),
            closing=self._thread.closing,
        )
        self._slot = Slot((learner,), settings.snapshots.fan_out, None)
        self._polled_at = time.monotonic()
        self._fetching: Fetching | None = None
        self._failed: tuple[str, ...] = ()
        """Sources of the last part that delivered nothing."""
        self._refused: set[int] = set()
        """Versions whose chunks do not match the signed digest."""
        self._gone: set[int] = set()
        """Versions that no source gave although newer ones are known: they cannot be steps to these."""
        self._abandoned = False
        """Whether a download was abandoned after the last complete snapshot. The next one is finished, however late: a
        node that needs longer than `finish_behind` publications would never have one, and deltas may catch up."""
        self._lock = threading.Lock()
        """Guards `_ready` and `_handed_out`."""
        self._ready: tuple[int, RandomAccessFile] | None = None
        self._handed_out = -1

    def start(self) -> None:
        """Start to fetch and to answer others. Raises `SnapshotError` if the folder cannot be used."""
        self._serving.start(self)
        self._thread.start()

    def close(self) -> None:
        """Stop fetching and answering; stored snapshots stay for the next process."""
        self._serving.close()
        self._thread.close()
        self._downloads.askers.shutdown(wait=False, cancel_futures=True)

    def newest(self) -> tuple[int, RandomAccessFile] | None:
        """The newest complete snapshot, returned once. Raises `SnapshotError` after a permanent failure."""
        self._thread.require_running()
        with self._lock:
            ready, self._ready = self._ready, None
            return ready

    def announced(self) -> int | None:
        """The newest signed version known here."""
        return self._serving.manifests.newest

    def progress(self) -> Progress | None:
        """Progress of the newest snapshot; None without one."""
        fetching = self._fetching
        return self._serving.progress(fetching.source if fetching else None)

    def complaints(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of complaints about peers since the last call."""
        complaints = self._downloads.complaints
        return [complaints.popleft() for _ in range(len(complaints))]

    def counters(self) -> dict[str, int]:
        """Cumulative counts: chunks sent and received, changes of source, refusals by reason."""
        return self._serving.counters.snapshot()

    def _direct(self, settings: NetworkSettings) -> DirectClient | None:
        if settings.download_bytes_per_s is not None or not settings.snapshots.direct:
            return None
        if (links := direct_links()) is None:
            return None
        client: DirectClient = links.DirectClient(self._transport, DIRECT_PROTOCOL, self._serving.counters)
        return client

    # -- on the network thread

    def hear(self, peer_id: str, announcement: SnapshotAnnouncement) -> None:
        """See `SnapshotRole`."""
        self._on_news(peer_id, announcement.sealed, announcement.slot)

    def slot_for(self, peer_id: str, question: StatusRequest) -> Slot | None:
        """See `SnapshotRole`. A worker makes no plan."""
        return None

    # -- on any thread

    def _on_news(self, remote: str, sealed: bytes, slot: Slot | None) -> None:
        """Handle news from a peer. Raises `Refusal` for a manifest that the learner has not signed."""
        if slot is not None and slot.sources and remote == self._learner:
            self._slot = slot
            self._serving.uploads.follow(slot)
        if sealed and self._serving.add_manifest(sealed):
            self._thread.wake()

    def _poll(self) -> bool:
        """Ask the learner, or else another peer, for news; whether there was an answer."""
        announced = self.announced()
        others = [peer for peer in self._transport.status().connected if peer != self._learner]
        question = StatusRequest(-1 if announced is None else announced, self._limits, self._failed)
        for peer in (self._learner, *random.sample(others, min(1, len(others)))):
            try:
                news = request_status(self._transport, peer, question, ASK_TIMEOUT_S)
                self._on_news(peer, news.sealed, news.slot)
                return True
            except (TransportError, Refusal) as error:
                logger.debug("no snapshot status from %s: %s", peer, error)
        return False

    # -- on the thread of snapshots

    def begin(self) -> None:
        """Verify what an earlier process stored, and hand out the newest complete snapshot."""
        self._serving.verify()
        newest = self._serving.store.newest_complete()
        if newest is not None:
            self._hand_out(newest)

    def work(self) -> float:
        """See `SnapshotRole`."""
        target = self._target()
        if target is None:
            self._polled_at = time.monotonic()
            return self._settings.poll_s if self._poll() else RETRY_S
        self._abandon_others(target.manifest.version)
        self._fetch(target)
        return 0.0

    def _target(self, current: int | None = None) -> Signed | None:
        """The version to fetch next, given the version `current` in progress."""
        complete = self._serving.store.newest_complete()
        known = self._serving.manifests.known()
        passed_over = self._refused | self._gone
        manifests = {version: each.manifest for version, each in known.items() if version not in passed_over}
        have = complete.manifest.version if complete else -1
        finish_behind = math.inf if self._abandoned else self._settings.finish_behind
        version = next_version(manifests, have, current, finish_behind)
        return known[version] if version is not None else None

    def _abandon_others(self, target: int) -> None:
        """Remove what was begun of versions other than this one."""
        if self._serving.store.drop_unfinished(target):
            self._abandoned = True
            self._serving.manifests.forget_before(target)

    def _fetch(self, signed: Signed) -> None:
        """Fetch a snapshot, as a delta if its parent is stored."""
        manifest = signed.manifest
        stored = self._serving.store.begin(signed.sealed, manifest)
        parent = self._parent(stored)
        if parent is not None and not self._take_change(stored, parent):
            return
        if not stored.whole.complete and not self._take(stored, "whole"):
            return
        if not stored.complete:
            self._refused.add(manifest.version)
            self._serving.counters.add("refused_snapshots")
            logger.error("snapshot %d is refused: its content does not match the signed digest", manifest.version)
            return
        self._serving.counters.add("completed")
        self._abandoned = False
        self._hand_out(stored)
        self._serving.store.collect()
        self._serving.manifests.forget_before(manifest.version)
        self._gone.clear()

    def _parent(self, stored: Stored) -> Stored | None:
        """The parent of the delta; None if it is not stored, or if the whole is already in progress."""
        version = stored.manifest.parent
        parent = self._serving.store.get(version) if version is not None else None
        begun = stored.whole.num_held > 0 and stored.change is not None and not stored.change.complete
        return parent if parent is not None and parent.complete and not begun else None

    def _take_change(self, stored: Stored, parent: Stored) -> bool:
        """Fetch the delta and build the whole from it; False if another version must be fetched first.

        A delta with a wrong result is counted; the whole must then be fetched.
        """
        if not self._take(stored, "change"):
            return False
        assert stored.change is not None
        try:
            chunks = stored.whole.chunks
            for chunk in apply_delta(stored.change.file, parent.whole.file, chunks.chunk_bytes, stored.whole.num_held):
                stored.whole.add(chunk)
        except (SnapshotError, OSError) as error:
            self._serving.counters.add("useless_changes")
            logger.warning(
                "the delta to version %d cannot be applied, the whole is fetched instead: %s",
                stored.manifest.version,
                error,
            )
        return True

    def _take(self, stored: Stored, name: PartName) -> bool:
        stored.taking = name
        self._fetching = fetching = Fetching(self._downloads, stored, name, self._slot, self._is_wanted)
        try:
            return fetching.run()
        finally:
            self._failed = fetching.failed
            self._fetching = None

    def _is_wanted(self, fetching: Fetching) -> bool:
        """Whether this version should still be fetched; also polls for news when that is due."""
        # A worker must keep polling during a long fetch, or it loses its slot in the plan.
        if time.monotonic() - self._polled_at > self._settings.poll_s:
            self._polled_at = time.monotonic()
            self._downloads.askers.submit(self._poll)
        if fetching.stuck and fetching.version != self.announced():
            self._gone.add(fetching.version)
        target = self._target(None if fetching.stuck else fetching.version)
        return target is not None and target.manifest.version == fetching.version

    def _hand_out(self, stored: Stored) -> None:
        version = stored.manifest.version
        with self._lock:
            if version > self._handed_out:
                self._ready, self._handed_out = (version, stored.whole.file), version
