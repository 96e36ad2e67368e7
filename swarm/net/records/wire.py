"""Record types on the wire, and functions that open them and check every limit.

The checks run in order of cost and trust: size, schema, run, signature, bounded decompression, decoding, then limits on
the content. Untrusted bytes raise nothing but `Refusal`.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Iterator
from functools import lru_cache

import msgspec
from blake3 import blake3
from msgspec import Struct

from swarm.errors import Refusal
from swarm.net.records.envelope import (
    MAX_CHUNK_BYTES,
    Body,
    Kind,
    SealedRecord,
    SignedRecord,
    check_kind,
    check_signature,
    decode,
    decompress,
    read_record,
    seal_payload,
)
from swarm.net.records.identity import Identity, is_peer_id
from swarm.net.records.stores import RECORD_ID_BYTES
from swarm.reasons import Reason
from swarm.sanitize import NAME_CHARS, is_name
from swarm.types import (
    MAX_COMPLETIONS,
    MAX_NAME_CHARS,
    ChunkList,
    Completion,
    PeerRecord,
    Positive,
    RefusedRecord,
    RolloutGroup,
    RunManifest,
    SnapshotManifest,
    TaskSpec,
    VerifiedGroup,
    complete,
)
from swarm.types.thoughts import CLOSE


class Announcement(Struct, frozen=True):
    """A signed announcement of a record too large for gossip; any holder can be asked for the record by id."""

    run_id: str
    peer_id: str
    record_id: bytes
    """Digest of the sealed record; see `record_store.record_id`."""
    num_bytes: Positive
    chunk_ids: tuple[bytes, ...]
    """Digest of each 256 KiB chunk; the last chunk may be shorter."""


Record = RolloutGroup | RunManifest | PeerRecord | Announcement | SnapshotManifest

MAX_EXPANSION = 8
"""Limit of a decompressed payload, as a multiple of the largest record; text compresses 2 to 5 times."""
CHARS_PER_BYTE = 2
"""Limit of a group's characters per byte of the largest record; repetitive text compresses to almost nothing."""
BYTES_PER_ELEMENT = 4
"""Bytes of the largest record per token id, log-probability or version span of a group; these take about 4 bytes each
after compression."""
MAX_PAYLOAD_BYTES = 128 * 2**20
"""Absolute limit of a decompressed payload, for any record size."""
MAX_CLOCK_SKEW_S = 600.0
MAX_MANIFEST_BYTES = 262_144
MAX_MANIFEST_TASKS = 256
MAX_TASK_NAME_CHARS = 64
MAX_TASK_WEIGHT = 1e6
MAX_SETTINGS_DEPTH = 8
MAX_SETTING_CHARS = 16_384
MANIFEST_RANGES = {
    "group_size": (2, 256),
    "local": (0, 1_024),
    "external": (0, 1_024),
    "max_record_bytes": (1_000, 64 * 2**20),
    "max_completion_chars": (16, 2**20),
}
"""Permitted ranges of a run's settings."""
MAX_PEER_RECORD_BYTES = 1_536
MAX_PEER_CONTENT_BYTES = MAX_EXPANSION * MAX_PEER_RECORD_BYTES
MAX_PEER_RECORD_LIFE_S = 300.0
REMEMBERED_PEER_RECORDS = 4_096
MAX_ANNOUNCEMENT_BYTES = 16_384
MAX_SNAPSHOT_MANIFEST_BYTES = 640 * 2**10
"""Fits into one request, and holds the digests of twice as many chunks as:"""
MAX_SNAPSHOT_CHUNKS = 16_384
MIN_SNAPSHOT_CHUNK_BYTES, MAX_SNAPSHOT_CHUNK_BYTES = 2**15, 2**22
"""The minimum exceeds the size up to which answers are not paced."""
SNAPSHOT_DIGEST_BYTES = 32


