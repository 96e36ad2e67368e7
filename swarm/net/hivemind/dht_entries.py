"""A node's part of the directory: signed peer records of one run, bounded in every respect.

hivemind decodes before it validates, and stores without limits. Here untrusted bytes are decoded by type, which bounds
their depth, and only records signed by their owner are stored, in the part that they belong to.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from swarm.errors import Refusal
from swarm.net.records.identity import MAX_PEER_ID_CHARS
from swarm.net.records.wire import MAX_PEER_RECORD_BYTES, open_peer_record
from swarm.reasons import Reason

PARTS = 16
MAX_ENTRIES = 128
"""Per part: 2,048 peers in total, with at most 3 MB."""
EXPIRY_GRACE_S = 60.0
"""A recently expired record is accepted, since clocks differ."""
DICTIONARY_CODE = 0x50
"""hivemind's msgpack extension type for a part."""
HEADER_BYTES = 5
"""Longest msgpack header of a string or bytes."""

PeerIdText = Annotated[str, Meta(max_length=MAX_PEER_ID_CHARS)]
Sealed = Annotated[bytes, Meta(max_length=MAX_PEER_RECORD_BYTES)]
Packed = Annotated[bytes, Meta(max_length=MAX_PEER_RECORD_BYTES + HEADER_BYTES)]
_Dictionary = tuple[float, float, Annotated[list[tuple[PeerIdText, Packed, float]], Meta(max_length=MAX_ENTRIES)]]
_decode_peer_id = msgspec.msgpack.Decoder(PeerIdText).decode
_decode_sealed = msgspec.msgpack.Decoder(Sealed).decode
_decode_ext = msgspec.msgpack.Decoder(msgspec.msgpack.Ext).decode
_decode_dictionary = msgspec.msgpack.Decoder(_Dictionary).decode


class Entry(Struct, frozen=True):
    """One peer's record, with the fields that the directory needs."""

    part: int
    peer_id: str
    sealed: bytes
    expires_at: float

    @property
    def packed(self) -> bytes:
        """The record in the encoding of hivemind's DHT."""
        return msgspec.msgpack.encode(self.sealed)


