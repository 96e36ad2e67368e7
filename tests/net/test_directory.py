"""The directory's parts, one at a time: what is let in, what is kept, what is asked for; and its process."""

from __future__ import annotations

import asyncio
import inspect
import math
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import msgpack
import psutil
import pytest
from hypothesis import given, strategies as st

from swarm.children import receive
from swarm.errors import DirectoryLost, Refusal
from swarm.net.hivemind.dht_entries import DICTIONARY_CODE, MAX_ENTRIES, PARTS, Entries, Entry, EntryChecker, part_of
from swarm.net.hivemind.directory import MAX_MESSAGE_BYTES, Directory
from swarm.net.records.identity import Identity
from swarm.net.records.wire import seal_peer_record
from swarm.types import PeerRecord
from tests.net.conftest import directories

NOW = 1_000.0
RUN = "run-" + "0" * 20
KEYS = {bytes([part]) * 20: part for part in range(PARTS)}


def entry(expires_at: float = NOW + 100.0, part: int | None = None) -> Entry:
    """What a new identity signed."""
    while True:
        identity = Identity.generate()
        if part in (None, part_of(identity.peer_id)):
            record = PeerRecord(RUN, identity.peer_id, (), "tiny", (), "peer", "0.1.0", expires_at)
            sealed = seal_peer_record(identity, record)
            return Entry(part_of(identity.peer_id), identity.peer_id, sealed, expires_at)


def checker() -> EntryChecker:
    return EntryChecker(RUN, KEYS, lambda: NOW)


def key(part: int) -> bytes:
    return bytes([part]) * 20


def dictionary(*items: object) -> bytes:
    return msgpack.packb(msgpack.ExtType(DICTIONARY_CODE, msgpack.packb([math.inf, NOW, list(items)])))


def row(one: Entry) -> list[object]:
    return [one.peer_id, one.packed, one.expires_at]


def test_an_entry_is_let_in_alone_and_in_a_part() -> None:
    one = entry()
    assert checker().open(key(one.part), msgpack.packb(one.peer_id), one.packed, one.expires_at) == one
    assert checker().open_part(key(one.part), dictionary(row(one)), 10_000) == [one]


def test_bad_entries_of_a_part_are_left_out_and_void_no_other() -> None:
    one, elsewhere, late = entry(part=3), entry(part=4), entry(NOW + 10_000.0, part=3)
    forged = [*row(entry(part=3))[:2], math.inf]
    part = dictionary(row(elsewhere), row(late), row(one), forged, [one.peer_id, b"\xc1", 1.0])
    assert checker().open_part(key(3), part, 10_000) == [one]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 9_000,
        dictionary(*[["x", b"", 1.0]] * (MAX_ENTRIES + 1)),
        dictionary([1, b"", 1.0]),
        dictionary(["x" * 100, b"", 1.0]),
        dictionary(["x", bytes(5_000), 1.0]),
        dictionary(["x", b"", None]),
        dictionary(["x", msgpack.ExtType(0x50, b"x"), 1.0]),
        msgpack.packb(msgpack.ExtType(0x40, msgpack.packb([math.inf, NOW, []]))),
        dictionary() + b"\x00",
        bytes(10_001),
    ],
)
def test_what_is_no_part_is_refused_before_it_is_decoded(bad: bytes) -> None:
    with pytest.raises(Refusal):
        checker().open_part(key(3), bad, 10_000)


@given(st.binary(max_size=300), st.binary(max_size=300), st.floats())
def test_any_bytes_are_refused_and_do_no_more(subkey: bytes, value: bytes, expires_at: float) -> None:
    for attempt in (
        lambda: checker().open(key(1), subkey, value, expires_at),
        lambda: checker().open_part(key(1), value, 10_000),
        lambda: checker().open(value, subkey, value, expires_at),
    ):
        with pytest.raises(Refusal):
            attempt()


def test_only_a_runs_own_keys_are_there() -> None:
    one = entry()
    for other in (b"", bytes([99]) * 20, key((one.part + 1) % PARTS)):
        with pytest.raises(Refusal):
            checker().open(other, msgpack.packb(one.peer_id), one.packed, one.expires_at)


