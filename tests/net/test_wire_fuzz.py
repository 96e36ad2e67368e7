"""A fuzzer on everything that opens a stranger's record: one kind of error, little memory, little time."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable

import msgspec
import zstandard

from swarm.errors import Refusal
from swarm.net.records.envelope import SignedRecord, read_record, wrap
from swarm.net.records.identity import Identity
from swarm.net.records.offers import open_offers, seal_offers
from swarm.net.records.wire import (
    Announcement,
    Limits,
    check_seal,
    make_run_id,
    open_announcement,
    open_manifest,
    open_peer_record,
    seal,
    seal_announcement,
    seal_manifest,
    seal_peer_record,
)
from swarm.types import Offer, PeerRecord
from tests.fuzz.mutations import mutated

from .records import make_group, make_manifest, opened

ALICE = Identity.generate()
RUN = make_run_id("demo", ALICE.peer_id)
NOW = 1_000.0
MAX_BYTES = 20_000
NUM_RECORDS = 1_000


def checked(record: bytes) -> SignedRecord:
    return check_seal(read_record(record, MAX_BYTES), RUN)


OPENERS: dict[str, Callable[[bytes], object]] = {
    "sealed": lambda record: read_record(record, MAX_BYTES).stated_bytes,
    "signed": checked,
    "group": lambda record: opened(record, RUN, Limits(max_record_bytes=MAX_BYTES), now=NOW),
    "manifest": open_manifest,
    "peer": lambda record: open_peer_record(record, RUN, now=NOW),
    "large": lambda record: open_announcement(checked(record), RUN, MAX_BYTES),
    "offers": lambda record: open_offers(checked(record), RUN),
}
SEEDS = [
    seal(ALICE, RUN, "group", make_group(RUN, ALICE.peer_id)),
    seal_manifest(ALICE, make_manifest(ALICE)),
    seal_peer_record(
        ALICE, PeerRecord(RUN, ALICE.peer_id, ("/ip4/1.2.3.4/tcp/1",), "m", ("t",), "peer", "0", NOW + 60)
    ),
    seal_offers(ALICE, RUN, [Offer(bytes(16), bytes(16), 5_000, "gcd", 8, 0.5, 0.5, bytes(8), 60)] * 9),
    seal_announcement(ALICE, Announcement(RUN, ALICE.peer_id, bytes(16), 5_000, (bytes(16),))),
]


def resigned(record: bytes, chance: random.Random) -> bytes:
    """The record with a mutated body or payload under a good signature; the frame may lie about its size."""
    body = read_record(record, len(record)).body
    if chance.random() < 0.2:
        return wrap(ALICE, mutated(msgspec.msgpack.encode(body), chance))
    inside = mutated(zstandard.decompress(body.payload), chance)
    payload = zstandard.compress(inside if chance.random() < 0.97 else bytes(2**24))
    if chance.random() < 0.3:
        payload = mutated(payload, chance)
    return wrap(ALICE, msgspec.msgpack.encode(msgspec.structs.replace(body, payload=payload)))


def test_no_record_raises_anything_else_or_takes_much_memory_or_time() -> None:
    chance = random.Random(7)
    records = []
    for _ in range(NUM_RECORDS):
        seed = chance.choice(SEEDS)
        records.append(resigned(seed, chance) if chance.random() < 0.5 else mutated(seed, chance))
    reasons: Counter[str] = Counter()
    slowest_s = 0.0
    tracemalloc.start()
    for record in records:
        for opener in OPENERS.values():
            began = time.thread_time()
            try:
                opener(record)
            except Refusal as refusal:
                reasons[refusal.reason] += 1
            slowest_s = max(slowest_s, time.thread_time() - began)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Of manifests, the largest kind, 2 MiB of payload are opened; a 16 MiB one must never be.
    assert peak_bytes < 8 * 2**20
    assert slowest_s < 1, "of this thread's own time, whatever else the machine does"
    assert set(reasons) >= {"malformed", "bad_signature", "oversized"} and reasons.total() > NUM_RECORDS