class Limits(Struct, frozen=True):
    """Limits of a group from the network."""

    max_record_bytes: int = 1_000_000
    """Signed and compressed size."""
    max_completion_chars: int = 65_536
    """Also limits a completion's tokens."""
    max_completions: int = MAX_COMPLETIONS
    max_age_s: float = 3_600.0
    """Largest age by the sender's clock: old records that are replayed after a restart are refused."""

    @property
    def max_group_chars(self) -> int:
        """Limit of the characters of all completions together."""
        return CHARS_PER_BYTE * self.max_record_bytes

    @property
    def max_group_elements(self) -> int:
        """Limit of the token ids, log-probabilities and version spans of all completions together."""
        return self.max_record_bytes // BYTES_PER_ELEMENT

    @property
    def max_payload_bytes(self) -> int:
        """Limit of a group's bytes before compression."""
        return min(MAX_EXPANSION * self.max_record_bytes, MAX_PAYLOAD_BYTES)


def make_run_id(name: str, founder: str) -> str:
    """`NAME-DIGEST`: the chosen name and a digest of the founder's peer id. Raises `ValueError`."""
    if not re.fullmatch(r"[a-z0-9-]{1,40}", name):
        raise ValueError(f"a run's name must be 1 to 40 of a-z, 0-9 and '-', got {name!r}")
    return f"{name}-{hashlib.blake2b(founder.encode(), digest_size=10).hexdigest()}"


def seal(identity: Identity, run_id: str, kind: Kind, record: Record) -> bytes:
    """A signed record."""
    return seal_payload(identity, run_id, kind, msgspec.msgpack.encode(record))


def seal_manifest(identity: Identity, manifest: RunManifest) -> bytes:
    """A manifest signed by its founder."""
    return seal(identity, manifest.run_id, "manifest", manifest)


def seal_peer_record(identity: Identity, record: PeerRecord) -> bytes:
    """A peer's own directory entry, signed."""
    return seal(identity, record.run_id, "peer", record)


def seal_announcement(identity: Identity, announcement: Announcement) -> bytes:
    """A signed announcement of a record too large for gossip."""
    return seal(identity, announcement.run_id, "large", announcement)


def seal_snapshot(identity: Identity, manifest: SnapshotManifest) -> bytes:
    """A snapshot manifest signed by its learner."""
    return seal(identity, manifest.run_id, "snapshot", manifest)


def check_seal(sealed: SealedRecord, run_id: str) -> SignedRecord:
    """Check signature, run and kind of a record, but not its content.

    Raises `Refusal` with reason `bad_signature`, `wrong_run`, `malformed` or `unknown_kind`.
    """
    return check_place(check_signature(sealed), run_id)


def check_place(signed: SignedRecord, run_id: str) -> SignedRecord:
    """A record of this run that members exchange. Raises `Refusal`: `wrong_run`, `malformed` or `unknown_kind`."""
    if signed.body.run_id != run_id:
        raise Refusal(Reason.WRONG_RUN, f"this node is in run {run_id!r}, the record in {signed.body.run_id!r}")
    check_kind(signed.body, "group", "large", "offers")
    return signed


def open_group(signed: SignedRecord, limits: Limits) -> VerifiedGroup:
    """The group in a record, fully checked except for its age; others may have it.

    Raises `Refusal`, attributed to the signer, with reason `oversized`, `malformed`, `unknown_question`, `wrong_run`,
    `wrong_peer` or `limits`.
    """
    body = signed.body
    check_kind(body, "group")
    try:
        if len(signed.record) > limits.max_record_bytes:
            raise Refusal(Reason.OVERSIZED, f"at most {limits.max_record_bytes} bytes, got {len(signed.record)}")
        content = decompress(signed, limits.max_payload_bytes)
        group = decode(content, RolloutGroup)
        _check_group(group, body, limits)
    except Refusal as refusal:
        raise Refusal(refusal.reason, refusal.detail, body.peer_id) from refusal
    return VerifiedGroup(_content_id(content), group, signed.record)


