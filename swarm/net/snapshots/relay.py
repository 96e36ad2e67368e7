"""A node's part in spreading a learner's snapshots: the learner publishes, everyone else fetches and hands on.

    learner   publish ─▶ cut, sign, store ─▶ plan ─▶ announce to every worker
    worker    announced ─▶ fetch chunks, verify, store ─▶ newest()
                                   └─▶ whoever is fed from here, chunk by chunk

A worker asks the learner now and then for news, and so is known to its plan; when the learner is away it asks any
other peer. What it is told it believes for the learner's signature only.

The "swarm-snapshots" thread does all of this but answering others, which the network thread does.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from swarm.errors import RejectedGroup, SnapshotError, TransportError
from swarm.net.addresses.dial import Backoff
from swarm.net.bandwidth import TokenBucket
from swarm.net.config import NetworkSettings
from swarm.net.counters import Counters
from swarm.net.records.identity import Identity
from swarm.net.records.wire import open_snapshot, seal_snapshot
from swarm.net.snapshots.choosing import next_version
from swarm.net.snapshots.chunks import describe
from swarm.net.snapshots.delta import apply_delta, digest
from swarm.net.snapshots.fetching import Fetching, ask
from swarm.net.snapshots.plan import Limits, Place, Plan
from swarm.net.snapshots.serving import (
    ANNOUNCE_PROTOCOL,
    ASK_PROTOCOL,
    CHUNKS_PROTOCOL,
    Announcement,
    Ask,
    Kitchen,
    News,
)
from swarm.net.snapshots.store import PartName, SnapshotStore, Stored
from swarm.protocols import Transport
from swarm.types import SnapshotManifest

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
ANNOUNCE_TIMEOUT_S = 5.0
ASKERS = 8
"""Requests at once."""
FORGET_AFTER_POLLS = 3
"""A worker that has not asked for so long has no place in the next plan."""
MAX_WORKERS = 256
"""With a place; one more takes that of the last that nothing has been seen of yet."""
IDLE_S, MAX_IDLE_S = 60.0, 3_600.0
"""Who fed nobody though the plan said so is to feed nobody for so long, twice as long each time."""
MAX_COMPLAINTS = 256
MAX_FAILURES = 8
"""Of this thread's work in a row, whatever they are, after which the node must hear of it."""
RETRY_S = 0.5
CATCH_UP_S = 1.0
"""Who gives is paced already: a node that was held up for a moment may take faster what has come meanwhile."""


class Progress(Struct, frozen=True):
    """How far the newest snapshot has come, here."""

    version: int
    fraction: float
    source: str | None
    """Whom it comes from."""
    feeds: tuple[str, ...]
    """Whom it goes to."""


class _Worker(Struct):
    """A peer that has asked the learner for a place."""

    limits: Limits
    asked_at: float
    tried: bool = False
    """It had a place in an earlier broadcast."""
    failed: tuple[str, ...] = ()
    """Sources that it said fed it nothing, when it last asked."""


