"""Open runs: what a node knows of its own, and what a bootstrap lists of others that asked for it.

    lister ── name of a run, a port ──▶ bootstrap ── dials the lister's own address ──▶ the run's manifest
                                                      signed by its founder, or it is not listed
    visitor ──────────────────────────▶ bootstrap ──▶ manifests as founders sealed them, and addresses

A bootstrap's word is not needed: a visitor checks every manifest, and joins by the run id, which names the founder's
key. What members and models there are is a claim of the lister.

The host that is dialled is the remote end of the asker's own connection, as in `diagnosis.py`. A handler does not
block: the first request starts the check, later ones fetch the result.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.addresses.dial import address_problem, host_of
from swarm.net.records.identity import is_peer_id
from swarm.net.records.wire import MAX_EXPANSION, MAX_MANIFEST_BYTES, SealedManifest, open_manifest
from swarm.net.services.diagnosis import POLL_EVERY_S, asker_ip
from swarm.protocols import RequestTransport, Transport
from swarm.types import Count, RunManifest, complete
from swarm.types.bounds import Name

logger = logging.getLogger(__name__)

RUNS_PROTOCOL = "/swarm/runs/1"
LIST_PROTOCOL = "/swarm/runs/list/1"
FIRST_PORT = 1_024
MAX_RUNS = 256
MAX_BYTES = 2**20
"""Most bytes of all manifests that are listed."""
MAX_LISTED_BYTES = 2**15
"""Most bytes of one of them."""
MAX_CONTENT_BYTES = 2**16
"""Most bytes of one, decompressed; a small one may expand a thousandfold."""
MAX_PER_FOUNDER = MAX_PER_HOST = 4
MAX_MODELS = 4
MAX_ADDRESS_CHARS = 256
LIFE_S = 900.0
"""A run that does not ask again leaves the list."""
CHECK_S = 15.0
"""A check that fails says so after this time, so that it does not tell which ports are closed."""
MAX_CHECKS = 4
"""At a time, each of another host."""
MAX_REMEMBERED = 64
KEEP_S = 20.0
"""A result is kept this long; the same lister must wait as long for its next check."""
MAX_REPLY_BYTES = MAX_BYTES + MAX_MANIFEST_BYTES + (MAX_RUNS + 1) * 2_048
Models = Annotated[tuple[Name, ...], Meta(max_length=MAX_MODELS)]


class OpenRun(Struct, frozen=True):
    """A run in a list."""

    manifest: Annotated[bytes, Meta(max_length=MAX_MANIFEST_BYTES)]
    """The manifest that its founder sealed."""
    address: Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS)] = ""
    """Multiaddr at which the list's keeper has reached a member; empty: the keeper is one."""
    members: Count = 0
    """Known to that member, as it says."""
    models: Models = ()
    """The most frequent among them, as it says."""


class ListRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A member asks to have its run listed."""

    run_id: Name
    peer_id: Name
    """The member to dial, at the asker's own address and this port."""
    port: Annotated[int, Meta(ge=FIRST_PORT, le=65_535)]
    members: Count = 0
    models: Models = ()


class ListReply(Struct, frozen=True):
    """State of the check."""

    state: Literal["pending", "listed", "refused"]
    detail: Annotated[str, Meta(max_length=500)] = ""


class FoundRun(Struct, frozen=True):
    """A run in a list, its founder's signature checked."""

    manifest: RunManifest
    """Without its tasks' settings."""
    address: str
    members: int
    models: tuple[str, ...]

    @property
    def name(self) -> str:
        """Without the digest of its founder."""
        return self.manifest.run_id.rpartition("-")[0]


class _Entry(Struct, frozen=True):
    run: OpenRun
    founder: str
    created_at: float
    peer_id: str
    host: str
    until: float