def unsigned_group(group: RolloutGroup, limits: Limits) -> VerifiedGroup:
    """A group that came by no network, checked like one that did. Raises `Refusal`."""
    try:
        content = msgspec.msgpack.encode(group)
    except OverflowError as error:  # a number of more than 64 bits
        raise Refusal(Reason.MALFORMED, str(error)) from error
    _check_limits(decode(content, RolloutGroup), limits)
    return VerifiedGroup(_content_id(content), group, b"")


def _content_id(content: bytes) -> str:
    return blake3(content).hexdigest(length=16)


def _check_group(group: RolloutGroup, body: Body, limits: Limits) -> None:
    if group.run_id != body.run_id:
        raise Refusal(Reason.WRONG_RUN, f"the envelope names run {body.run_id!r}, the group {group.run_id!r}")
    if group.peer_id != body.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {body.peer_id}, but says it is from {group.peer_id!r}")
    _check_limits(group, limits)


def _check_limits(group: RolloutGroup, limits: Limits) -> None:
    for problem in group_problems(group, limits):
        raise Refusal(Reason.LIMITS, problem)


def check_age(group: RolloutGroup, limits: Limits, *, now: float | None = None) -> None:
    """Raises `Refusal`, attributed to the author: `clock` if the group is from the future, `stale` if it is too old."""
    age_s = _now(now) - group.created_at
    if age_s < -MAX_CLOCK_SKEW_S:
        raise Refusal(Reason.CLOCK, f"created {-age_s:.0f} s in the future, by the clock of this node", group.peer_id)
    if age_s > limits.max_age_s:
        raise Refusal(
            Reason.STALE, f"created {age_s:.0f} s ago, at most {limits.max_age_s:g} s are allowed", group.peer_id
        )


def refused(refusal: Refusal) -> RefusedRecord:
    """The summary of a refused record. It drops the refusal's traceback, which holds the decoded content."""
    return RefusedRecord(refusal.reason, refusal.detail, refusal.peer_id)


def open_manifest(
    record: bytes,
    run_id: str | None = None,
    *,
    now: float | None = None,
    max_bytes: int = MAX_EXPANSION * MAX_MANIFEST_BYTES,
) -> RunManifest:
    """The manifest in an envelope, signed by its founder, whose digest is part of the run id. Raises `Refusal`.

    If `run_id` is given, manifests of other runs are refused. A manifest from the future, by the clock `now`, is
    refused because it would outrank the founder's later ones. `max_bytes` is the limit of its content, which takes up
    to 32 times as much memory.
    """
    signed = _read_signed(record, "manifest", MAX_MANIFEST_BYTES)
    manifest = decode(decompress(signed, max_bytes), RunManifest)
    body = signed.body
    if manifest.founder != body.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {body.peer_id}, but names {manifest.founder!r} as founder")
    try:
        owned_run_id = make_run_id(manifest.run_id.rpartition("-")[0], manifest.founder)
    except ValueError as error:
        raise Refusal(Reason.WRONG_RUN, str(error)) from error
    if not manifest.run_id == body.run_id == owned_run_id:
        raise Refusal(Reason.WRONG_RUN, f"{manifest.run_id!r} does not belong to {manifest.founder}")
    if run_id is not None and manifest.run_id != run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected the run {run_id!r}, got {manifest.run_id!r}")
    for problem in _manifest_problems(manifest):
        raise Refusal(Reason.LIMITS, problem)
    if manifest.created_at > _now(now) + MAX_CLOCK_SKEW_S:
        raise Refusal(Reason.CLOCK, f"created_at must not be in the future, got {manifest.created_at}")
    return manifest


class SealedManifest(Struct, frozen=True):
    """A manifest whose signature has been checked, with the bytes that its founder sealed."""

    sealed: bytes
    manifest: RunManifest

    @classmethod
    def reopen(cls, sealed: bytes) -> SealedManifest:
        """Check stored bytes, whatever the time is: their date was checked on arrival. Raises `Refusal`."""
        return cls(sealed, open_manifest(sealed, now=math.inf))


