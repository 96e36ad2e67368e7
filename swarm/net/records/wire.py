"""What travels: signed envelopes, opened with every limit checked before anything is believed.

An envelope is opened in the order of what each step costs and trusts: size, schema, run, signature, bounded
decompression, decoding, then the limits on the content. Bytes from the network only ever raise `Refusal`.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, TypeVar

import msgspec
import zstandard
from msgspec import Struct

from swarm.errors import Refusal
from swarm.foreign import NAME_CHARS, is_name
from swarm.net.records.framing import MAX_CHUNK_BYTES
from swarm.net.records.identity import MAX_PEER_ID_CHARS, Identity, verify
from swarm.net.records.shelf import RECORD_ID_BYTES
from swarm.reasons import Reason
from swarm.types import (
    MAX_COMPLETIONS,
    MAX_NAME_CHARS,
    SCHEMA_VERSION,
    ChunkList,
    PeerRecord,
    Positive,
    RolloutGroup,
    RunManifest,
    SnapshotManifest,
    TaskSpec,
)


class Announcement(Struct, frozen=True, forbid_unknown_fields=True):
    """A record too large for gossip, signed by its publisher: whoever holds it can be asked for it by id."""

    run_id: str
    peer_id: str
    record_id: bytes
    """Digest of the sealed record, see `shelf.record_id`."""
    num_bytes: Positive
    chunk_ids: tuple[bytes, ...]
    """Digest of each 256 KiB of it, the last may be shorter."""


Kind = Literal["group", "manifest", "peer", "large", "snapshot"]
Record = TypeVar("Record", RolloutGroup, RunManifest, PeerRecord, Announcement, SnapshotManifest)

SIGNATURE_DOMAIN = b"swarm envelope\0"
MAX_EXPANSION = 8
"""A payload may be this many times the largest record: text compresses 2 to 5 times."""
CHARS_PER_BYTE = 2
"""Characters that a group may have for each byte of the largest record: repetition compresses to nothing."""
BYTES_PER_ELEMENT = 4
"""Bytes of the largest record for each token id, log-probability or version span that a group may have; honest ones
take that many, compressed."""
MAX_PAYLOAD_BYTES = 128 * 2**20
"""And has this many bytes at most, however large records may be."""
MAX_CLOCK_SKEW_S = 600.0
MAX_RUN_ID_CHARS = 64
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
"""What a run may ask of its members."""
MAX_PEER_RECORD_BYTES = 1_536
MAX_PEER_RECORD_LIFE_S = 300.0
REMEMBERED_PEER_RECORDS = 4_096
MAX_MULTIADDRS = 16
MAX_ANNOUNCEMENT_BYTES = 16_384
MAX_SNAPSHOT_MANIFEST_BYTES = 640 * 2**10
"""Fits into a request, and holds the digests of twice as many chunks:"""
MAX_SNAPSHOT_CHUNKS = 16_384
MIN_SNAPSHOT_CHUNK_BYTES, MAX_SNAPSHOT_CHUNK_BYTES = 2**15, 2**22
"""The former is above the size up to which answers are not paced."""
SNAPSHOT_DIGEST_BYTES = 32
COMPRESSION_LEVEL = 3
OUT_OF_BOUNDS = re.compile(r"Expected `\w+` (of length )?[<>]=? ")
"""How msgspec says that a value has the right type, but not the bounds that `swarm/types.py` sets."""


class Limits(Struct, frozen=True):
    """What a group from the network may be at most."""

    max_record_bytes: int = 1_000_000
    """Signed and compressed, as it travels."""
    max_completion_chars: int = 65_536
    """Also bounds the number of tokens of a completion."""
    max_completions: int = MAX_COMPLETIONS
    max_age_s: float = 3_600.0
    """On the sender's clock: an old record replayed after a restart is nothing new."""

    @property
    def max_group_chars(self) -> int:
        """Most characters of all completions together."""
        return CHARS_PER_BYTE * self.max_record_bytes

    @property
    def max_group_elements(self) -> int:
        """Most token ids, log-probabilities and version spans of all completions together."""
        return self.max_record_bytes // BYTES_PER_ELEMENT

    @property
    def max_payload_bytes(self) -> int:
        """Most bytes of a group before compression."""
        return min(MAX_EXPANSION * self.max_record_bytes, MAX_PAYLOAD_BYTES)


class Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    """What is on the wire: a compressed record and its sender's signature."""

    schema_version: int
    run_id: str
    peer_id: str
    kind: str
    payload: bytes
    """zstd-compressed msgpack of the record; its frame states the size."""
    signature: bytes
    """Ed25519, over everything above."""

    def signed_bytes(self) -> bytes:
        """What the signature is over: the other fields, in order, under a domain of their own."""
        return SIGNATURE_DOMAIN + msgspec.msgpack.encode(
            (self.schema_version, self.run_id, self.peer_id, self.kind, self.payload)
        )


class SignedRecord(bytes):
    """Bytes of an envelope whose signature was found good by `check_seal`: it need not be looked at again."""


class RefusedRecord(bytes):
    """Bytes that were found bad on arrival: whoever counts refusals need not open them again."""

    refusal: Refusal

    @classmethod
    def of(cls, record: bytes, refusal: Refusal) -> RefusedRecord:
        """The record with what speaks against it."""
        refused = cls(record)
        # Without its traceback, which holds all that was decoded.
        refused.refusal = Refusal(refusal.reason, refusal.detail, refusal.peer_id)
        return refused


class _Version(Struct, frozen=True):
    # Read on its own and first: an envelope of a later schema may have fields that this version would call malformed.
    schema_version: int


class _Label(Struct, frozen=True):
    kind: str
    peer_id: str


class _Content(Struct, frozen=True):
    payload: bytes


def make_run_id(name: str, founder: str) -> str:
    """`NAME-DIGEST`: the name people chose and a digest of the peer id that owns it. Raises `ValueError`."""
    if not re.fullmatch(r"[a-z0-9-]{1,40}", name):
        raise ValueError(f"a run's name must be 1 to 40 of a-z, 0-9 and '-', got {name!r}")
    return f"{name}-{hashlib.blake2b(founder.encode(), digest_size=10).hexdigest()}"


def seal(identity: Identity, run_id: str, kind: Kind, record: Record) -> bytes:
    """A signed envelope around a record."""
    payload = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(msgspec.msgpack.encode(record))
    unsigned = Envelope(SCHEMA_VERSION, run_id, identity.peer_id, kind, payload, b"")
    return msgspec.msgpack.encode(msgspec.structs.replace(unsigned, signature=identity.sign(unsigned.signed_bytes())))


def seal_manifest(identity: Identity, manifest: RunManifest) -> bytes:
    """A manifest signed by its founder."""
    return seal(identity, manifest.run_id, "manifest", manifest)


def seal_peer_record(identity: Identity, record: PeerRecord) -> bytes:
    """A peer's own entry in the DHT."""
    return seal(identity, record.run_id, "peer", record)


def seal_announcement(identity: Identity, announcement: Announcement) -> bytes:
    """The announcement of a record too large for gossip."""
    return seal(identity, announcement.run_id, "large", announcement)


def seal_snapshot(identity: Identity, manifest: SnapshotManifest) -> bytes:
    """A snapshot's manifest signed by its learner."""
    return seal(identity, manifest.run_id, "snapshot", manifest)


def check_seal(record: bytes, run_id: str, max_bytes: int) -> SignedRecord:
    """The record, as one that is fit to be kept and handed on: an envelope of this run, signed, whatever is inside.

    Raises `Refusal` with reason `oversized`, `malformed`, `schema_version`, `wrong_run` or `bad_signature`.
    """
    envelope = _open_envelope(record, ["group", "large"], max_bytes)
    _check_run(envelope, run_id)
    _check_signature(record, envelope)
    return SignedRecord(record)


def open_group(record: bytes, run_id: str, limits: Limits, *, now: float | None = None) -> tuple[str, RolloutGroup]:
    """Content id (digest of the canonical bytes) and group of a sealed group, every check passed.

    Raises `Refusal` with reason `oversized`, `malformed`, `schema_version`, `wrong_run`, `bad_signature`,
    `wrong_peer`, `clock`, `stale` or `limits`.
    """
    group = read_group(record, run_id, limits)
    age_s = _now(now) - group.created_at
    if age_s < -MAX_CLOCK_SKEW_S:
        raise Refusal(Reason.CLOCK, f"made {-age_s:.0f} s from now, by this clock", group.peer_id)
    if age_s > limits.max_age_s:
        raise Refusal(Reason.STALE, f"made {age_s:.0f} s ago, at most {limits.max_age_s:g}", group.peer_id)
    return hashlib.blake2b(msgspec.msgpack.encode(group), digest_size=16).hexdigest(), group


