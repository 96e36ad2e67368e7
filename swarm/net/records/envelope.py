"""The envelope around every record: what is signed is the bytes that were sent, whatever a reader makes of them.

    record    {schema_version, body, signature}         Ed25519 over the version and the body
    body      {run_id, peer_id, kind, payload, ...}
    payload   zstd of the MessagePack of what `kind` names; its frame states the size

A reader passes over fields it does not know, in body and payload, and hands a record on as the bytes that came. Each
step below is taken once for a record, and its result is what the next one takes:

    bytes ─▶ read_record ─▶ SealedRecord ─▶ check_signature ─▶ SignedRecord ─▶ decompress ─▶ decode
"""

from __future__ import annotations

import re
from typing import Literal, TypeVar, get_args

import msgspec
import zstandard
from msgspec import Struct

from swarm.errors import Refusal
from swarm.foreign import is_name
from swarm.net.records.identity import MAX_PEER_ID_CHARS, Identity, verify
from swarm.reasons import Reason
from swarm.types import SCHEMA_VERSION, TaskRef

T = TypeVar("T")
Kind = Literal["group", "manifest", "peer", "large", "snapshot"]

KINDS: frozenset[str] = frozenset(get_args(Kind))
QUESTION_KINDS: frozenset[object] = frozenset(ref.__struct_config__.tag for ref in get_args(TaskRef))
SIGNATURE_DOMAIN = b"swarm envelope %d\0" % SCHEMA_VERSION
COMPRESSION_LEVEL = 3
MAX_RUN_ID_CHARS = 64
MAX_KIND_CHARS = 64
OUT_OF_BOUNDS = re.compile(r"Expected `\w+` (of length )?[<>]=? ")
"""How msgspec says that a value has the right type, but not the bounds that `swarm/types.py` sets."""
OTHER_QUESTION = re.compile(r"Invalid value '(.*)' - at `\$\.question\.type`", re.DOTALL)
"""How it says that a question is of none of the kinds of `TaskRef`."""


class Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    """What is on the wire. Nothing can be added here, because nobody would have signed it."""

    schema_version: int
    body: bytes
    signature: bytes
    """Of `signed_bytes(body)`."""


class Body(Struct, frozen=True):
    """What a signature is over."""

    run_id: str
    peer_id: str
    """Whose signature it is."""
    kind: str
    payload: bytes


class _Version(Struct, frozen=True):
    schema_version: int


class SealedRecord(Struct, frozen=True):
    """A record taken apart; nothing that it says has been verified."""

    record: bytes
    """As it came."""
    envelope: Envelope
    body: Body

    @property
    def stated_bytes(self) -> int:
        """Bytes that it says it comes to when it is opened; its length if that is more, or if it does not say."""
        try:
            return max(len(self.record), zstandard.frame_content_size(self.body.payload))
        except zstandard.ZstdError:
            return len(self.record)


class SignedRecord(Struct, frozen=True):
    """A record whose signature is that of the peer it names, whatever is inside."""

    record: bytes
    """As it came."""
    body: Body


def signed_bytes(body: bytes) -> bytes:
    """What is signed for a body: the major version is part of it."""
    return SIGNATURE_DOMAIN + body


def wrap(identity: Identity, body: bytes) -> bytes:
    """A body in its envelope, signed."""
    return msgspec.msgpack.encode(Envelope(SCHEMA_VERSION, body, identity.sign(signed_bytes(body))))


def seal_payload(identity: Identity, run_id: str, kind: str, content: bytes) -> bytes:
    """The sealed record of an encoded payload."""
    payload = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(content)
    return wrap(identity, msgspec.msgpack.encode(Body(run_id, identity.peer_id, kind, payload)))