def is_outdated(manifest: RunManifest, known: RunManifest, *, now: float | None = None) -> bool:
    """Whether a manifest is older than the known one; a known manifest from the future does not count."""
    return manifest.created_at < known.created_at <= _now(now) + MAX_CLOCK_SKEW_S


def open_peer_record(record: bytes, run_id: str, signer: str | None = None, *, now: float | None = None) -> PeerRecord:
    """The unexpired peer record in an envelope, signed by the peer that it describes. Raises `Refusal`.

    If `signer` is given, records of other peers are refused before anything is decompressed.
    """
    peer = _signed_peer_record(record, run_id, signer)
    if not 0 < peer.expires_at - _now(now) <= MAX_PEER_RECORD_LIFE_S:
        raise Refusal(
            Reason.CLOCK, f"a peer record must expire within {MAX_PEER_RECORD_LIFE_S:g} s, got {peer.expires_at}"
        )
    return peer


def _signed_peer_record(record: bytes, run_id: str, signer: str | None) -> PeerRecord:
    sealed = read_record(record, MAX_PEER_RECORD_BYTES)
    body = sealed.body
    _check_signer(body, "peer", signer)
    if body.run_id != run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected run {run_id!r}, got {body.run_id!r}")
    _verify_peer_record(record)
    peer = decode(decompress(SignedRecord(record, body), MAX_PEER_CONTENT_BYTES), PeerRecord)
    if peer.run_id != run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected run {run_id!r}, got {peer.run_id!r}")
    if peer.peer_id != body.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {body.peer_id}, but is about {peer.peer_id!r}")
    for name in (
        *filter(None, (peer.model, peer.role, peer.version, peer.name)),
        *peer.tasks,
        *peer.multiaddrs,
        *(peer.summary.tries if peer.summary else ()),
    ):
        if not is_name(name, MAX_NAME_CHARS):
            raise Refusal(Reason.LIMITS, f"names must be 1 to {MAX_NAME_CHARS} of {NAME_CHARS}, got {name!r}")
    if (summary := peer.summary) is not None and summary.correct > summary.asked:
        raise Refusal(Reason.LIMITS, f"at most {summary.asked} answers can be correct, got {summary.correct}")
    return peer


# Every directory answer contains all records; the cache avoids verifying each of them again. What they decode to is not
# kept here: it can be twenty times as large.
@lru_cache(REMEMBERED_PEER_RECORDS)
def _verify_peer_record(record: bytes) -> None:
    check_signature(read_record(record, MAX_PEER_RECORD_BYTES))


def open_announcement(signed: SignedRecord, run_id: str, max_record_bytes: int) -> Announcement:
    """The announcement of a large record, signed by its publisher. Raises `Refusal`, attributed to the signer."""
    body = signed.body
    try:
        check_kind(body, "large")
        if len(signed.record) > MAX_ANNOUNCEMENT_BYTES:
            raise Refusal(Reason.OVERSIZED, f"at most {MAX_ANNOUNCEMENT_BYTES} bytes, got {len(signed.record)}")
        announced = decode(decompress(signed, MAX_EXPANSION * MAX_ANNOUNCEMENT_BYTES), Announcement)
        _check_announcement(announced, body, run_id, max_record_bytes)
    except Refusal as refusal:
        raise Refusal(refusal.reason, refusal.detail, body.peer_id) from refusal
    return announced


def _check_announcement(announced: Announcement, body: Body, run_id: str, max_record_bytes: int) -> None:
    if not announced.run_id == body.run_id == run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected run {run_id!r}, got {announced.run_id!r}")
    if announced.peer_id != body.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {body.peer_id}, but says it is from {announced.peer_id!r}")
    if not 0 < announced.num_bytes <= max_record_bytes:
        raise Refusal(Reason.OVERSIZED, f"at most {max_record_bytes} bytes, got {announced.num_bytes}")
    ids = (announced.record_id, *announced.chunk_ids)
    if len(announced.chunk_ids) != -(-announced.num_bytes // MAX_CHUNK_BYTES) or any(
        len(digest) != RECORD_ID_BYTES for digest in ids
    ):
        raise Refusal(Reason.LIMITS, f"the digests do not match {announced.num_bytes} bytes in number or length")