class SnapshotRelay:
    """`SnapshotPublisher` of the learner, `SnapshotFeed` of everyone else."""

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        learner: str,
        folder: Path,
        settings: NetworkSettings,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_bytes: float = math.inf,
    ) -> None:
        """Snapshots of the peer `learner`, kept in `folder`; the node whose identity that is publishes them.

        Larger ones than `max_bytes` are not fetched: a learner may sign what fills any disk.
        """
        self._transport = transport
        self._identity = identity
        self._learner = learner
        self._settings = settings.snapshots
        self._limits = Limits(settings.upload_bytes_per_s, settings.download_bytes_per_s)
        self._clock = clock
        self._max_bytes = max_bytes
        self._counters = Counters()
        self._store = SnapshotStore(folder, settings.snapshots.keep)
        self._kitchen = Kitchen(self._store, self._counters, settings.snapshots.fan_out)
        if self.publishes:
            self._kitchen.reach = 0  # nobody has heard of a version before the learner
        self._downloads = TokenBucket(settings.download_bytes_per_s, burst_s=CATCH_UP_S)
        self._lock = threading.Lock()
        self._known: dict[int, tuple[bytes, SnapshotManifest]] = {}
        """Manifests of the versions from the one being fetched on, oldest first."""
        self._place = Place((learner,), settings.snapshots.fan_out, None)
        self._workers: dict[str, _Worker] = {}
        """Of the learner: who has asked for a place."""
        self._idle = Backoff(IDLE_S, MAX_IDLE_S)
        """Of the learner: who fed nobody."""
        self._plan = Plan(learner, self._limits, {}, settings.snapshots.fan_out)
        self._to_publish: deque[tuple[int, bytes]] = deque()
        self._announced: int | None = None
        self._ready: tuple[int, bytes] | None = None
        self._handed_out = -1
        self._failure: str | None = None
        self._polled_at = clock()
        self._refused: set[int] = set()
        """Versions whose chunks do not make up what was signed."""
        self._fetching: Fetching | None = None
        self._failed: tuple[str, ...] = ()
        """Sources of the last part that fed this node nothing."""
        self._num_failures = 0
        self._complaints: deque[tuple[str, str]] = deque(maxlen=MAX_COMPLAINTS)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._askers = ThreadPoolExecutor(ASKERS, "swarm-snapshots-ask")
        self._thread = threading.Thread(target=self._live, name="swarm-snapshots", daemon=True)

    @property
    def publishes(self) -> bool:
        """Whether this node is the learner."""
        return self._identity.peer_id == self._learner

    def start(self) -> None:
        """Take up what an earlier process left, and begin to answer and to fetch.

        The run must be known. Raises `SnapshotError` when it is not, or snapshots cannot be kept.
        """
        run = self._transport.manifest()
        if run is None:
            raise SnapshotError("a run must be joined before its snapshots can be followed")
        self._run_id = run.run_id
        self._store.load(self._open)
        for version in self._store.versions():
            stored = self._store.get(version)
            assert stored is not None
            self._announced = version
            self._known[version] = stored.sealed, stored.manifest
        self._transport.serve(ASK_PROTOCOL, self._answer_ask)
        self._transport.serve(ANNOUNCE_PROTOCOL, self._answer_announcement)
        self._transport.serve_stream(CHUNKS_PROTOCOL, self._give)
        self._thread.start()

    def close(self) -> None:
        """Stop fetching; what is here stays for the next process."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._askers.shutdown(wait=False, cancel_futures=True)

    def publish(self, version: int, snapshot: bytes) -> None:
        """Make a snapshot known to the run and serve it; returns at once. Raises `SnapshotError`."""
        if not self.publishes:
            raise SnapshotError(f"only the learner {self._learner} publishes, this is {self._identity.peer_id}")
        self._require_running()
        with self._lock:
            newest = self._to_publish[-1][0] if self._to_publish else self._announced
            if newest is not None and version <= newest:
                raise SnapshotError(f"versions must rise: {newest} has been published, got {version}")
            self._to_publish.append((version, snapshot))
        self._wake.set()

    def newest(self) -> tuple[int, bytes] | None:
        """The newest complete snapshot, once. Raises `SnapshotError` when there will be no more."""
        self._require_running()
        with self._lock:
            ready, self._ready = self._ready, None
            return ready

    def announced(self) -> int | None:
        """The newest version that the learner has signed, as far as is known here."""
        return self._announced

    def progress(self) -> Progress | None:
        """How far the newest snapshot has come; None when there is none."""
        version = self._announced
        if version is None:
            return None
        stored, fetching = self._store.get(version), self._fetching
        part = stored.part(stored.taking) if stored else None
        fraction = 1.0 if stored and stored.complete else part.num_held / len(part.chunks.chunk_ids) if part else 0.0
        return Progress(version, fraction, fetching.source if fetching else None, self._kitchen.fed())

    def complaints(self) -> list[tuple[str, str]]:
        """(peer id, reason) of what peers did that speaks against them, since the last call."""
        return [self._complaints.popleft() for _ in range(len(self._complaints))]

    def counters(self) -> dict[str, int]:
        """Cumulative counts: chunks given and received, changes of source, what was refused and why."""
        return self._counters.snapshot()

    def _require_running(self) -> None:
        if self._failure is not None:
            raise SnapshotError(self._failure)

    # -- on the network thread

    def _answer_ask(self, remote: str, request: bytes) -> bytes:
        self._require_open()
        question = msgspec.msgpack.decode(request, type=Ask)
        place = self._place_for(remote, question.limits, question.failed) if question.limits is not None else None
        with self._lock:
            newest = self._announced
            sealed = self._known[newest][0] if newest is not None and newest > question.version else b""
        stored = self._store.get(question.version)
        return msgspec.msgpack.encode(
            News(
                sealed,
                stored.whole.num_held if stored else 0,
                stored.change.num_held if stored and stored.change else 0,
                self._kitchen.num_free,
                place,
            )
        )

    def _place_for(self, worker: str, limits: Limits, failed: tuple[str, ...]) -> Place | None:
        if not self.publishes:
            return None
        with self._lock:
            known = self._workers.get(worker)
            if known is None and not self._make_room():
                return None
            self._workers[worker] = _Worker(limits, self._clock(), known is not None and known.tried, failed)
            if worker not in self._plan.places or self._blame(worker):
                self._make_plan()
            return self._plan.places[worker]

    def _make_room(self) -> bool:
        """Whether one more worker may have a place; who was not tried yet makes room for it."""
        if len(self._workers) < MAX_WORKERS:
            return True
        untried = [worker for worker, each in self._workers.items() if not each.tried]
        if untried:
            del self._workers[min(untried, key=lambda worker: self._workers[worker].asked_at)]
        return bool(untried)

    def _blame(self, worker: str) -> bool:
        """Whether somebody is to feed nobody from now on because he fed this worker nothing.

        Only the word of whom he was to feed counts; and who complains of his own source is excused.
        """
        now = self._clock()
        source = self._plan.places[worker].sources[0]
        found = self._workers.get(source)
        if source not in self._workers[worker].failed or found is None or found.failed or self._is_idle(source):
            return False
        self._idle.failed(source, now)
        self._counters.add("idle_sources")
        logger.debug("%s was to feed %s, and did not", source, worker)
        return True

    def _is_idle(self, worker: str) -> bool:
        return self._idle.wait_s(worker, self._clock()) > 0

    def _make_plan(self) -> None:
        """Place all who have asked lately; the others no more."""
        since = self._clock() - FORGET_AFTER_POLLS * self._settings.poll_s
        self._workers = {worker: each for worker, each in self._workers.items() if each.asked_at >= since}
        idle = frozenset(filter(self._is_idle, self._workers))
        self._plan = Plan(
            self._learner,
            self._limits,
            {worker: each.limits for worker, each in self._workers.items()},
            self._settings.fan_out,
            tried=frozenset(worker for worker, each in self._workers.items() if each.tried) - idle,
            idle=idle,
        )
        root = self._plan.places[self._learner]
        self._kitchen.num_places = root.num_children
        self._feed_first(root.feeds)

    def _feed_first(self, named: tuple[str, ...]) -> None:
        """Whom the plan names comes before others; at the learner, others of the plan before strangers."""
        placed = self._plan.places.keys() if self.publishes else frozenset[str]()
        self._kitchen.rank = lambda peer: 2 if peer in named else 1 if peer in placed else 0

    def _give(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        self._require_open()
        return self._kitchen.give(remote, request)

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise LookupError("this node hands on no more")

    def _answer_announcement(self, remote: str, request: bytes) -> bytes:
        self._require_open()
        announcement = msgspec.msgpack.decode(request, type=Announcement)
        self._learn(remote, announcement.sealed, announcement.place)
        return b""

    # -- on any thread

    def _open(self, sealed: bytes) -> SnapshotManifest:
        manifest = open_snapshot(sealed, self._run_id, self._learner)
        num_bytes = max(part.num_bytes for part in (manifest.whole, manifest.change) if part is not None)
        if num_bytes > self._max_bytes:
            raise RejectedGroup("oversized", f"this model has at most {self._max_bytes:.0f} bytes, got {num_bytes}")
        return manifest

    def _learn(self, remote: str, sealed: bytes, place: Place | None) -> None:
        """Take in what a peer says is new. Raises `RejectedGroup` for what the learner has not signed."""
        if place is not None and place.sources and remote == self._learner:
            self._place = place
            self._kitchen.num_places = place.num_children
            self._feed_first(place.feeds)
        if not sealed:
            return
        try:
            manifest = self._open(sealed)
        except RejectedGroup:
            self._counters.add("refused_manifests")
            raise
        with self._lock:
            if self._announced is not None and manifest.version <= self._announced:
                return
            self._known[manifest.version] = sealed, manifest
            self._announced = manifest.version
        self._wake.set()

    # -- on the thread of this relay

    def _live(self) -> None:
        try:
            self._take_up()
            while not self._closing.is_set():
                self._wake.clear()
                self._wake.wait(self._work_or_rest())
        except Exception as error:
            # The last line of defence of this thread: the node must hear of it and stop.
            logger.exception("the relay of snapshots failed")
            self._failure = f"the relay of snapshots failed: {error!r}"

    def _take_up(self) -> None:
        """See what an earlier process left."""
        for version in self._store.versions():
            if (stored := self._store.get(version)) is not None:
                stored.verify()
        newest = self._store.newest_complete()
        if newest is not None and not self.publishes:
            self._hand_out(newest, newest.whole.content())

    def _work_or_rest(self) -> float:
        """Do what is due; seconds to rest."""
        try:
            rest_s = self._work()
            self._num_failures = 0
            return rest_s
        except OSError as error:
            self._counters.add("disk_errors")
            logger.error("snapshots cannot be written: %s; only the newest is kept, and it is tried again", error)
            self._store.collect(keep=1)
            return self._settings.poll_s
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
            self._counters.add("relay_errors")
            logger.exception("the relay of snapshots goes on after an error")
            return RETRY_S

    def _work(self) -> float:
        """Whatever is due; seconds until something may be due again."""
        if self.publishes:
            if not self._to_publish:
                return self._settings.poll_s
            self._publish(*self._to_publish[0])
            with self._lock:
                self._to_publish.popleft()
            return 0.0
        target = self._target()
        if target is None:
            self._polled_at = self._clock()
            return self._settings.poll_s if self._poll() else RETRY_S
        self._fetch(*self._known[target])
        return 0.0

    # -- of the learner

    def _publish(self, version: int, snapshot: bytes) -> None:
        parent = self._store.newest_complete() if self._settings.delta else None
        before = (parent.manifest.version, parent.whole.content()) if parent else None
        manifest, change = describe(self._run_id, self._learner, version, snapshot, before, self._settings.chunk_bytes)
        sealed = seal_snapshot(self._identity, manifest)
        stored = self._store.begin(sealed, manifest)
        if stored.change is not None and change is not None:
            stored.change.fill(change)
        with self._lock:
            self._known = {version: (sealed, manifest)}
            self._announced = version
            self._make_plan()
            places = self._plan.places
            for worker in self._workers.values():
                worker.tried = True
        told = [
            self._askers.submit(self._announce, worker, sealed, place)
            for worker, place in places.items()
            if worker != self._learner
        ]
        # Nobody waits for the disk: chunks go out as they are written.
        stored.whole.fill(snapshot)
        self._counters.add("published")
        self._store.collect()
        for each in told:
            each.result()

    def _announce(self, worker: str, sealed: bytes, place: Place) -> None:
        message = msgspec.msgpack.encode(Announcement(sealed, place))
        try:
            self._transport.request(worker, ANNOUNCE_PROTOCOL, message, ANNOUNCE_TIMEOUT_S)
        except TransportError as error:
            self._counters.add("unheard_announcements")
            logger.debug("%s was not told of a snapshot: %s", worker, error)
            with self._lock:
                self._workers.pop(worker, None)

    # -- of a worker

    def _poll(self) -> bool:
        """Ask for news: the learner, or else somebody; whether there was an answer."""
        others = [peer for peer in self._transport.status().connected if peer != self._learner]
        question = Ask(-1 if self._announced is None else self._announced, self._limits, self._failed)
        for peer in (self._learner, *random.sample(others, min(1, len(others)))):
            try:
                news = ask(self._transport, peer, question, ASK_TIMEOUT_S)
                self._learn(peer, news.sealed, news.place)
                return True
            except (TransportError, RejectedGroup) as error:
                logger.debug("no news from %s: %s", peer, error)
        return False

    def _target(self, current: int | None = None) -> int | None:
        """The version to fetch, with `current` on its way."""
        complete = self._store.newest_complete()
        with self._lock:
            known = {
                version: manifest for version, (_, manifest) in self._known.items() if version not in self._refused
            }
        have = complete.manifest.version if complete else -1
        return next_version(known, have, current, self._settings.finish_behind)

    def _fetch(self, sealed: bytes, manifest: SnapshotManifest) -> None:
        """Get a snapshot, as a change of its parent if that is here."""
        stored = self._store.begin(sealed, manifest)
        parent = self._store.get(manifest.parent) if manifest.parent is not None else None
        begun = stored.whole.num_held > 0 and stored.change is not None and not stored.change.complete
        if parent is not None and parent.complete and not begun:
            if not self._take(stored, "change"):
                return
            try:
                self._apply(stored, parent)
            except SnapshotError as error:
                self._counters.add("useless_changes")
                logger.warning("the change to version %d does not fit what is here: %s", manifest.version, error)
        if not stored.whole.complete and not self._take(stored, "whole"):
            return
        if not stored.complete:
            self._refused.add(manifest.version)
            self._counters.add("refused_snapshots")
            logger.error("the chunks of version %d are not what the learner signed for", manifest.version)
            return
        self._counters.add("completed")
        self._hand_out(stored, stored.whole.content())
        self._store.collect()
        with self._lock:
            self._known = {each: self._known[each] for each in self._known if each >= manifest.version}

    def _take(self, stored: Stored, name: PartName) -> bool:
        stored.taking = name
        version = stored.manifest.version

        def stopped() -> bool:
            # Also while it takes long the learner must hear that this worker is there.
            if self._clock() - self._polled_at > self._settings.poll_s:
                self._polled_at = self._clock()
                self._askers.submit(self._poll)
            current = None if fetching.stuck else version
            return self._closing.is_set() or self._target(current) != version

        self._fetching = fetching = Fetching(
            self._transport,
            stored,
            name,
            self._place,
            stall_s=self._settings.stall_s,
            bucket=self._downloads,
            askers=self._askers,
            counters=self._counters,
            complain=lambda peer: self._complaints.append((peer, "corrupt_chunk")),
            stopped=stopped,
            pause=self._closing.wait,
        )
        try:
            return fetching.run()
        finally:
            self._failed = tuple(fetching.failed)
            self._fetching = None

    def _apply(self, stored: Stored, parent: Stored) -> None:
        """Make the whole of the change. Raises `SnapshotError`."""
        assert stored.change is not None
        snapshot = apply_delta(stored.change.content(), parent.whole.content())
        if digest(snapshot) != stored.manifest.digest:
            raise SnapshotError("it makes something else of it than the learner has signed")
        stored.whole.fill(snapshot)

    def _hand_out(self, stored: Stored, snapshot: bytes) -> None:
        version = stored.manifest.version
        with self._lock:
            if version > self._handed_out:
                self._ready, self._handed_out = (version, snapshot), version