def read_group(record: bytes, run_id: str, limits: Limits) -> RolloutGroup:
    """The group in an envelope, checked but for its age: what is fit to be handed on. Raises as `open_group`."""
    envelope = _open_envelope(record, ["group"], limits.max_record_bytes)
    _check_run(envelope, run_id)
    _check_signature(record, envelope)
    try:
        group = _open_payload(envelope, RolloutGroup, limits.max_payload_bytes)
        _check_group(group, envelope, limits)
    except Refusal as refusal:
        raise Refusal(refusal.reason, refusal.detail, envelope.peer_id) from refusal
    return group


def _check_group(group: RolloutGroup, envelope: Envelope, limits: Limits) -> None:
    _check_schema(group.schema_version)
    if group.run_id != envelope.run_id:
        raise Refusal(Reason.WRONG_RUN, f"the envelope says {envelope.run_id!r}, the group {group.run_id!r}")
    if group.peer_id != envelope.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {envelope.peer_id}, but says it is from {group.peer_id!r}")
    for problem in group_problems(group, limits):
        raise Refusal(Reason.LIMITS, problem)


def open_manifest(record: bytes, run_id: str | None = None, *, now: float | None = None) -> RunManifest:
    """The manifest in an envelope: signed by its founder, whose digest its run id ends with. Raises `Refusal`.

    With `run_id`, a manifest of any other run is refused; and one from the future, by the clock `now`: it would
    outrank what its founder says later.
    """
    envelope = _open_envelope(record, ["manifest"], MAX_MANIFEST_BYTES)
    _check_signature(record, envelope)
    manifest = _open_payload(envelope, RunManifest, MAX_EXPANSION * MAX_MANIFEST_BYTES)
    _check_schema(manifest.schema_version)
    if manifest.founder != envelope.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {envelope.peer_id}, but names {manifest.founder!r} as founder")
    try:
        owned_run_id = make_run_id(manifest.run_id.rpartition("-")[0], manifest.founder)
    except ValueError as error:
        raise Refusal(Reason.WRONG_RUN, str(error)) from error
    if not manifest.run_id == envelope.run_id == owned_run_id:
        raise Refusal(Reason.WRONG_RUN, f"{manifest.run_id!r} does not belong to {manifest.founder}")
    if run_id is not None and manifest.run_id != run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected the run {run_id!r}, got {manifest.run_id!r}")
    for problem in _manifest_problems(manifest):
        raise Refusal(Reason.LIMITS, problem)
    if manifest.created_at > _now(now) + MAX_CLOCK_SKEW_S:
        raise Refusal(Reason.CLOCK, f"created_at must not be in the future, got {manifest.created_at}")
    return manifest


def is_outdated(manifest: RunManifest, known: RunManifest, *, now: float | None = None) -> bool:
    """Whether a run's manifest is older than the one known, which outranks it unless it is from the future."""
    return manifest.created_at < known.created_at <= _now(now) + MAX_CLOCK_SKEW_S


def open_peer_record(record: bytes, run_id: str, *, now: float | None = None) -> PeerRecord:
    """The peer record in an envelope, signed by the peer it is about and not expired. Raises `Refusal`."""
    peer = _signed_peer_record(record, run_id)
    if not 0 < peer.expires_at - _now(now) <= MAX_PEER_RECORD_LIFE_S:
        raise Refusal(Reason.CLOCK, f"must expire within {MAX_PEER_RECORD_LIFE_S:g} s, got {peer.expires_at}")
    return peer


# Every answer of the directory holds all of it: without a memory each record would be verified in each again.
@lru_cache(REMEMBERED_PEER_RECORDS)
def _signed_peer_record(record: bytes, run_id: str) -> PeerRecord:
    envelope = _open_envelope(record, ["peer"], MAX_PEER_RECORD_BYTES)
    _check_signature(record, envelope)
    peer = _open_payload(envelope, PeerRecord, MAX_EXPANSION * MAX_PEER_RECORD_BYTES)
    if not peer.run_id == envelope.run_id == run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected {run_id!r}, got {peer.run_id!r}")
    if peer.peer_id != envelope.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {envelope.peer_id}, but is about {peer.peer_id!r}")
    if len(peer.multiaddrs) > MAX_MULTIADDRS:
        raise Refusal(Reason.LIMITS, f"at most {MAX_MULTIADDRS} multiaddrs, got {len(peer.multiaddrs)}")
    for name in (*filter(None, (peer.model, peer.role, peer.version)), *peer.tasks, *peer.multiaddrs):
        if not is_name(name, MAX_NAME_CHARS):
            raise Refusal(Reason.LIMITS, f"names must be 1 to {MAX_NAME_CHARS} of {NAME_CHARS}, got {name!r}")
    return peer


