"""Records as they are on the wire, for whoever writes another client: `python -m tests.net.vectors` writes the file.

Each has the seed of its signer's key, the sealed bytes, and what is in it; `later` is the same with fields that this
version does not know, in the body and in every part of the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from swarm.net.records.envelope import read_record, seal_payload, wrap
from swarm.net.records.identity import Identity
from swarm.net.records.offers import Offers, open_offers
from swarm.net.records.wire import (
    Announcement,
    Record,
    check_seal,
    make_run_id,
    open_announcement,
    open_manifest,
    open_peer_record,
    open_snapshot,
)
from swarm.types import (
    ChunkList,
    Completion,
    DatasetRef,
    MemberSummary,
    Offer,
    PeerRecord,
    PolicyId,
    RolloutGroup,
    RunManifest,
    Sampling,
    SnapshotManifest,
    TaskSpec,
    VersionSpan,
)

from .records import opened

FILE = Path(__file__).with_name("vectors.json")
SEED = bytes(range(32))
NOW = 1_700_000_000.0
ADDED = {"added_later": {"deep": [1, "two", None]}}


class Vector(Struct, frozen=True):
    """One record."""

    kind: str
    seed: str
    """Of the signer's Ed25519 key, hexadecimal."""
    record: str
    """The sealed bytes, hexadecimal."""
    later: str
    """The same with further fields, hexadecimal."""
    content: object
    """What is in it; bytes as base64."""
    content_ids: tuple[str, str] | None = None
    """Of a group: of `record` and of `later`."""


def identity_of(seed: bytes) -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))


FOUNDER = identity_of(SEED)
RUN_ID = make_run_id("vectors", FOUNDER.peer_id)
RECORDS: dict[str, Record | Offers] = {
    "group": RolloutGroup(
        run_id=RUN_ID,
        peer_id=FOUNDER.peer_id,
        sequence=1_700_000_000_001,
        created_at=NOW,
        policy=PolicyId("tiny", "0123abcd", 7),
        sampling=Sampling(temperature=0.7, top_k=40, stop=("\n\n",)),
        question=DatasetRef("sums", "openai/gsm8k", "main", "options", 42, "question"),
        completions=(
            Completion("four", "stop", (1, 2), (-0.5, -0.25), (VersionSpan(6, 1), VersionSpan(7, 1))),
            Completion("f\N{LATIN SMALL LETTER U WITH DIAERESIS}nf", "length"),
        ),
        rewards=(1.0, 0.0),
        log_expectation=-0.75,
    ),
    "manifest": RunManifest(
        run_id=RUN_ID,
        founder=FOUNDER.peer_id,
        created_at=NOW,
        tasks=(TaskSpec("gcd", "reasoning_gym", 1.0, {"dataset": "gcd", "options": {"max": 3}}),),
        group_size=8,
        local=4,
        external=4,
        max_record_bytes=1_000_000,
        max_completion_chars=65_536,
    ),
    "peer": PeerRecord(
        RUN_ID,
        FOUNDER.peer_id,
        ("/ip4/192.0.2.1/tcp/4001",),
        "tiny",
        ("gcd",),
        "peer",
        "0.1.0",
        NOW + 60,
        summary=MemberSummary(rounds=400, given=1_600, used=1_200, correct=190, asked=256, evaluated_at=350),
    ),
    "large": Announcement(RUN_ID, FOUNDER.peer_id, bytes(range(16)), 300_000, (bytes(16), bytes(range(16, 32)))),
    "offers": Offers(
        RUN_ID,
        FOUNDER.peer_id,
        (Offer(bytes(range(16)), bytes(range(16, 32)), 3_000, "gcd", 8, 0.5, 0.25, bytes(8), 120, bytes(range(12))),),
    ),
    "snapshot": SnapshotManifest(
        RUN_ID,
        FOUNDER.peer_id,
        8,
        bytes(range(32)),
        ChunkList(100_000, 65_536, (bytes(16), bytes(range(16)))),
        7,
        ChunkList(1_000, 65_536, (bytes(range(16, 32)),)),
    ),
}
OPENERS: dict[str, Callable[[bytes], object]] = {
    "group": lambda record: opened(record, RUN_ID, now=NOW).group,
    "manifest": lambda record: open_manifest(record, RUN_ID, now=NOW),
    "peer": lambda record: open_peer_record(record, RUN_ID, now=NOW),
    "large": lambda record: open_announcement(check_seal(read_record(record, 2**20), RUN_ID), RUN_ID, 1_000_000),
    "offers": lambda record: Offers(
        RUN_ID, *msgspec.structs.astuple(open_offers(check_seal(read_record(record, 2**20), RUN_ID), RUN_ID))[:3]
    ),
    "snapshot": lambda record: open_snapshot(record, RUN_ID, FOUNDER.peer_id),
}


def with_more(value: object) -> object:
    """Every map in a record with one more field; but for the settings of a task, which are the task's."""
    if isinstance(value, dict):
        inner = {key: each if key == "settings" else with_more(each) for key, each in value.items()}
        return inner | ADDED
    return [with_more(each) for each in value] if isinstance(value, list) else value


def later(record: bytes) -> bytes:
    """The record as a later version would send it."""
    body = read_record(record, len(record)).body
    content = with_more(msgspec.msgpack.decode(zstandard.decompress(body.payload)))
    payload = zstandard.compress(msgspec.msgpack.encode(content))
    return wrap(FOUNDER, msgspec.msgpack.encode({**msgspec.structs.asdict(body), "payload": payload, **ADDED}))


def make_vectors() -> list[Vector]:
    return [_make_vector(kind, content) for kind, content in RECORDS.items()]


def _make_vector(kind: str, content: Record | Offers) -> Vector:
    record = seal_payload(FOUNDER, RUN_ID, kind, msgspec.msgpack.encode(content))  # type: ignore[arg-type]
    ids = [opened(each, RUN_ID, now=NOW).content_id for each in (record, later(record))] if kind == "group" else None
    return Vector(
        kind,
        SEED.hex(),
        record.hex(),
        later(record).hex(),
        msgspec.to_builtins(content),
        cast("tuple[str, str] | None", tuple(ids) if ids else None),
    )


def read_vectors() -> list[Vector]:
    return msgspec.json.decode(FILE.read_bytes(), type=list[Vector])


if __name__ == "__main__":
    FILE.write_text(json.dumps([msgspec.to_builtins(each) for each in make_vectors()], indent=1) + "\n")