def read_record(record: bytes, max_bytes: int) -> SealedRecord:
    """A record taken apart. Raises `Refusal`: `oversized`, `malformed`, `limits` or `schema_version`."""
    if len(record) > max_bytes:
        raise Refusal(Reason.OVERSIZED, f"at most {max_bytes} bytes, got {len(record)}")
    try:
        envelope = decode(record, Envelope)
    except Refusal:
        # Another major version may have other fields, which must not be called malformed.
        _check_version(_stated_version(record))
        raise
    _check_version(envelope.schema_version)
    body = decode(envelope.body, Body)
    if len(body.run_id) > MAX_RUN_ID_CHARS or len(body.peer_id) > MAX_PEER_ID_CHARS:
        raise Refusal(Reason.MALFORMED, "run id or peer id too long")
    return SealedRecord(record, envelope, body)


def _stated_version(record: bytes) -> int:
    try:
        return decode(record, _Version).schema_version
    except Refusal:
        return SCHEMA_VERSION


def _check_version(version: int) -> None:
    if version == SCHEMA_VERSION:
        return
    where = "here" if version > SCHEMA_VERSION else "there, or use here the older one that the others have"
    raise Refusal(
        Reason.SCHEMA_VERSION,
        f"it speaks version {version} of the protocol, this node version {SCHEMA_VERSION}: update swarm {where}",
    )


def check_kind(body: Body, *kinds: Kind) -> None:
    """Raises `Refusal`: `unknown_kind` for one that only other versions know, `malformed` for one out of place."""
    if body.kind in kinds:
        return
    if body.kind not in KINDS and is_name(body.kind, MAX_KIND_CHARS):
        raise Refusal(Reason.UNKNOWN_KIND, f"this version knows no records of the kind {body.kind!r}")
    raise Refusal(Reason.MALFORMED, f"expected a {' or '.join(kinds)}, got a {body.kind!r}")


def check_signature(sealed: SealedRecord) -> SignedRecord:
    """The record as one that the peer it names has signed. Raises `Refusal`: `bad_signature`."""
    if not verify(sealed.body.peer_id, signed_bytes(sealed.envelope.body), sealed.envelope.signature):
        raise Refusal(Reason.BAD_SIGNATURE, f"not signed by {sealed.body.peer_id}")
    return SignedRecord(sealed.record, sealed.body)


def decompress(signed: SignedRecord, max_bytes: int) -> bytes:
    """The payload as it was encoded. Raises `Refusal`: `oversized` or `malformed`."""
    payload = signed.body.payload
    try:
        # The decompressor allocates what the frame says it holds: that must be said (-1: it is not) and be small.
        num_bytes = zstandard.frame_content_size(payload)
        if num_bytes > max_bytes:
            raise Refusal(Reason.OVERSIZED, f"at most {max_bytes} bytes decompressed, got {num_bytes}")
        if num_bytes < 0:
            raise Refusal(Reason.MALFORMED, "the payload does not state its size")
        decompressor = zstandard.ZstdDecompressor()
        return decompressor.decompress(payload, max_output_size=max_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Refusal(Reason.MALFORMED, str(error)) from error


def decode(content: bytes, record_type: type[T]) -> T:
    """MessagePack as a record, whatever else is in it. Raises `Refusal`: `malformed`, `limits`, `unknown_question`."""
    try:
        return msgspec.msgpack.decode(content, type=record_type)
    except RecursionError as error:
        # How deep is too deep differs from node to node: nobody is to blame for handing it on.
        raise Refusal(Reason.LIMITS, "values in one another too deep") from error
    except msgspec.ValidationError as error:
        raise _explained(error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refusal(Reason.MALFORMED, str(error)) from error


def _explained(error: msgspec.ValidationError) -> Refusal:
    text = str(error)
    if OUT_OF_BOUNDS.match(text):
        return Refusal(Reason.LIMITS, text)
    other = OTHER_QUESTION.fullmatch(text)
    if other and other[1] not in QUESTION_KINDS and is_name(other[1], MAX_KIND_CHARS):
        return Refusal(Reason.UNKNOWN_QUESTION, f"this version knows no questions of the kind {other[1]!r}")
    return Refusal(Reason.MALFORMED, text)