def open_announcement(record: bytes, run_id: str, max_record_bytes: int) -> Announcement:
    """The announcement of a large record in an envelope, signed by its publisher. Raises `Refusal`."""
    envelope = _open_envelope(record, ["large"], MAX_ANNOUNCEMENT_BYTES)
    _check_signature(record, envelope)
    announced = _open_payload(envelope, Announcement, MAX_EXPANSION * MAX_ANNOUNCEMENT_BYTES)
    if not announced.run_id == envelope.run_id == run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected {run_id!r}, got {announced.run_id!r}")
    if announced.peer_id != envelope.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {envelope.peer_id}, but says it is from {announced.peer_id!r}")
    if not 0 < announced.num_bytes <= max_record_bytes:
        raise Refusal(Reason.OVERSIZED, f"at most {max_record_bytes} bytes, got {announced.num_bytes}")
    ids = (announced.record_id, *announced.chunk_ids)
    if len(announced.chunk_ids) != -(-announced.num_bytes // MAX_CHUNK_BYTES) or any(
        len(digest) != RECORD_ID_BYTES for digest in ids
    ):
        raise Refusal(Reason.LIMITS, f"the digests do not fit {announced.num_bytes} bytes")
    return announced


def open_snapshot(record: bytes, run_id: str, learner: str) -> SnapshotManifest:
    """The manifest of a snapshot in an envelope, signed by the run's learner. Raises `Refusal`."""
    envelope = _open_envelope(record, ["snapshot"], MAX_SNAPSHOT_MANIFEST_BYTES)
    if envelope.peer_id != learner:
        raise Refusal(Reason.WRONG_PEER, f"the learner is {learner}, but it is signed by {envelope.peer_id}")
    _check_signature(record, envelope)
    manifest = _open_payload(envelope, SnapshotManifest, MAX_EXPANSION * MAX_SNAPSHOT_MANIFEST_BYTES)
    if not manifest.run_id == envelope.run_id == run_id:
        raise Refusal(Reason.WRONG_RUN, f"expected {run_id!r}, got {manifest.run_id!r}")
    if manifest.learner != envelope.peer_id:
        raise Refusal(Reason.WRONG_PEER, f"signed by {envelope.peer_id}, but says it is from {manifest.learner!r}")
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
        yield f"must be 1 byte to {MAX_SNAPSHOT_CHUNKS} chunks, got {chunks.num_bytes} bytes"
    elif len(chunks.chunk_ids) != -(-chunks.num_bytes // chunks.chunk_bytes) or any(
        len(digest) != RECORD_ID_BYTES for digest in chunks.chunk_ids
    ):
        yield f"the digests do not fit {chunks.num_bytes} bytes"


def outside(record: bytes) -> tuple[str, str] | None:
    """Kind and peer id that an envelope claims, unverified and cheaply had; None for anything else."""
    try:
        label = msgspec.msgpack.decode(record, type=_Label)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return label.kind, label.peer_id


def opened_bytes(record: bytes) -> int:
    """What an envelope says that it comes to when it is opened, unverified and cheaply had; its length if that is more.

    What says nothing, or something false, is not opened.
    """
    try:
        stated = zstandard.frame_content_size(msgspec.msgpack.decode(record, type=_Content).payload)
    except (msgspec.MsgspecError, zstandard.ZstdError, UnicodeDecodeError, RecursionError):
        return len(record)
    return max(len(record), stated)


def _now(now: float | None) -> float:
    return time.time() if now is None else now


def _check_schema(version: int) -> None:
    if version != SCHEMA_VERSION:
        raise Refusal(Reason.SCHEMA_VERSION, f"this node speaks {SCHEMA_VERSION}, got {version}")


def _check_run(envelope: Envelope, run_id: str) -> None:
    if envelope.run_id != run_id:
        raise Refusal(Reason.WRONG_RUN, f"this node is in {run_id!r}, got {envelope.run_id!r}")