def open_snapshot(record: bytes, run_id: str, learner: str) -> SnapshotManifest:
    """The snapshot manifest in an envelope, signed by the run's learner. Raises `Refusal`."""
    signed = _read_signed(record, "snapshot", MAX_SNAPSHOT_MANIFEST_BYTES, learner)
    manifest = decode(decompress(signed, MAX_EXPANSION * MAX_SNAPSHOT_MANIFEST_BYTES), SnapshotManifest)
    body = signed.body
    if not manifest.run_id == body.run_id == run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected run {run_id!r}, got {manifest.run_id!r}")
    if manifest.learner != body.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {body.peer_id}, but says it is from {manifest.learner!r}")
    for problem in _snapshot_problems(manifest):
        raise Refusal(Reason.LIMITS, problem)
    return manifest


def _snapshot_problems(manifest: SnapshotManifest) -> Iterator[str]:
    if len(manifest.digest) != SNAPSHOT_DIGEST_BYTES:
        yield f"a digest must have {SNAPSHOT_DIGEST_BYTES} bytes, got {len(manifest.digest)}"
    if (manifest.parent is None) != (manifest.change is None):
        yield "a change and its parent go together"
    if manifest.parent is not None and not 0 <= manifest.parent < manifest.version:
        yield f"the parent must be older than {manifest.version}, got {manifest.parent}"
    yield from _chunk_problems(manifest.whole)
    if manifest.change is not None:
        yield from _chunk_problems(manifest.change)


def _chunk_problems(chunks: ChunkList) -> Iterator[str]:
    if not 0 < chunks.chunk_bytes <= MAX_SNAPSHOT_CHUNK_BYTES:
        yield f"chunks must have 1 to {MAX_SNAPSHOT_CHUNK_BYTES} bytes, got {chunks.chunk_bytes}"
    elif not 0 < chunks.num_bytes <= chunks.chunk_bytes * MAX_SNAPSHOT_CHUNKS:
        yield f"a part must have 1 byte to {MAX_SNAPSHOT_CHUNKS} chunks, got {chunks.num_bytes} bytes"
    elif len(chunks.chunk_ids) != -(-chunks.num_bytes // chunks.chunk_bytes) or any(
        len(digest) != RECORD_ID_BYTES for digest in chunks.chunk_ids
    ):
        yield f"the digests do not match {chunks.num_bytes} bytes in number or length"


def _now(now: float | None) -> float:
    return time.time() if now is None else now


def _read_signed(record: bytes, kind: Kind, max_bytes: int, signer: str | None = None) -> SignedRecord:
    sealed = read_record(record, max_bytes)
    _check_signer(sealed.body, kind, signer)
    return check_signature(sealed)


def _check_signer(body: Body, kind: Kind, signer: str | None) -> None:
    check_kind(body, kind)
    if signer is not None and body.peer_id != signer:
        raise Refusal(Reason.WRONG_PEER, f"expected the signature of {signer}, got that of {body.peer_id}")


