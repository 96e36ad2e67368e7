"""The common part of publisher and subscriber: the stored snapshots, and the answers to peers' requests.

Requests are answered on the network thread; chunks also on the threads of direct links, which have no rate limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from swarm.errors import Refusal, SnapshotError
from swarm.net.config import NetworkSettings
from swarm.net.counters import Counters
from swarm.net.direct.server import DirectServer
from swarm.net.snapshot_progress import Progress
from swarm.net.snapshots.manifests import Manifests, Signed
from swarm.net.snapshots.messages import (
    ANNOUNCE_PROTOCOL,
    ASK_PROTOCOL,
    CHUNKS_PROTOCOL,
    DIRECT_PROTOCOL,
    ChunksRequest,
    SnapshotAnnouncement,
    StatusReply,
    StatusRequest,
)
from swarm.net.snapshots.plan import Place
from swarm.net.snapshots.store import SnapshotStore
from swarm.net.snapshots.uploads import Uploads
from swarm.protocols import Transport


class Serving:
    """One learner's snapshots, on disk and served to peers."""

    def __init__(
        self,
        transport: Transport,
        learner: str,
        folder: Path,
        settings: NetworkSettings,
        *,
        max_bytes: float = math.inf,
    ) -> None:
        """Snapshots of the peer `learner`, stored in `folder`; see `Manifests` for `max_bytes`.

        Raises `SnapshotError` if the run is not known.
        """
        run = transport.manifest()
        if run is None:
            raise SnapshotError("the run must be known before its snapshots can be served or fetched")
        self.run_id = run.run_id
        self.settings = settings.snapshots
        self.counters = Counters()
        self.store = SnapshotStore(folder, settings.snapshots.keep)
        self.manifests = Manifests(run.run_id, learner, max_bytes)
        self.uploads = Uploads(self.store, self.counters, settings.snapshots.fan_out)
        self._transport = transport
        self._direct: DirectServer | None = None
        if settings.upload_bytes_per_s is None and settings.snapshots.direct:
            self._direct = DirectServer(
                self._send_chunks_directly, settings.listen, settings.snapshots.direct_port or 0, self.counters
            )
        self._closed = False

    def start(
        self,
        place_for: Callable[[str, StatusRequest], Place | None],
        on_announcement: Callable[[str, SnapshotAnnouncement], None],
    ) -> None:
        """Load what an earlier process stored, and start to answer.

        `place_for(peer, question)` returns the asker's place in the plan, if it has one; `on_announcement` is called
        for the learner's announcements. Raises `SnapshotError` if the folder cannot be used.
        """
        self.store.load(self.manifests.open)
        for version in self.store.versions():
            stored = self.store.get(version)
            assert stored is not None
            self.manifests.add(Signed(stored.sealed, stored.manifest))

        def answer_ask(remote: str, request: bytes) -> bytes:
            self._require_open()
            question = msgspec.msgpack.decode(request, type=StatusRequest)
            place = place_for(remote, question)
            return msgspec.msgpack.encode(self._status(question.version, place))

        def answer_announcement(remote: str, request: bytes) -> bytes:
            self._require_open()
            on_announcement(remote, msgspec.msgpack.decode(request, type=SnapshotAnnouncement))
            return b""

        self._transport.serve(ASK_PROTOCOL, answer_ask)
        self._transport.serve(ANNOUNCE_PROTOCOL, answer_announcement)
        self._transport.serve_stream(CHUNKS_PROTOCOL, self._send_chunks)
        self._transport.serve(DIRECT_PROTOCOL, self._answer_direct)

    def close(self) -> None:
        """Stop answering; stored snapshots stay for the next process."""
        self._closed = True
        if self._direct is not None:
            self._direct.close()

    def add_manifest(self, sealed: bytes) -> bool:
        """Accept a manifest; whether it is newer than all before. Raises `Refusal` if it is not validly signed."""
        try:
            manifest = self.manifests.open(sealed)
        except Refusal:
            self.counters.add("refused_manifests")
            raise
        return self.manifests.add(Signed(sealed, manifest))

    def verify(self) -> None:
        """Verify what an earlier process stored. Raises `OSError`."""
        for version in self.store.versions():
            if (stored := self.store.get(version)) is not None:
                stored.verify()

    def progress(self, source: str | None = None) -> Progress | None:
        """Progress of the newest snapshot, which `source` sends; None without one."""
        version = self.manifests.newest
        if version is None:
            return None
        stored = self.store.get(version)
        return Progress(version, stored.fraction if stored else 0.0, source, self.uploads.fed())

    def _status(self, version: int, place: Place | None) -> StatusReply:
        stored = self.store.get(version)
        return StatusReply(
            self.manifests.sealed_after(version),
            stored.whole.num_held if stored else 0,
            stored.change.num_held if stored and stored.change else 0,
            self.uploads.num_free,
            place,
        )

    def _send_chunks(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        self._require_open()
        return self.uploads.send_chunks(remote, request)

    def _send_chunks_directly(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        """As over the network, which closes the connections of peers that are banned, but not these."""
        for chunk in self._send_chunks(remote, request):
            if self._transport.is_banned(remote):
                raise LookupError("this node has banned you")
            yield chunk

    def _answer_direct(self, remote: str, request: bytes) -> bytes:
        self._require_open()
        want = msgspec.msgpack.decode(request, type=ChunksRequest)  # refused here, where it is charged to the peer
        if self._direct is None:
            raise LookupError("this node has no direct links")
        # Encoded again, because it waits in memory: what else was in the request may be long.
        return msgspec.msgpack.encode(self._direct.ticket(remote, msgspec.msgpack.encode(want)))

    def _require_open(self) -> None:
        if self._closed:
            raise LookupError("this node has stopped serving snapshots")