class RunIndex:
    """Runs that were reached, bounded in number and bytes, and for each founder and host. For any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Empty."""
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def runs(self) -> list[OpenRun]:
        """Those that have asked of late, the longest known first."""
        with self._lock:
            self._forget()
            return [entry.run for entry in self._entries.values()]

    def add(self, run: OpenRun, manifest: RunManifest, peer_id: str, host: str) -> str:
        """List a run that was reached at a member `peer_id` of this host or network; or renew it. Why not, or empty."""
        with self._lock:
            self._forget()
            others = {run_id: each for run_id, each in self._entries.items() if run_id != manifest.run_id}
            known = self._entries.get(manifest.run_id)
            if known is not None and peer_id not in (known.peer_id, manifest.founder):
                return "another member of this run has it listed"
            if known is not None and known.created_at > manifest.created_at:
                return "a newer manifest of this run is listed"
            if len(run.manifest) > MAX_LISTED_BYTES:
                return f"its manifest must have at most {MAX_LISTED_BYTES} bytes, got {len(run.manifest)}"
            if sum(each.founder == manifest.founder for each in others.values()) >= MAX_PER_FOUNDER:
                return f"{MAX_PER_FOUNDER} runs of this founder are listed"
            if sum(each.host == host for each in others.values()) >= MAX_PER_HOST:
                return f"{MAX_PER_HOST} runs of your address are listed"
            num_bytes = sum(len(each.run.manifest) for each in others.values()) + len(run.manifest)
            if len(others) >= MAX_RUNS or num_bytes > MAX_BYTES:
                return "the list is full"
            self._entries[manifest.run_id] = _Entry(
                run, manifest.founder, manifest.created_at, peer_id, host, self._clock() + LIFE_S
            )
            return ""

    def _forget(self) -> None:
        now = self._clock()
        self._entries = {run_id: each for run_id, each in self._entries.items() if each.until > now}


class _Check:
    def __init__(self, request: ListRequest, began: float) -> None:
        self.request = request
        self.began = began
        self.reply: ListReply | None = None


