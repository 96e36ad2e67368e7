"""The learner's part: snapshots are split, signed, stored and announced.

    publish ─▶ split, sign, store ─▶ plan ─▶ announce: manifest and slot, to every worker
                                         └─▶ chunks, to the workers that the plan feeds from here

A snapshot that a newer one overtakes while it waits is never published. Workers poll the learner for news and report
their rates, which enters them into the plan. So nothing waits for announcements: they only make news arrive sooner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from swarm.errors import SnapshotError, TransportError
from swarm.extras.learner.snapshots.messages import Signed, SnapshotAnnouncement, StatusRequest
from swarm.extras.learner.snapshots.plan import LinkLimits, Placement, Slot
from swarm.extras.learner.snapshots.serving import Serving, SnapshotThread
from swarm.extras.learner.snapshots.store import Stored, check_size, delta_path, describe
from swarm.files import RandomAccessFile
from swarm.net.addresses.dial import Backoff
from swarm.net.config import NetworkSettings
from swarm.net.guard import Counters
from swarm.net.records.identity import Identity
from swarm.net.records.wire import seal_snapshot
from swarm.net.roster import Progress
from swarm.net.services.requests import ANNOUNCE_PROTOCOL
from swarm.protocols import Transport

logger = logging.getLogger(__name__)

ANNOUNCE_TIMEOUT_S = 5.0
NUM_ANNOUNCERS = 8
"""Workers notified in parallel."""
UNHEARD_S, MAX_UNHEARD_S = 10.0, 600.0
"""A worker that did not answer an announcement gets none for this time, twice as long each time: others would wait."""


class Publisher:
    """`SnapshotPublisher` of a learner; continues with the snapshots of its earlier processes."""

    def __init__(self, transport: Transport, identity: Identity, folder: Path, settings: NetworkSettings) -> None:
        """Snapshots signed by `identity`, stored in `folder`. Raises `SnapshotError` if the run is not known."""
        self._transport = transport
        self._identity = identity
        self._settings = settings.snapshots
        self._serving = Serving(transport, identity.peer_id, folder, settings)
        self._serving.uploads.max_ahead = 0  # no peer knows a version before its learner
        limits = LinkLimits(settings.upload_bytes_per_s, settings.download_bytes_per_s)
        self._placement = Placement(identity.peer_id, limits, settings.snapshots, self._serving.counters)
        self._lock = threading.Lock()
        """Guards the placement and the snapshots to publish."""
        self._waiting: tuple[int, RandomAccessFile] | None = None
        """The newest snapshot, until it is published. Only one: each has the size of the model."""
        self._begun: tuple[int, RandomAccessFile] | None = None
        """The one whose publication has begun."""
        self._announcer = _Announcer(transport, self._serving.counters, self._on_unheard)
        self._thread = SnapshotThread(self._serving, self)

    def start(self) -> None:
        """Start to answer workers and to publish. Raises `SnapshotError` if `folder` cannot be used."""
        self._serving.start(self)
        self._thread.start()

    def close(self) -> None:
        """Stop publishing and answering; stored snapshots stay for the next process."""
        self._serving.close()
        self._thread.close()
        self._announcer.close()

    def publish(self, version: int, snapshot: RandomAccessFile) -> None:
        """Have a snapshot announced and served, instead of an older one that still waits for that; returns at once.

        The file is moved into the store, or deleted. Raises `SnapshotError`.
        """
        try:
            self.check()
            check_size(snapshot.size, self._settings.chunk_bytes)
            with self._lock:
                newest = self._waiting[0] if self._waiting else self.announced()
                if newest is not None and version <= newest:
                    raise SnapshotError(
                        f"a snapshot's version must be above {newest}, the last one published, got {version}"
                    )
                if self._waiting is not None and self._waiting is not self._begun:
                    self._serving.counters.add("superseded")
                    self._discard(*self._waiting)
                self._waiting = (version, snapshot)
        except SnapshotError:
            snapshot.path.unlink(missing_ok=True)
            raise
        self._thread.wake()

    def check(self) -> None:
        """Raises `SnapshotError` if no snapshot will be published any more."""
        self._thread.require_running()

    def announced(self) -> int | None:
        """The newest version signed by this process, or by an earlier one whose snapshots are still here."""
        return self._serving.manifests.newest

    def progress(self) -> Progress | None:
        """Progress of writing the newest snapshot, and the workers that receive it; None without one."""
        return self._serving.progress()

    def counters(self) -> dict[str, int]:
        """Cumulative counts: snapshots published, chunks given, workers that fed no one."""
        return self._serving.counters.snapshot()

    # -- on the network thread

    def hear(self, peer_id: str, announcement: SnapshotAnnouncement) -> None:
        """Ignored: it says nothing new about own snapshots, and may come from an earlier process with this key whose
        snapshots are unknown here: its higher version would end the run.
        """

    def slot_for(self, worker: str, question: StatusRequest) -> Slot | None:
        """See `SnapshotRole`."""
        if question.limits is None:
            return None
        with self._lock:
            slot = self._placement.slot_for(worker, question.limits, question.failed)
            self._follow_plan()
            return slot

    def _follow_plan(self) -> None:
        # Workers in the plan come before other peers.
        self._serving.uploads.follow(self._placement.root, self._placement.plan.slots.keys())

    # -- on the thread of snapshots

    def begin(self) -> None:
        """See `SnapshotRole`."""
        self._serving.verify()

    def work(self) -> float:
        """See `SnapshotRole`."""
        with self._lock:
            begun = self._begun = self._waiting
        if begun is None:
            return self._settings.poll_s
        try:
            self._publish(*begun)
        except BaseException:
            with self._lock:
                self._begun = None
                if self._waiting is not begun:
                    self._discard(*begun)
            raise
        with self._lock:
            if self._waiting is begun:
                self._waiting = self._begun = None
        return 0.0

    def _discard(self, version: int, snapshot: RandomAccessFile) -> None:
        """Delete a snapshot that a newer one has overtaken, unless it is stored."""
        stored = self._serving.store.get(version)
        if stored is None or stored.whole.file is not snapshot:
            snapshot.path.unlink(missing_ok=True)
            delta_path(snapshot).unlink(missing_ok=True)

    def _publish(self, version: int, snapshot: RandomAccessFile) -> None:
        stored = self._store(version, snapshot)
        with self._lock:
            self._serving.manifests.replace_all(Signed(stored.sealed, stored.manifest))
            slots = self._placement.begin_broadcast()
            self._follow_plan()
        self._announcer.announce(slots, stored.sealed)
        self._serving.counters.add("published")
        self._serving.store.collect()

    def _store(self, version: int, snapshot: RandomAccessFile) -> Stored:
        """Sign a snapshot, and move it into the store with its delta."""
        store = self._serving.store
        if (known := store.get(version)) is not None and known.complete:  # a later step failed
            return known
        store.drop_unfinished(version)
        parent = store.newest_complete() if self._settings.delta else None
        before = (parent.manifest.version, parent.whole.file) if parent else None
        manifest, change = describe(
            self._serving.run_id, self._identity.peer_id, version, snapshot, before, self._settings.chunk_bytes
        )
        stored = store.begin(seal_snapshot(self._identity, manifest), manifest)
        if stored.change is not None and change is not None:
            stored.change.adopt(change)
        stored.whole.adopt(snapshot, manifest.digest)
        return stored

    # -- on the threads of announcements

    def _on_unheard(self, worker: str) -> None:
        with self._lock:
            self._placement.forget(worker)


class _Announcer:
    """Announces snapshots to workers, in the background."""

    def __init__(self, transport: Transport, counters: Counters, on_unheard: Callable[[str], None]) -> None:
        """`on_unheard` is called with each worker that did not answer."""
        self._transport = transport
        self._counters = counters
        self._on_unheard = on_unheard
        self._pool = ThreadPoolExecutor(NUM_ANNOUNCERS, "swarm-snapshots-announce")
        self._announced: dict[str, Future[None]] = {}
        """Announcements under way, by worker."""
        self._lock = threading.Lock()
        """Guards `_unheard`."""
        self._unheard = Backoff(UNHEARD_S, MAX_UNHEARD_S)

    def announce(self, slots: Mapping[str, Slot], sealed: bytes) -> None:
        """Announce a snapshot, the first of `slots` first; what has not begun of the one before is dropped.

        Workers that did not answer for a while are passed over, as are those that have yet to answer the last
        announcement: two could arrive in the wrong order.
        """
        running = {worker: each for worker, each in self._announced.items() if not (each.cancel() or each.done())}
        now = time.monotonic()
        with self._lock:
            passed_over = {worker for worker in slots if worker in running or self._unheard.wait_s(worker, now) > 0}
        self._announced = running | {
            worker: self._pool.submit(self._announce, worker, slot, sealed)
            for worker, slot in slots.items()
            if worker not in passed_over
        }

    def close(self) -> None:
        """Announce nothing more; what is being announced is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _announce(self, worker: str, slot: Slot, sealed: bytes) -> None:
        message = msgspec.msgpack.encode(SnapshotAnnouncement(sealed, slot))
        try:
            self._transport.request(worker, ANNOUNCE_PROTOCOL, message, ANNOUNCE_TIMEOUT_S)
        except TransportError as error:
            logger.debug("announcing a snapshot to %s failed: %s", worker, error)
            self._counters.add("unheard_announcements")
            with self._lock:
                self._unheard.failed(worker, time.monotonic())
            self._on_unheard(worker)
        except Exception:
            # No one reads this result, so that an error of this node itself would not be seen.
            logger.exception("announcing a snapshot to %s failed", worker)
        else:
            with self._lock:
                self._unheard.succeeded(worker)