def _open_envelope(record: bytes, kinds: list[Kind], max_bytes: int) -> Envelope:
    if len(record) > max_bytes:
        raise Refusal(Reason.OVERSIZED, f"at most {max_bytes} bytes, got {len(record)}")
    try:
        version = msgspec.msgpack.decode(record, type=_Version).schema_version
        _check_schema(version)
        envelope = msgspec.msgpack.decode(record, type=Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(Reason.MALFORMED, str(error)) from error
    if envelope.kind not in kinds:
        raise Refusal(Reason.MALFORMED, f"expected a {' or '.join(kinds)}, got a {envelope.kind!r}")
    if len(envelope.run_id) > MAX_RUN_ID_CHARS or len(envelope.peer_id) > MAX_PEER_ID_CHARS:
        raise Refusal(Reason.MALFORMED, "run id or peer id too long")
    return envelope


def _check_signature(record: bytes, envelope: Envelope) -> None:
    if not isinstance(record, SignedRecord) and not verify(
        envelope.peer_id, envelope.signed_bytes(), envelope.signature
    ):
        raise Refusal(Reason.BAD_SIGNATURE, f"not signed by {envelope.peer_id}")


def _open_payload(envelope: Envelope, record_type: type[Record], max_bytes: int) -> Record:
    try:
        # The decompressor allocates what the frame says it holds: that must be said (-1: it is not) and be small.
        num_bytes = zstandard.frame_content_size(envelope.payload)
        if num_bytes > max_bytes:
            raise Refusal(Reason.OVERSIZED, f"at most {max_bytes} bytes decompressed, got {num_bytes}")
        if num_bytes < 0:
            raise Refusal(Reason.MALFORMED, "the payload does not state its size")
        decompressor = zstandard.ZstdDecompressor()
        payload = decompressor.decompress(envelope.payload, max_output_size=max_bytes, allow_extra_data=False)
        return msgspec.msgpack.decode(payload, type=record_type)
    except msgspec.ValidationError as error:
        raise Refusal(Reason.LIMITS if OUT_OF_BOUNDS.match(str(error)) else Reason.MALFORMED, str(error)) from error
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(Reason.MALFORMED, str(error)) from error


def group_problems(group: RolloutGroup, limits: Limits) -> Iterator[str]:
    """What about a group, beyond what its types say, receivers with these limits would refuse, in words."""
    num_completions = len(group.completions)
    if not 1 <= num_completions <= limits.max_completions:
        yield f"1 to {limits.max_completions} completions, got {num_completions}"
    if len(group.rewards) != num_completions:
        yield f"{num_completions} completions but {len(group.rewards)} rewards"
    if group.num_chars > limits.max_group_chars:
        yield f"at most {limits.max_group_chars} characters a group, got {group.num_chars}"
    if group.num_elements > limits.max_group_elements:
        yield f"at most {limits.max_group_elements} token ids, logprobs and versions a group, got {group.num_elements}"
    for completion in group.completions:
        if len(completion.text) > limits.max_completion_chars:
            yield f"at most {limits.max_completion_chars} characters a completion, got {len(completion.text)}"
        num_tokens = len(completion.token_ids)
        if num_tokens > limits.max_completion_chars:
            yield f"at most {limits.max_completion_chars} tokens a completion, got {num_tokens}"
        if completion.logprobs and len(completion.logprobs) != num_tokens:
            yield f"{num_tokens} token ids but {len(completion.logprobs)} logprobs"
        spans = [span.num_tokens for span in completion.versions]
        if spans and sum(spans) != num_tokens:
            yield f"{num_tokens} token ids but versions of {len(spans)} spans with {sum(spans)}"
    if any(completion.routing for completion in group.completions):
        yield "expert ids are no one else's business"


def _manifest_problems(manifest: RunManifest) -> Iterator[str]:
    if len(manifest.tasks) > MAX_MANIFEST_TASKS:
        yield f"at most {MAX_MANIFEST_TASKS} tasks, got {len(manifest.tasks)}"
    if not math.isfinite(manifest.created_at):
        yield f"created_at must be finite, got {manifest.created_at}"
    values = msgspec.structs.asdict(manifest)
    for field, (least, most) in MANIFEST_RANGES.items():
        if not least <= values[field] <= most:
            yield f"{field} must be {least} to {most}, got {values[field]}"
    if manifest.local + manifest.external == 0:
        yield "local + external must be at least 1, got 0 + 0"
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
        yield f"task settings must be plain JSON values, at most {MAX_SETTINGS_DEPTH} deep, in texts not too long"


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
