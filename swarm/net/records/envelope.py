"""Envelopes around signed records, and frames of requests and answers.

    record    {schema_version, body, signature}         Ed25519 over the version and the body
    body      {run_id, peer_id, kind, payload, ...}
    payload   zstd-compressed MessagePack of the type that `kind` names; the frame states the size

The signature covers the transmitted bytes, not a reader's decoding of them. Readers ignore unknown fields in body and
payload, and forward a record as the bytes that arrived. The envelope has one encoding: the signature does not cover it,
so any other would be another record of the same body. Each step runs once per record:

    bytes ─▶ read_record ─▶ SealedRecord ─▶ check_signature ─▶ SignedRecord ─▶ decompress ─▶ decode

Frames on a libp2p stream, for both network libraries:

    client   length | request                                  at most 1 MiB
    server   (length | chunk)* , 0                             chunks of 1 byte to 256 KiB, then the end
             (length | chunk)* , 0xFFFFFFFF, length | message  or an error, in UTF-8

Lengths are 4 bytes, big-endian, and checked before any memory is allocated. Readers take a `ReadExactly` of asyncio or
trio.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Literal, TypeVar, get_args

import msgspec
import zstandard
from msgspec import Struct

from swarm.errors import PeerUnreachable, Refusal
from swarm.net.records.identity import MAX_PEER_ID_CHARS, Identity, verify
from swarm.protocols import Wakeup
from swarm.reasons import Reason
from swarm.sanitize import is_name
from swarm.types import SCHEMA_VERSION, TaskRef, complete

MAX_REQUEST_BYTES = 2**20
MAX_CHUNK_BYTES = 2**18
MAX_ERROR_BYTES = 1_024
MAX_REPLY_BYTES = 2 * 2**20
"""Limit of an answer that is read as a whole."""
REQUEST_TIMEOUT_S = 10.0
REFUSAL_TIMEOUT_S = 1.0
"""Time limit for the request of a peer that will be refused as busy."""
STALL_TIMEOUT_S = 30.0
"""A peer that accepts no byte of its answer for this time is disconnected."""
NOT_YET_S = 0.02
"""Pause before a handler whose next chunk is not ready is polled again, if it does not say what to wait for."""
LOOK_AGAIN_S = 1.0
"""A handler that said what it waits for is polled after this time at the latest."""
LENGTH_BYTES = 4
END = bytes(LENGTH_BYTES)
ERROR_LENGTH = 0xFFFFFFFF

ReadExactly = Callable[[int], Awaitable[bytes]]
"""Reads exactly that many bytes. Raises `PeerUnreachable` if the stream ends first."""
T = TypeVar("T")
Kind = Literal["group", "manifest", "peer", "large", "snapshot", "offers"]
KINDS: frozenset[str] = frozenset(get_args(Kind))
QUESTION_KINDS: frozenset[object] = frozenset(ref.__struct_config__.tag for ref in get_args(TaskRef))
SIGNATURE_DOMAIN = b"swarm envelope %d\0" % SCHEMA_VERSION
COMPRESSION_LEVEL = 3
MAX_RUN_ID_CHARS = 64
MAX_KIND_CHARS = 64
OUT_OF_BOUNDS = re.compile(r"Expected `\w+` (of length )?[<>]=? ")
"""msgspec's message for a value of the right type that violates a bound set in `swarm/types/`."""
OTHER_QUESTION = re.compile(r"Invalid value '(.*)' - at `\$\.question\.type`", re.DOTALL)
"""msgspec's message for an unknown kind of `TaskRef`."""


def encode_request(request: bytes) -> bytes:
    """The client's frame of a request. Raises `ValueError` if it is too large."""
    if len(request) > MAX_REQUEST_BYTES:
        raise ValueError(f"a request must have at most {MAX_REQUEST_BYTES} bytes, got {len(request)}")
    return _length(len(request)) + request


def encode_answer(chunks: Iterable[bytes | Wakeup | None]) -> Iterator[bytes | Wakeup]:
    """The frames of an answer, one at a time. Large chunks are split, empty ones skipped.

    While the next chunk is not ready: what to wait for, or an empty frame (None).
    """
    for chunk in chunks:
        if not isinstance(chunk, bytes):
            yield chunk or b""
            continue
        for start in range(0, len(chunk), MAX_CHUNK_BYTES):
            piece = chunk[start : start + MAX_CHUNK_BYTES]
            yield _length(len(piece)) + piece
    yield END


def encode_error(message: str) -> bytes:
    """The frame that ends an answer with an error; a long message is truncated."""
    encoded = message.encode(errors="replace")[:MAX_ERROR_BYTES]
    return _length(ERROR_LENGTH) + _length(len(encoded)) + encoded


async def read_request(read: ReadExactly) -> bytes:
    """The request at the start of a stream. Raises `PeerUnreachable` if it is too large or truncated."""
    return await _read_block(read, await _read_length(read), MAX_REQUEST_BYTES, "request")