def test_a_fresher_entry_takes_the_place_of_its_owners_older_one() -> None:
    entries = Entries(lambda: NOW)
    identity = Identity.generate()
    records = [PeerRecord(RUN, identity.peer_id, (), "tiny", (), "peer", "0.1.0", NOW + life) for life in (10.0, 20.0)]
    old, new = (
        Entry(part_of(one.peer_id), one.peer_id, seal_peer_record(identity, one), one.expires_at) for one in records
    )
    assert entries.put(old, by_owner=False) and entries.put(new, by_owner=False)
    assert not entries.put(old, by_owner=True), "an older one is a replay, whoever brings it"
    assert entries.put(new, by_owner=True), "the same again is well"
    assert entries.of(new.part) == [new]


def test_a_full_part_keeps_what_owners_brought_and_who_is_in_the_run() -> None:
    entries = Entries(lambda: NOW)
    brought = [made(f"owner-{index}") for index in range(MAX_ENTRIES // 2)]
    members = [made(f"member-{index}") for index in range(MAX_ENTRIES // 4)]
    entries.members = frozenset(member.peer_id for member in members)
    assert all(entries.put(one, by_owner=True) for one in brought)
    assert all(entries.put(one, by_owner=False) for one in members)
    for index in range(10 * MAX_ENTRIES):
        entries.put(made(f"fake-{index}"), by_owner=False)
    held = entries.of(0)
    assert len(held) == MAX_ENTRIES and {*brought, *members} <= set(held)
    assert len({one.peer_id for one in held} - {f"fake-{index}" for index in range(MAX_ENTRIES)}) > len(brought), (
        "the first to come have no advantage"
    )


def test_entries_go_when_they_expire() -> None:
    now = NOW
    entries = Entries(lambda: now)
    assert entries.put(made("a", NOW + 1.0), by_owner=True) and entries.put(made("b", NOW + 3.0), by_owner=True)
    now = NOW + 2.0
    assert [one.peer_id for one in entries.of(0)] == ["b"]


def test_an_answer_holds_no_more_than_it_may_and_the_worthiest() -> None:
    entries = Entries(lambda: NOW)
    for index in range(50):
        entries.put(made(f"guest-{index}", size=500), by_owner=False)
    entries.put(made("owner", size=500), by_owner=True)
    some = entries.of(0, 5_000)
    assert 5 < len(some) < 10 and "owner" in {one.peer_id for one in some}
    assert len(entries.of(0)) == 51


def made(peer_id: str, expires_at: float = NOW + 100.0, size: int = 10) -> Entry:
    return Entry(0, peer_id, bytes(size), expires_at)


def test_a_sender_that_asks_for_too_much_must_wait_and_nobody_else() -> None:
    from swarm.net.hivemind.dht import ALLOWANCE_BYTES, ALLOWANCE_BYTES_PER_S, MAX_SENDERS, Allowances, Refused

    now = NOW
    allowances = Allowances(lambda: now)
    for _ in range(ALLOWANCE_BYTES // 2**16 + 1):
        allowances.admit("greedy")
        allowances.charge("greedy", 2**16)
    with pytest.raises(Refused):
        allowances.admit("greedy")
    allowances.admit("modest")
    now += 2 * 2**16 / ALLOWANCE_BYTES_PER_S
    allowances.admit("greedy")
    for index in range(2 * MAX_SENDERS):
        allowances.charge(f"sender {index}", 1)
    assert len(allowances._rates) == MAX_SENDERS


def test_the_private_parts_of_hivemind_are_those_of_the_version_tested() -> None:
    from hivemind.dht.node import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.dht.routing import RoutingTable
    from hivemind.p2p import P2P, ServicerBase
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

    advice = "dht_protocol.py, light_import.py are written against hivemind 1.1.12: check them, then this test"
    assert version("hivemind") == "1.1.12", advice
    add = inspect.signature(P2P._add_protobuf_unary_handler).parameters
    assert list(add) == ["self", "handle_name", "handler", "input_protobuf_type", "balanced"], advice
    call = inspect.signature(P2P._call_unary_protobuf_handler).parameters
    assert list(call) == ["self", "peer_id", "handle_name", "input", "output_protobuf_type"], advice
    assert list(inspect.signature(ServicerBase._get_handle_name).parameters) == ["namespace", "method_name"], advice
    for task in ("self._read_task", "self._write_task"):
        assert task in inspect.getsource(ControlClient._ensure_persistent_conn), advice
    for used in ("protocol.storage.get", "protocol.storage.store", "protocol.record_validator", "protocol.cache.get"):
        assert used in inspect.getsource(DHTNode), advice
    for method in ("call_ping", "call_find", "call_store", "rpc_ping", "rpc_find", "rpc_store", "update_routing_table"):
        assert inspect.iscoroutinefunction(getattr(DHTProtocol, method)), advice
    assert "self.uid_to_peer_id" in inspect.getsource(RoutingTable.__init__), advice


def test_the_process_loads_no_torch_and_takes_little_memory() -> None:
    code = (
        "import swarm.net.hivemind.directory_process, psutil, sys;"
        "print('torch' in sys.modules, psutil.Process().memory_info().rss)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert printed[0] == "False" and int(printed[1]) < 100 * 2**20
    help_free = "import swarm.net.hivemind.session, swarm.net.hivemind.directory, sys; print('hivemind' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", help_free], capture_output=True, text=True).stdout == "False\n"


def test_a_process_that_is_killed_or_ends_is_lost_with_what_it_says(tmp_path: Path) -> None:
    async def lose(kill: bool) -> tuple[str, int]:
        async with Directory.running() as directory:
            if kill:
                psutil.Process(directory.pid).kill()
            with pytest.raises(DirectoryLost) as loss:
                # There is no daemon.
                await directory.open(tmp_path / "control.sock", RUN, keeps=True)
        return str(loss.value), directory.pid

    for kill, code in ((True, "exited with -9"), (False, "exited with 1")):
        text, pid = asyncio.run(lose(kill))
        assert code in text and not psutil.pid_exists(pid)


@pytest.mark.parametrize("steps", range(1, 13, 2))
def test_a_cancellation_at_any_moment_leaves_no_process(steps: int) -> None:
    async def live() -> None:
        async with Directory.running():
            await asyncio.Event().wait()

    async def cancel() -> None:
        living = asyncio.create_task(live())
        for _ in range(steps):
            await asyncio.sleep(0)
        living.cancel()
        with pytest.raises(asyncio.CancelledError):
            await living

    asyncio.run(cancel())
    assert directories() == []


@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff", (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big")])
def test_a_message_that_is_too_large_is_not_waited_for(said: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(said)
        await receive(reader, MAX_MESSAGE_BYTES)

    with pytest.raises(ValueError, match="must have at most"):
        asyncio.run(read())


def test_mute_members_take_no_time_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.net.hivemind import dht

    now = 0.0
    monkeypatch.setattr(dht, "time", SimpleNamespace(monotonic=lambda: now))
    members = [Identity.generate().peer_id for _ in range(200)]
    honest = set(members[:3])
    asked: list[str] = []
    table: set[object] = set()

    async def call_ping(peer: object) -> object | None:
        asked.append(str(peer))
        if str(peer) not in honest:
            return None
        table.add(peer)
        return peer

    protocol = SimpleNamespace(routing_table=table, call_ping=call_ping)
    directory = dht.PeerDirectory(SimpleNamespace(protocol=protocol), RUN, lambda: NOW, Entries(lambda: NOW))
    met: frozenset[str] = frozenset()
    for _ in range(100):
        before = len(asked)
        met = asyncio.run(directory.add_peers(members, first=False))
        assert len(asked) - before <= dht.MAX_PINGED_AT_ONCE
        now += 2.0
    assert met == honest
    assert max(map(asked.count, honest)) == 1 and max(map(asked.count, members)) <= 8, "the silent less and less often"
    now += 2 * dht.MAX_SILENT_PAUSE_S
    honest.update(members)
    for _ in range(10):
        met = asyncio.run(directory.add_peers(members, first=False))
    assert met == set(members), "they are asked again"