class Listings:
    """Checks the runs that ask to be listed. `handle` runs on the network thread and never blocks."""

    def __init__(
        self,
        index: RunIndex,
        observed: Callable[[str], tuple[str, ...]],
        fetch: Callable[[str, str], SealedManifest],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`observed` returns a peer's remote multiaddrs. `fetch` gets the manifest of a run id from a multiaddr; it
        blocks, runs on a separate thread, and raises `PeerUnreachable` or `TransportError`."""
        self._index = index
        self._observed = observed
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._checks: dict[tuple[str, str], _Check] = {}
        """Checks by host, or by the /64 network of IPv6, and by member."""

    def handle(self, remote: str, request: bytes) -> bytes:
        """Answer one request."""
        return msgspec.msgpack.encode(self._answer(remote, request))

    def _answer(self, remote: str, request: bytes) -> ListReply:
        try:
            asked = msgspec.msgpack.decode(request, type=ListRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ListReply("refused", "not a request")
        if not is_peer_id(asked.peer_id):
            return ListReply("refused", "peer_id is no peer id")
        addresses = self._observed(remote)
        if (ip := asker_ip(addresses)) is None:
            # A new connection appears in the table within about a second.
            return ListReply("refused", "you are connected through a relay") if addresses else PENDING
        place = f"/{'ip6' if ':' in ip else 'ip4'}/{ip}"
        host = host_of(place)
        with self._lock:
            now = self._clock()
            self._checks = {
                key: each for key, each in self._checks.items() if each.reply is None or now - each.began < KEEP_S
            }
            check = self._checks.get((host, asked.peer_id))
            if check is not None and check.request == asked:
                if check.reply is None or (check.reply.state == "refused" and now - check.began < CHECK_S):
                    return PENDING
                return check.reply
            running = [place for (place, _), each in self._checks.items() if each.reply is None]
            of_host = Counter(place for place, _ in self._checks)[host]
            if check is not None or host in running or of_host >= MAX_PER_HOST or len(running) >= MAX_CHECKS:
                return ListReply("refused", f"busy; ask again in {KEEP_S:g} s")
            if len(self._checks) >= MAX_REMEMBERED:
                return ListReply("refused", f"busy with others; ask again in {KEEP_S:g} s")
            check = self._checks[host, asked.peer_id] = _Check(asked, now)
        threading.Thread(target=self._run, args=(place, check), name="swarm-list", daemon=True).start()
        return PENDING

    def _run(self, place: str, check: _Check) -> None:
        asked = check.request
        address = f"{place}/tcp/{asked.port}/p2p/{asked.peer_id}"
        problem = "the check failed"
        try:
            found = self._fetch(address, asked.run_id)
            run = OpenRun(found.sealed, address, asked.members, asked.models)
            manifest = _opened(found.sealed, MAX_CONTENT_BYTES)
            problem = self._index.add(run, manifest, asked.peer_id, host_of(place))
        except Refusal as refusal:
            problem = f"its manifest is too large for the list: {refusal.detail}"
        except (PeerUnreachable, TransportError) as error:
            problem = "no member of the run answered at your address and port with its signed manifest"
            logger.debug("%s is not listed: %s", asked.run_id, error)
        finally:
            check.reply = ListReply("refused", problem) if problem else ListReply("listed")


PENDING = ListReply("pending")


def serve_runs(transport: Transport, index: RunIndex | None = None) -> None:
    """Tell visitors of the own run, and of those in an `index`."""

    def answer(remote: str, request: bytes) -> bytes:
        own = own_run(transport)
        return msgspec.msgpack.encode([*([own] if own is not None else []), *(index.runs() if index else ())])

    transport.serve(RUNS_PROTOCOL, answer)


def serve_listings(transport: Transport, index: RunIndex, fetch: Callable[[str, str], SealedManifest]) -> None:
    """List others' runs in `index` when they ask for it; `fetch` as in `Listings`."""
    transport.serve(LIST_PROTOCOL, Listings(index, transport.observed, fetch).handle)


def own_run(transport: Transport) -> OpenRun | None:
    """The run that a node is in, with its known members; None until it is known."""
    sealed = transport.sealed_manifest()
    if sealed is None:
        return None
    members, models = population(transport)
    return OpenRun(sealed, "", members, models)


def population(transport: Transport) -> tuple[int, tuple[str, ...]]:
    """How many other members a node knows, and their most frequent models."""
    now = time.time()
    alive = [each for each in transport.peers() if each.expires_at > now and each.role != "bootstrap"]
    models = Counter(each.model for each in alive if each.model)
    return len(alive), tuple(name for name, _ in models.most_common(MAX_MODELS))


def ask_runs(transport: RequestTransport, peer_id: str, timeout_s: float) -> list[FoundRun]:
    """The runs in a peer's list that have their founder's signature and an address, its own first.

    Blocks. Raises `PeerUnreachable`, also for a list that cannot be read or takes more than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    reply = b""
    try:
        with closing(transport.stream(peer_id, RUNS_PROTOCOL, b"", timeout_s, MAX_REPLY_BYTES)) as chunks:
            for chunk in chunks:
                reply += chunk
                if time.monotonic() > deadline:  # the transport limits each silence only
                    raise PeerUnreachable(f"{peer_id} did not send its list of runs within {timeout_s:g} s")
        runs = msgspec.msgpack.decode(reply, type=Annotated[list[OpenRun], Meta(max_length=MAX_RUNS + 1)])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerUnreachable(f"{peer_id} sent a list of runs that cannot be read: {error}") from None
    return list(_checked(runs))


def _opened(sealed: bytes, max_bytes: int) -> RunManifest:
    """The manifest without its tasks' settings, most of its memory. Raises `Refusal`."""
    manifest = open_manifest(sealed, max_bytes=max_bytes)
    return replace(manifest, tasks=tuple(replace(task, settings={}) for task in manifest.tasks))


def _checked(runs: Iterable[OpenRun]) -> Iterable[FoundRun]:
    known: set[str] = set()
    for number, run in enumerate(runs):
        try:
            # The first may be the keeper's own, which has no part in the list's limits.
            manifest = _opened(run.manifest, MAX_CONTENT_BYTES if number else MAX_EXPANSION * MAX_MANIFEST_BYTES)
        except Refusal as refusal:
            logger.debug("a listed run is left out: %s", refusal)
            continue
        place, _, peer_id = run.address.partition("/p2p/")
        has_address = not run.address or (address_problem(place, FIRST_PORT) is None and is_peer_id(peer_id))
        if has_address and manifest.run_id not in known:
            known.add(manifest.run_id)
            yield FoundRun(manifest, run.address, run.members, run.models)


def ask_listing(transport: RequestTransport, peer_id: str, request: ListRequest, timeout_s: float) -> str:
    """Have a bootstrap list a run, and wait for its check; why it does not, or empty. Raises `PeerUnreachable`."""
    encoded = msgspec.msgpack.encode(request)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            reply = msgspec.msgpack.decode(
                transport.request(peer_id, LIST_PROTOCOL, encoded, timeout_s), type=ListReply
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerUnreachable(f"{peer_id} sent an answer that cannot be read: {error}") from None
        if reply.state != "pending":
            return "" if reply.state == "listed" else reply.detail or "no reason is given"
        time.sleep(POLL_EVERY_S)
    raise PeerUnreachable(f"{peer_id} did not check the run within {timeout_s:g} s")


complete(globals())
