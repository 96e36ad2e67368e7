"""The wire's schema, held by records that were sealed once: what they are must not change without a major version."""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from swarm.net.records.envelope import read_record, wrap
from swarm.types import SCHEMA_VERSION

from .vectors import ADDED, NOW as MADE_AT, OPENERS, RECORDS, RUN_ID, Vector, identity_of, later, opened, read_vectors

VECTORS = read_vectors()
each_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.kind)


def test_there_is_one_of_every_kind() -> None:
    assert [vector.kind for vector in VECTORS] == list(RECORDS) == list(OPENERS)


@each_vector
def test_it_opens_to_what_it_was_made_of(vector: Vector) -> None:
    expected = msgspec.convert(vector.content, type(RECORDS[vector.kind]))
    assert expected == RECORDS[vector.kind]
    for sealed in (vector.record, vector.later):
        assert OPENERS[vector.kind](bytes.fromhex(sealed)) == expected


@each_vector
def test_sealing_it_again_gives_the_same_bytes(vector: Vector) -> None:
    """But for those of zstd's frame, which are the compressor's to choose."""
    record, identity = bytes.fromhex(vector.record), identity_of(bytes.fromhex(vector.seed))
    sealed = read_record(record, len(record))
    assert sealed.envelope.schema_version == SCHEMA_VERSION and sealed.body.peer_id == identity.peer_id
    assert msgspec.msgpack.encode(RECORDS[vector.kind]) == zstandard.decompress(sealed.body.payload)
    assert wrap(identity, msgspec.msgpack.encode(sealed.body)) == record


@each_vector
def test_the_later_one_has_more_in_it(vector: Vector) -> None:
    record = bytes.fromhex(vector.later)
    sealed = read_record(record, len(record))
    assert msgspec.msgpack.decode(sealed.envelope.body).items() >= ADDED.items()
    inside = msgspec.msgpack.decode(zstandard.decompress(sealed.body.payload))
    expected = zstandard.decompress(read_record(later(bytes.fromhex(vector.record)), 2**20).body.payload)
    assert inside.items() >= ADDED.items() and msgspec.msgpack.encode(inside) == expected


def test_the_content_id_is_a_digest_of_what_was_sent() -> None:
    vector = VECTORS[0]
    found = tuple(opened(bytes.fromhex(each), RUN_ID, now=MADE_AT).content_id for each in (vector.record, vector.later))
    assert found == vector.content_ids and found[0] != found[1]
