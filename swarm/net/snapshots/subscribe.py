"""A worker's part: snapshots are fetched from the learner or from other workers, verified, stored and handed on.

    announced ─▶ fetch chunks, verify, store ─▶ newest()
                              └─▶ the peers that are fed from here, each chunk before the next is here

A worker asks the learner now and then for news, and so is known to its plan; when the learner is away it asks any
other peer. A manifest counts for the learner's signature only, whichever peer hands it on.
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
from swarm.net.bandwidth import TokenBucket
from swarm.net.config import NetworkSettings
from swarm.net.snapshots.delta import apply_delta, digest
from swarm.net.snapshots.fetching import Fetching
from swarm.net.snapshots.manifests import Signed, next_version
from swarm.net.snapshots.messages import Announcement, Ask, ask
from swarm.net.snapshots.plan import Limits, Place
from swarm.net.snapshots.serving import Progress, Serving
from swarm.net.snapshots.sources import Downloads
from swarm.net.snapshots.store import PartName, Stored
from swarm.net.snapshots.thread import RETRY_S, SnapshotThread
from swarm.protocols import Transport
from swarm.reasons import Reason

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
NUM_ASKERS = 8
"""Requests at a time."""
MAX_COMPLAINTS = 256
CATCH_UP_S = 1.0
"""Sources are paced already: a node that was held up for a moment may take faster what has come meanwhile."""


class Subscriber:
    """`SnapshotFeed` of the peers that follow a learner."""

    def __init__(
        self,
        transport: Transport,
        learner: str,
        folder: Path,
        settings: NetworkSettings,
        *,
        max_bytes: float = math.inf,
    ) -> None:
        """Snapshots of the peer `learner`, kept in `folder`; those larger than `max_bytes` are not fetched.

        Raises `SnapshotError` when the run is not known.
        """
        self._transport = transport
        self._learner = learner
        self._settings = settings.snapshots
        self._limits = Limits(settings.upload_bytes_per_s, settings.download_bytes_per_s)
        self._serving = Serving(transport, learner, folder, settings, max_bytes=max_bytes)
        self._thread = SnapshotThread(self._serving, self._take_up, self._work)
        self._downloads = Downloads(
            transport=transport,
            stall_s=settings.snapshots.stall_s,
            bucket=TokenBucket(settings.download_bytes_per_s, burst_s=CATCH_UP_S),
            askers=ThreadPoolExecutor(NUM_ASKERS, "swarm-snapshots-ask"),
            counters=self._serving.counters,
            complaints=deque(maxlen=MAX_COMPLAINTS),
            closing=self._thread.closing,
        )
        self._place = Place((learner,), settings.snapshots.fan_out, None)
        self._polled_at = time.monotonic()
        self._fetching: Fetching | None = None
        self._failed: tuple[str, ...] = ()
        """Sources of the last part that fed this node nothing."""
        self._refused: set[int] = set()
        """Versions whose chunks do not make up what was signed."""
        self._lock = threading.Lock()
        """Of what is handed out."""
        self._ready: tuple[int, bytes] | None = None
        self._handed_out = -1

    def start(self) -> None:
        """Begin to fetch, and to answer others. Raises `SnapshotError` when snapshots cannot be kept."""
        self._serving.start(lambda peer, question: None, self._hear)
        self._thread.start()

    def close(self) -> None:
        """Fetch and answer no more; what is here stays for the next process."""
        self._serving.close()
        self._thread.close()
        self._downloads.askers.shutdown(wait=False, cancel_futures=True)

    def newest(self) -> tuple[int, bytes] | None:
        """The newest complete snapshot, once. Raises `SnapshotError` when there will be no more."""
        self._thread.require_running()
        with self._lock:
            ready, self._ready = self._ready, None
            return ready

    def announced(self) -> int | None:
        """The newest version that the learner has signed, as far as is known here."""
        return self._serving.manifests.newest

    def progress(self) -> Progress | None:
        """How far the newest snapshot has come; None when there is none."""
        fetching = self._fetching
        return self._serving.progress(fetching.source if fetching else None)

    def complaints(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of what peers did that speaks against them, since the last call."""
        complaints = self._downloads.complaints
        return [complaints.popleft() for _ in range(len(complaints))]

    def counters(self) -> dict[str, int]:
        """Cumulative counts: chunks given and received, changes of source, what was refused and why."""
        return self._serving.counters.snapshot()

    # -- on the network thread

    def _hear(self, remote: str, announcement: Announcement) -> None:
        self._learn(remote, announcement.sealed, announcement.place)

    # -- on any thread

    def _learn(self, remote: str, sealed: bytes, place: Place | None) -> None:
        """Take in what a peer says is new. Raises `Refusal` for what the learner has not signed."""
        if place is not None and place.sources and remote == self._learner:
            self._place = place
            self._serving.uploads.follow(place)
        if sealed and self._serving.learn(sealed):
            self._thread.wake()

    def _poll(self) -> bool:
        """Ask for news: the learner, or else another peer; whether there was an answer."""
        announced = self.announced()
        others = [peer for peer in self._transport.status().connected if peer != self._learner]
        question = Ask(-1 if announced is None else announced, self._limits, self._failed)
        for peer in (self._learner, *random.sample(others, min(1, len(others)))):
            try:
                news = ask(self._transport, peer, question, ASK_TIMEOUT_S)
                self._learn(peer, news.sealed, news.place)
                return True
            except (TransportError, Refusal) as error:
                logger.debug("no news from %s: %s", peer, error)
        return False

    # -- on the thread of snapshots

    def _take_up(self) -> None:
        """Verify what an earlier process left, and hand out the newest of it."""
        self._serving.verify()
        newest = self._serving.store.newest_complete()
        if newest is not None:
            self._hand_out(newest)

    def _work(self) -> float:
        target = self._target()
        if target is None:
            self._polled_at = time.monotonic()
            return self._settings.poll_s if self._poll() else RETRY_S
        self._fetch(target)
        return 0.0

    def _target(self, current: int | None = None) -> Signed | None:
        """What to fetch, with the version `current` on its way."""
        complete = self._serving.store.newest_complete()
        known = self._serving.manifests.known()
        manifests = {version: each.manifest for version, each in known.items() if version not in self._refused}
        have = complete.manifest.version if complete else -1
        version = next_version(manifests, have, current, self._settings.finish_behind)
        return known[version] if version is not None else None

    def _fetch(self, signed: Signed) -> None:
        """Get a snapshot, as a change of its parent if that is here."""
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
            logger.error("the chunks of version %d are not what the learner signed for", manifest.version)
            return
        self._serving.counters.add("completed")
        self._hand_out(stored)
        self._serving.store.collect()
        self._serving.manifests.forget_before(manifest.version)

    def _parent(self, stored: Stored) -> Stored | None:
        """What the change is to be applied to; None when it is not here, or the whole is on its way already."""
        version = stored.manifest.parent
        parent = self._serving.store.get(version) if version is not None else None
        begun = stored.whole.num_held > 0 and stored.change is not None and not stored.change.complete
        return parent if parent is not None and parent.complete and not begun else None

    def _take_change(self, stored: Stored, parent: Stored) -> bool:
        """Fetch the change and make the whole of it; False when something else is to be fetched first.

        A change that does not make what was signed is counted, and the whole is to be fetched.
        """
        if not self._take(stored, "change"):
            return False
        try:
            _apply(stored, parent)
        except SnapshotError as error:
            self._serving.counters.add("useless_changes")
            logger.warning("the change to version %d does not fit what is here: %s", stored.manifest.version, error)
        return True

    def _take(self, stored: Stored, name: PartName) -> bool:
        stored.taking = name
        self._fetching = fetching = Fetching(self._downloads, stored, name, self._place, self._is_wanted)
        try:
            return fetching.run()
        finally:
            self._failed = fetching.failed
            self._fetching = None

    def _is_wanted(self, fetching: Fetching) -> bool:
        """Whether a version that is on its way is still the one to fetch; asks for news when that is due."""
        # Also while it takes long the learner must hear that this worker is there.
        if time.monotonic() - self._polled_at > self._settings.poll_s:
            self._polled_at = time.monotonic()
            self._downloads.askers.submit(self._poll)
        target = self._target(None if fetching.stuck else fetching.version)
        return target is not None and target.manifest.version == fetching.version

    def _hand_out(self, stored: Stored) -> None:
        version, snapshot = stored.manifest.version, stored.whole.content()
        with self._lock:
            if version > self._handed_out:
                self._ready, self._handed_out = (version, snapshot), version


def _apply(stored: Stored, parent: Stored) -> None:
    """Make the whole of a change. Raises `SnapshotError`."""
    assert stored.change is not None
    snapshot = apply_delta(stored.change.content(), parent.whole.content())
    if digest(snapshot) != stored.manifest.digest:
        raise SnapshotError("it makes something else of it than the learner has signed")
    stored.whole.fill(snapshot)