def group_problems(group: RolloutGroup, limits: Limits) -> Iterator[str]:
    """Descriptions of everything in a group, beyond its types, that receivers with these limits would refuse."""
    num_completions = len(group.completions)
    if not 1 <= num_completions <= limits.max_completions:
        yield f"a group must have 1 to {limits.max_completions} completions, got {num_completions}"
    if len(group.rewards) != num_completions:
        yield f"{num_completions} completions but {len(group.rewards)} rewards"
    if group.num_chars > limits.max_group_chars:
        yield f"a group may have at most {limits.max_group_chars} characters, got {group.num_chars}"
    if group.num_elements > limits.max_group_elements:
        yield (
            f"a group may have at most {limits.max_group_elements} token ids, logprobs and versions, "
            f"got {group.num_elements}"
        )
    for completion in group.completions:
        if len(completion.text) > limits.max_completion_chars:
            yield f"a completion may have at most {limits.max_completion_chars} characters, got {len(completion.text)}"
        num_tokens = len(completion.token_ids)
        if num_tokens > limits.max_completion_chars:
            yield f"a completion may have at most {limits.max_completion_chars} tokens, got {num_tokens}"
        if completion.logprobs and len(completion.logprobs) != num_tokens:
            yield f"{num_tokens} token ids but {len(completion.logprobs)} logprobs"
        if completion.turns:
            yield from _turn_problems(completion)
        yield from _forced_problems(completion)
        spans = [span.num_tokens for span in completion.versions]
        if spans and sum(spans) != num_tokens:
            yield f"{num_tokens} token ids but version spans of {sum(spans)} tokens"
    if any(completion.routing for completion in group.completions):
        yield "a shared completion must not contain expert ids"


def _turn_problems(completion: Completion) -> Iterator[str]:
    """A record that states more than one turn's worth of text or tokens would be cut into other turns than it has."""
    for what, stated, actual in (
        ("characters", sum(turn.num_chars for turn in completion.turns), len(completion.text)),
        ("token ids", sum(turn.num_tokens for turn in completion.turns), len(completion.token_ids)),
    ):
        if stated != actual:
            yield f"{actual} {what} but turns of {stated}"


def _forced_problems(completion: Completion) -> Iterator[str]:
    """An end of a thought is in the text, and within the tokens of its turn."""
    if completion.turns and completion.forced is not None:
        yield "a completion of several turns must say of each whether the end of its thought was inserted"
        return
    for turn in completion.by_turn():
        if turn.forced is not None and (turn.forced > len(turn.token_ids) or CLOSE not in turn.text):
            yield f"an inserted end of a thought must be within its turn, got {turn.forced} of {len(turn.token_ids)}"


def _manifest_problems(manifest: RunManifest) -> Iterator[str]:
    if len(manifest.tasks) > MAX_MANIFEST_TASKS:
        yield f"a run may have at most {MAX_MANIFEST_TASKS} tasks, got {len(manifest.tasks)}"
    if not math.isfinite(manifest.created_at):
        yield f"created_at must be finite, got {manifest.created_at}"
    values = msgspec.structs.asdict(manifest)
    for field, (least, most) in MANIFEST_RANGES.items():
        if not least <= values[field] <= most:
            yield f"{field} must be {least} to {most}, got {values[field]}"
    if manifest.local + manifest.external == 0:
        yield "local + external must be at least 1, got 0 + 0"
    for peer_id in manifest.trusted:
        if not is_peer_id(peer_id):
            yield f"trusted must be peer ids, got {peer_id!r:.100}"
    names = [task.name for task in manifest.tasks]
    if len(set(names)) < len(names):
        yield "tasks must have different names"
    for task in manifest.tasks:
        yield from _task_problems(task)


def _task_problems(task: TaskSpec) -> Iterator[str]:
    for name in (task.name, task.kind):
        if not is_name(name, MAX_TASK_NAME_CHARS):
            yield f"names of tasks must be 1 to {MAX_TASK_NAME_CHARS} of {NAME_CHARS}, got {name!r}"
    if not 0 < task.weight <= MAX_TASK_WEIGHT:
        yield f"weights must be above 0 and at most {MAX_TASK_WEIGHT:g}, got {task.weight}"
    if not _is_plain(task.settings, MAX_SETTINGS_DEPTH):
        yield (
            f"task settings must be finite JSON values, nested at most {MAX_SETTINGS_DEPTH} deep, "
            f"with texts of at most {MAX_SETTING_CHARS} characters"
        )


def _is_plain(value: object, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item, depth - 1) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item, depth - 1) for item in value)
    if isinstance(value, str):
        return len(value) <= MAX_SETTING_CHARS
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, int)


complete(globals())