class EntryChecker:
    """Opens and checks entries of a run's directory; anything else raises `Refusal`."""

    def __init__(self, run_id: str, part_of_key: dict[bytes, int], clock: Callable[[], float]) -> None:
        """`part_of_key` maps the run's keys to parts; no other keys are valid."""
        self._run_id = run_id
        self._part_of_key = part_of_key
        self._clock = clock

    def part(self, key: bytes) -> int:
        """The part with this key."""
        part = self._part_of_key.get(key)
        if part is None:
            raise Refusal(Reason.MALFORMED, "the key is not one of this directory")
        return part

    def open(self, key: bytes, subkey: bytes, value: bytes, expires_at: float) -> Entry:
        """A single entry in hivemind's encoding: string and bytes in msgpack.

        The expiry is signed, so only the owner can extend or shorten an entry's life.
        """
        part = self.part(key)
        if len(subkey) > MAX_PEER_ID_CHARS + HEADER_BYTES or len(value) > MAX_PEER_RECORD_BYTES + HEADER_BYTES:
            raise Refusal(Reason.OVERSIZED, f"the peer id has {len(subkey)} bytes and the record {len(value)}")
        try:
            peer_id, sealed = _decode_peer_id(subkey), _decode_sealed(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(Reason.MALFORMED, str(error)) from error
        return self._check(part, peer_id, sealed, expires_at)

    def open_part(self, key: bytes, dictionary: bytes, max_bytes: int) -> list[Entry]:
        """The valid entries of a whole part in hivemind's encoding."""
        part = self.part(key)
        if len(dictionary) > max_bytes:
            raise Refusal(Reason.OVERSIZED, f"at most {max_bytes} bytes a part, got {len(dictionary)}")
        try:
            extension = _decode_ext(dictionary)
            if extension.code != DICTIONARY_CODE:
                raise Refusal(
                    Reason.MALFORMED, f"a part must be an extension of type {DICTIONARY_CODE}, got {extension.code}"
                )
            _, _, items = _decode_dictionary(extension.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(Reason.MALFORMED, str(error)) from error
        entries = []
        for peer_id, packed, expires_at in items:
            try:
                entries.append(self._check(part, peer_id, _decode_sealed(packed), expires_at))
            except (Refusal, msgspec.MsgspecError):
                continue
        return entries

    def _check(self, part: int, peer_id: str, sealed: bytes, expires_at: float) -> Entry:
        if part != part_of(peer_id):
            raise Refusal(Reason.WRONG_PEER, "an entry must be in its owner's part")
        peer = open_peer_record(sealed, self._run_id, peer_id, now=self._clock() - EXPIRY_GRACE_S)
        if expires_at != peer.expires_at:
            raise Refusal(Reason.WRONG_PEER, "an entry must have the signed expiry")
        return Entry(part, peer_id, sealed, expires_at)


class Entries:
    """The entries that a node stores for others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._parts: list[dict[str, tuple[Entry, bool]]] = [{} for _ in range(PARTS)]
        self.members: frozenset[str] = frozenset()
        """Connected members of the run; their entries are dropped last."""

    def put(self, entry: Entry, *, by_owner: bool) -> bool:
        """Store an entry unless a fresher one is here; in a full part the least valuable one is dropped.

        Identities are free but connections are not, so entries sent by their owners are kept over those sent by others.
        """
        part = self._parts[entry.part]
        held, brought = part.get(entry.peer_id, (entry, by_owner))
        if held.sealed != entry.sealed and held.expires_at >= entry.expires_at:
            return False
        part[entry.peer_id] = (entry, by_owner or brought)
        if len(part) > MAX_ENTRIES:
            self._drop_expired(part)
        if len(part) > MAX_ENTRIES:
            # Random among equals: an attacker who signs thousands of records cannot choose which ones are dropped.
            del part[min(part, key=lambda peer_id: (*self._worth(part[peer_id]), random.random()))]
        return entry.peer_id in part

    def of(self, part: int, max_bytes: int | None = None) -> list[Entry]:
        """Entries of one part; if they exceed `max_bytes`, the most valuable ones, random among equals."""
        held = self._parts[part]
        self._drop_expired(held)
        entries = [entry for entry, _ in held.values()]
        if max_bytes is None or sum(map(_num_bytes, entries)) <= max_bytes:
            return entries
        ranked = sorted(held.values(), key=lambda kept: (*self._worth(kept), random.random()), reverse=True)
        return _first((entry for entry, _ in ranked), max_bytes)

    def __len__(self) -> int:
        """Number of entries, including expired ones that are not yet dropped."""
        return sum(map(len, self._parts))

    def _worth(self, kept: tuple[Entry, bool]) -> tuple[bool, bool]:
        entry, by_owner = kept
        return entry.peer_id in self.members, by_owner

    def _drop_expired(self, part: dict[str, tuple[Entry, bool]]) -> None:
        now = self._clock()
        for peer_id in [peer_id for peer_id, (entry, _) in part.items() if entry.expires_at < now]:
            del part[peer_id]


def part_of(peer_id: str) -> int:
    """The part of a peer's record, in [0, PARTS)."""
    return hashlib.blake2b(peer_id.encode(), digest_size=1).digest()[0] % PARTS


def _num_bytes(entry: Entry) -> int:
    """Largest size of an entry in a reply."""
    return len(entry.sealed) + len(entry.peer_id) + 32


def _first(entries: Iterable[Entry], max_bytes: int) -> list[Entry]:
    taken = []
    for entry in entries:
        max_bytes -= _num_bytes(entry)
        if max_bytes < 0:
            break
        taken.append(entry)
    return taken