async def read_answer(read: ReadExactly, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """The chunks of an answer as they arrive.

    Raises `PeerUnreachable` for an error that the peer sent, an invalid frame, a stream without an end frame, or more
    than `max_bytes` in total.
    """
    room = max_bytes
    while (length := await _read_length(read)) != 0:
        if length == ERROR_LENGTH:
            message = await _read_block(read, await _read_length(read), MAX_ERROR_BYTES, "error message")
            raise PeerUnreachable(f"it answered with an error: {message.decode(errors='replace')}")
        if length > room:
            raise PeerUnreachable(f"an answer must have at most {max_bytes} bytes, got more")
        room -= length
        yield await _read_block(read, length, MAX_CHUNK_BYTES, "chunk")


async def joined(chunks: AsyncGenerator[bytes, None]) -> bytes:
    """All chunks of an answer."""
    async with aclosing(chunks):
        return b"".join([chunk async for chunk in chunks])


def _length(value: int) -> bytes:
    return value.to_bytes(LENGTH_BYTES, "big")


async def _read_length(read: ReadExactly) -> int:
    return int.from_bytes(await read(LENGTH_BYTES), "big")


async def _read_block(read: ReadExactly, length: int, most: int, what: str) -> bytes:
    if length > most:
        raise PeerUnreachable(f"a {what} must have at most {most} bytes, got {length}")
    return await read(length) if length else b""


class Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    """The transmitted structure. Unknown fields are forbidden because they would be unsigned."""

    schema_version: int
    body: bytes
    signature: bytes
    """Over `signed_bytes(body)`."""


class Body(Struct, frozen=True):
    """The signed part."""

    run_id: str
    peer_id: str
    """The signer."""
    kind: str
    payload: bytes


class _Version(Struct, frozen=True):
    schema_version: int


class SealedRecord(Struct, frozen=True):
    """A decoded record; nothing in it is verified yet."""

    record: bytes
    """The bytes as received."""
    envelope: Envelope
    body: Body

    @property
    def stated_bytes(self) -> int:
        """Decompressed size according to the frame, but at least the record's length."""
        try:
            return max(len(self.record), zstandard.frame_content_size(self.body.payload))
        except zstandard.ZstdError:
            return len(self.record)


class SignedRecord(Struct, frozen=True):
    """A record with a valid signature of the peer that it names; the content is unchecked."""

    record: bytes
    """The bytes as received."""
    body: Body


def signed_bytes(body: bytes) -> bytes:
    """The bytes to sign for a body; they include the major version."""
    return SIGNATURE_DOMAIN + body


def wrap(identity: Identity, body: bytes) -> bytes:
    """A signed envelope around a body."""
    return msgspec.msgpack.encode(Envelope(SCHEMA_VERSION, body, identity.sign(signed_bytes(body))))


def seal_payload(identity: Identity, run_id: str, kind: str, content: bytes) -> bytes:
    """A signed record with an encoded payload."""
    payload = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(content)
    return wrap(identity, msgspec.msgpack.encode(Body(run_id, identity.peer_id, kind, payload)))


def read_record(record: bytes, max_bytes: int) -> SealedRecord:
    """Decode a record. Raises `Refusal`: `oversized`, `malformed`, `limits` or `schema_version`."""
    if len(record) > max_bytes:
        raise Refusal(Reason.OVERSIZED, f"at most {max_bytes} bytes, got {len(record)}")
    try:
        envelope = decode(record, Envelope)
    except Refusal:
        # Another major version may have other fields; its records are not malformed.
        _check_version(_stated_version(record))
        raise
    _check_version(envelope.schema_version)
    if msgspec.msgpack.encode(envelope) != record:
        raise Refusal(Reason.MALFORMED, "an envelope must have its three fields once, in order and in shortest form")
    body = decode(envelope.body, Body)
    if len(body.run_id) > MAX_RUN_ID_CHARS or len(body.peer_id) > MAX_PEER_ID_CHARS:
        raise Refusal(
            Reason.MALFORMED, f"at most {MAX_RUN_ID_CHARS} characters of run id and {MAX_PEER_ID_CHARS} of peer id"
        )
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
    """Raises `Refusal`: `unknown_kind` for a kind of a later version, `malformed` for any other unexpected kind."""
    if body.kind in kinds:
        return
    if body.kind not in KINDS and is_name(body.kind, MAX_KIND_CHARS):
        raise Refusal(Reason.UNKNOWN_KIND, f"this version of swarm does not know records of kind {body.kind!r}")
    raise Refusal(Reason.MALFORMED, f"expected a record of kind {' or '.join(kinds)}, got {body.kind!r}")


def check_signature(sealed: SealedRecord) -> SignedRecord:
    """Verify the signature of the peer that the record names. Raises `Refusal`: `bad_signature`."""
    if not verify(sealed.body.peer_id, signed_bytes(sealed.envelope.body), sealed.envelope.signature):
        raise Refusal(Reason.BAD_SIGNATURE, f"the signature is not that of {sealed.body.peer_id}")
    return SignedRecord(sealed.record, sealed.body)


def decompress(signed: SignedRecord, max_bytes: int) -> bytes:
    """The decompressed payload. Raises `Refusal`: `oversized` or `malformed`."""
    payload = signed.body.payload
    try:
        # The decompressor allocates the size that the frame states, so that must be present (-1: absent) and small.
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
    """Decode MessagePack and ignore extra fields. Raises `Refusal`: `malformed`, `limits`, `unknown_question`."""
    try:
        return msgspec.msgpack.decode(content, type=record_type)
    except RecursionError as error:
        # The depth limit differs between nodes, so a peer that forwards the record is not to blame.
        raise Refusal(Reason.LIMITS, "values are nested too deeply") from error
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
        return Refusal(Reason.UNKNOWN_QUESTION, f"this version of swarm does not know questions of kind {other[1]!r}")
    return Refusal(Reason.MALFORMED, text)


complete(globals())
