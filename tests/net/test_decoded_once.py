"""A received record is taken apart, verified, decompressed and decoded once on its whole way to the round."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
import zstandard
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.config import NetworkSettings
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.membership.member import Member, Profile
from swarm.net.records import envelope as envelope_module
from swarm.net.records.identity import Identity
from swarm.net.records.large import announce
from swarm.net.records.stores import RecordStore
from swarm.net.records.wire import make_run_id, seal
from swarm.net.trust.accounts import SafetySettings
from swarm.net.trust.exchange import Exchange
from swarm.net.trust.record_admission import RecordAdmission
from swarm.reasons import Reason
from swarm.types import Arrival, Completion, NetworkStatus

from .records import make_group, sealed_manifest

OWN, ALICE = Identity.generate(), Identity.generate()
RUN_ID = make_run_id("demo", ALICE.peer_id)
ONCE = {"Envelope": 1, "Body": 1, "verify": 1, "decompress": 1, "RolloutGroup": 1}
NOW = 1_000.0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what costs time: MessagePack decodes by type, wherever they are made; signatures; decompressions."""
    done: Counter[str] = Counter()
    decode, verify = msgspec.msgpack.decode, envelope_module.verify

    def counting_decode(*arguments, **options):  # type: ignore[no-untyped-def]
        done[getattr(options.get("type"), "__name__", "untyped")] += 1
        return decode(*arguments, **options)

    def counting_verify(*arguments: object) -> bool:
        done["verify"] += 1
        return verify(*arguments)  # type: ignore[arg-type]

    class CountingDecompressor:
        def __init__(self) -> None:
            self._real = zstandard.ZstdDecompressor()

        def decompress(self, *arguments, **options):  # type: ignore[no-untyped-def]
            done["decompress"] += 1
            return self._real.decompress(*arguments, **options)

    monkeypatch.setattr(msgspec.msgpack, "decode", counting_decode)
    monkeypatch.setattr(envelope_module, "verify", counting_verify)
    monkeypatch.setattr(envelope_module, "zstandard", _Zstandard(CountingDecompressor))
    return done


class _Zstandard:
    """The module, with another decompressor."""

    ZstdError = zstandard.ZstdError
    ZstdCompressor = zstandard.ZstdCompressor
    frame_content_size = staticmethod(zstandard.frame_content_size)

    def __init__(self, decompressor: type) -> None:
        self.ZstdDecompressor = decompressor


class Door:
    """As much of a transport as an exchange asks for, over a member without a network."""

    def __init__(self) -> None:
        settings = NetworkSettings(max_record_bytes=8 * 2**20)
        self.member = Member(settings, OWN, Profile(), sealed_manifest(ALICE))
        self.member.peers.update(frozenset({ALICE.peer_id}), frozenset())

    def status(self) -> NetworkStatus:
        return self.member.status()

    def drain(self) -> list[Arrival]:
        return self.member.records.inbox.drain()

    def complaints(self) -> list[tuple[str, Reason]]:
        return self.member.complaints.take()

    def trust(self, peer_ids: object, known: object = (), newcomers: float = 1.0) -> None:
        """Whoever was of use."""


@pytest.fixture
def door() -> Door:
    return Door()


def received(door: Door | MemoryTransport) -> int:
    groups, refused = Exchange(door, OWN, clock=lambda: NOW).receive()  # type: ignore[arg-type]
    assert refused == {}
    return len(groups)


def group_record(num_chars: int = 10) -> bytes:
    # Texts that hardly compress.
    chance = random.Random(0)
    texts = ("".join(map(chr, chance.choices(range(0x4E00, 0x9C00), k=num_chars))) for _ in range(30))
    group = make_group(RUN_ID, ALICE.peer_id)
    completions = tuple(Completion(text, "stop") for text in texts)
    return seal(ALICE, RUN_ID, "group", replace(group, completions=completions, rewards=(0.0,) * 30))


def test_by_gossip(door: Door, work: Counter[str]) -> None:
    record = group_record()
    work.clear()
    for _ in range(3):
        door.member.records.receive_gossip(ALICE.peer_id, record)
    assert received(door) == 1
    assert work == ONCE, "the same bytes again are known without a look"


def test_by_repair(door: Door, work: Counter[str]) -> None:
    record = group_record()
    work.clear()
    door.member.records.receive_repaired("helper", record, 3.0)
    assert received(door) == 1
    assert work == ONCE


def test_a_large_one(door: Door, work: Counter[str]) -> None:
    record = group_record(25_000)
    assert len(record) > 1_000_000
    work.clear()
    door.member.records.receive_gossip(ALICE.peer_id, announce(ALICE, RUN_ID, record))
    assert work == {"Envelope": 1, "Body": 1, "verify": 1, "decompress": 1, "Announcement": 1}
    work.clear()
    taken = door.member.records.large.take()
    assert taken is not None
    taken[1].feed(record)
    door.member.records.receive_fetched(taken[1])
    assert received(door) == 1
    assert work == ONCE


def test_in_one_process_the_envelope_is_opened_once_for_all(work: Counter[str]) -> None:
    hub = MemoryHub()
    sender, *receivers = (
        MemoryTransport(hub, identity.peer_id, sealed_manifest(ALICE)) for identity in (ALICE, OWN, Identity.generate())
    )
    for transport in (sender, *receivers):
        transport.start()
    record = group_record()
    work.clear()
    sender.publish(record)
    assert [received(receiver) for receiver in receivers] == [1, 1]
    assert work == {**ONCE, "decompress": 2, "RolloutGroup": 2}, "each by its own limits"


def test_what_is_over_budget_or_forged_is_not_decoded(door: Door, work: Counter[str]) -> None:
    forged = group_record()[:-1] + b"?"
    with pytest.raises(PeerUnreachable):
        door.member.records.receive_gossip(ALICE.peer_id, forged)
    assert "RolloutGroup" not in work and "decompress" not in work
    work.clear()
    ahead = seal(ALICE, RUN_ID, "group", make_group(RUN_ID, ALICE.peer_id, 1))
    door.member.records.admission = RecordAdmission(
        NetworkSettings(safety=SafetySettings(groups_per_min=0.001), shelf_records=1)
    )
    with pytest.raises(PeerUnreachable):
        for _ in range(2):
            door.member.records.receive_repaired("helper", ahead, 3.0)
            door.member.records.store = RecordStore(1, 10**6, 60.0)  # as if it were unknown again
    assert work == {**ONCE, "Envelope": 2, "Body": 2}, "the second time only its label was looked at"
