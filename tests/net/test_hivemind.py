"""The hivemind transport on real daemons: discovery, crashes, late bootstraps, forgeries."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodes.boot.assemble import check_no_twin
from swarm.errors import ConfigError, IdentityInUse, OtherRun, PeerUnreachable, TransportError
from swarm.net.backends import fetch_manifest
from swarm.net.config import NetworkSettings
from swarm.net.hivemind import transport as hivemind_module
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import seal_manifest, seal_peer_record
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.types import SCHEMA_VERSION
from tests.nodes.processes import DEADLINE_S, gone

from .conftest import daemons
from .records import (
    LOOPBACK,
    drained,
    exchange,
    fast_settings,
    free_port,
    make_identity,
    make_manifest,
    of_version,
    signed,
    until,
)

pytestmark = [
    pytest.mark.network,
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

Start = Callable[..., HivemindTransport]


def test_importing_the_module_loads_neither_hivemind_nor_torch() -> None:
    modules = "swarm.net.hivemind.transport, swarm.net.services.requests"
    code = f"import sys, {modules}; print({{'hivemind', 'torch'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_the_private_parts_of_hivemind_are_those_of_the_version_tested() -> None:
    import inspect
    from importlib.metadata import version

    from hivemind.p2p import P2P
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
    from hivemind.proto.p2pd_pb2 import (
        DisconnectRequest,
        PSMessage,
        PSRequest,
        StreamHandlerRequest,
        StreamInfo,
        StreamOpenRequest,
    )

    advice = "net/hivemind/daemon.py was written against hivemind 1.1.12: check it against this version, then this test"
    assert version("hivemind") == "1.1.12", advice
    assert "_read_task" in inspect.getsource(ControlClient._ensure_persistent_conn), advice
    for message, fields in (
        (StreamOpenRequest, {"peer", "proto"}),
        (StreamHandlerRequest, {"addr", "proto"}),
        (StreamInfo, {"peer", "proto"}),
        (DisconnectRequest, {"peer"}),
    ):
        assert fields <= set(message.DESCRIPTOR.fields_by_name), advice
    assert "_client" in inspect.getsource(P2P.replicate), advice
    assert {"from", "data"} <= set(PSMessage.DESCRIPTOR.fields_by_name), advice
    assert PSRequest.Type.items() == [("GET_TOPICS", 0), ("LIST_PEERS", 1), ("PUBLISH", 2), ("SUBSCRIBE", 3)], advice


def test_a_node_that_knows_one_finds_the_other_through_the_dht(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    c = start("c", a.multiaddrs())
    everyone = {a.peer_id, b.peer_id, c.peer_id}
    for node in (a, b, c):
        until(lambda node=node: set(node.status().connected) == everyone - {node.peer_id}, "a full mesh")
    until(lambda: {record.model for record in c.peers()} == {"founder", "b"}, "both records are read")
    for record in c.peers():
        assert record.multiaddrs and record.run_id == make_manifest_id(a)
    # Without the node that introduced them the two still hear each other.
    a.close()
    until(lambda: b.status().connected == (c.peer_id,), "the first node's departure is seen")
    exchange(b, c, b"without a")
    exchange(c, b, b"back")


def test_no_answer_is_lost_over_quic(start: Start) -> None:
    quic = ("/ip4/127.0.0.1/udp/0/quic-v1",)
    a = start("founder", listen=quic)
    a.serve("/test/echo", lambda remote, request: request)
    b = start("b", a.multiaddrs(), listen=quic)
    until(lambda: b.status().connected == (a.peer_id,), "the two are connected")
    assert "/quic-v1" in b.observed(a.peer_id)[0]
    for num_bytes in (1, 1_000, 100_000) * 10:
        assert b.request(a.peer_id, "/test/echo", bytes(num_bytes), 60.0) == bytes(num_bytes)


def make_manifest_id(founder: HivemindTransport) -> str:
    manifest = founder.manifest()
    assert manifest is not None
    return manifest.run_id


def test_messages_flow_again_after_the_daemon_is_killed(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    a = start("founder")
    (daemon,) = daemons()
    b = start("b", a.multiaddrs())
    addresses = a.multiaddrs()
    until(lambda: a.status().connected and b.status().connected, "both connect")
    exchange(a, b, b"before")
    daemon.kill()
    until(lambda: a.counters().get("daemon_restarts") == 1, "the daemon's death is noticed")
    during = signed(a, b"during")
    a.publish(during)
    until(lambda: during in drained(b), "what was published meanwhile arrives")
    until(lambda: a.status().connected == (b.peer_id,), "connected again")
    assert a.multiaddrs() == addresses
    exchange(b, a, b"after")
    assert "exited with -9" in caplog.text
    a.serve("/test/ping", lambda remote, request: b"pong")

    def answered() -> bool:
        try:
            return bool(b.request(a.peer_id, MANIFEST_PROTOCOL, b"", 5.0))
        except PeerUnreachable:
            return False

    until(answered, "requests are answered again")


def test_an_unforeseen_error_costs_neither_the_session_nor_the_node(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = start("founder")

    def fail_once(connected: frozenset[str], members: frozenset[str]) -> None:
        monkeypatch.undo()
        raise LookupError("unforeseen")

    monkeypatch.setattr(a._member.peers, "update", fail_once)
    until(lambda: a.counters().get("loop_errors") == 1, "the error is counted")
    b = start("b", a.multiaddrs())
    until(b.manifest, "the node works on")
    assert a.counters().get("daemon_restarts", 0) == 0


def test_a_daemon_that_holds_too_much_is_started_anew_as_often_as_it_takes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hivemind_module, "MAX_RESTARTS_IN_A_ROW", 1)
    a = start("founder")
    b = start("b", a.multiaddrs())
    for times in (1, 2, 3):
        until(lambda: a._daemon and a._session and b.status().connected, "both are up")
        assert a._daemon is not None
        a._daemon._max_bytes = 1
        until(lambda times=times: a.counters().get("daemon_outgrown") == times, "it is started anew")  # type: ignore[misc]
    until(lambda: b.status().connected and a.status().connected, "they find each other again")
    exchange(a, b, b"still here")


def test_strange_addresses_in_a_record_do_no_harm(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    until(lambda: a.peers() and b.status().connected, "the two meet")
    genuine = a.peers()[0]
    hosts = ("/dns4/" + "a" * 70 + "/tcp/1", "/nonsense/1", "/ip4/999.1.1.1/udp/1/quic-v1", "/ip4/1.1.1.1/tcp/²", "/")
    records = []
    for host in hosts:
        stranger = Identity.generate().peer_id
        records.append(replace(genuine, peer_id=stranger, multiaddrs=(f"{host}/p2p/{stranger}",)))
    for useless in (("junk",), (), genuine.multiaddrs):
        records.append(replace(genuine, peer_id=Identity.generate().peer_id, multiaddrs=useless))
    a._member.peers.learn([(replace(record, expires_at=time.time() + 60), b"") for record in records])
    until(lambda: a.counters().get("dial_failures", 0) >= len(hosts), "every stranger was tried")
    exchange(a, b, b"still here")
    assert a.counters().get("daemon_restarts", 0) == 0


def test_a_daemon_that_keeps_failing_stops_the_transport_loudly(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    a = start("founder")
    from swarm.net.hivemind import daemon as daemon_module

    monkeypatch.setattr(hivemind_module, "MAX_RESTARTS_IN_A_ROW", 2)
    monkeypatch.setattr(daemon_module, "binary_path", lambda: Path(shutil.which("false") or "false"))
    daemons()[0].kill()

    def failed() -> bool:
        try:
            a.drain()
        except TransportError as error:
            return "3 times in a row" in str(error)
        return False

    until(failed, "the transport gives up")
    with pytest.raises(TransportError, match="in a row"):
        a.publish(b"x")
    with pytest.raises(TransportError, match="in a row"):
        a.request(a.peer_id, "/x", b"", 1.0)


def test_a_daemon_that_cannot_start_is_an_error_of_start(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.net.hivemind import daemon as daemon_module

    monkeypatch.setattr(daemon_module, "binary_path", lambda: Path(shutil.which("false") or "false"))
    with pytest.raises(TransportError, match="did not start"):
        start("founder")


def test_a_bootstrap_that_appears_later_is_joined_without_help(start: Start, tmp_path: Path) -> None:
    port = free_port()
    founder = make_identity(tmp_path, "founder")
    founder.close()
    address = f"/ip4/127.0.0.1/tcp/{port}"
    b = start("b", (f"{address}/p2p/{founder.peer_id}",))
    until(lambda: "no bootstrap reachable" in b.status().detail, "the failure is told")
    # A busy machine may look late, when the daemon no longer says "connection refused" but that it waits.
    assert f"{address}: " in b.status().detail and "next try in" in b.status().detail
    assert b.status().alone_since is not None
    b.publish(b"lost")
    assert b.counters()["no_run"] == 1
    a = start("founder", listen=(address,))
    until(lambda: b.status().connected == (a.peer_id,), "the bootstrap is joined")
    until(b.manifest, "the run is learned")
    exchange(b, a, b"found you")
    assert "connected to 1 peer" in b.status().detail


def test_manifest_can_be_fetched_without_a_node(start: Start) -> None:
    a = start("founder")
    port = free_port()
    dead = f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer_id}"
    run = fetch_manifest([dead, *a.multiaddrs()], 60.0)
    assert run.manifest == a.manifest() and run.sealed == a.sealed_manifest()
    with pytest.raises(OtherRun, match="expected the run 'other'"):
        fetch_manifest(a.multiaddrs(), 60.0, run_id="other")
    with pytest.raises(PeerUnreachable) as unknown:
        fetch_manifest([dead, *a.multiaddrs()], 60.0, run_id="other")
    assert not isinstance(unknown.value, OtherRun), "who does not answer may be in it"
    with pytest.raises(PeerUnreachable) as nobody:
        fetch_manifest([dead, "/dns4/no-such-host.invalid/tcp/1/p2p/" + a.peer_id], 60.0)
    assert f"/ip4/127.0.0.1/tcp/{port}: connection refused" in str(nobody.value)
    assert "no-such-host.invalid/tcp/1: unknown host" in str(nobody.value)
    with pytest.raises(ConfigError):
        fetch_manifest(["localhost:1234"], 60.0)
    with pytest.raises(IdentityInUse, match=f"own key is at /ip4/127.0.0.1/tcp/[0-9]+/p2p/{a.peer_id}: a copied direc"):
        check_no_twin(NetworkSettings(bootstrap=a.multiaddrs()), a.peer_id, Path("out"))
    check_no_twin(NetworkSettings(bootstrap=a.multiaddrs()), Identity.generate().peer_id, Path("out"))
    check_no_twin(NetworkSettings(bootstrap=(dead,)), dead.rpartition("/")[2], Path("out"))
    # Something listens, but is not the peer it is said to be.
    impostor = a.multiaddrs()[0].replace(a.peer_id, Identity.generate().peer_id)
    with pytest.raises(PeerUnreachable, match=r"127\.0\.0\.1"):
        fetch_manifest([impostor], 60.0)


def test_a_forged_manifest_is_refused(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    liar = start("liar")
    victim = make_identity(tmp_path, "victim")
    # The liar signs a manifest under the victim's run id, and serves it as its own.
    forged = seal_manifest(make_identity(tmp_path, "mallory"), make_manifest(victim))
    monkeypatch.setattr(liar._member.run, "sealed", forged)
    node = start("node", liar.multiaddrs())
    until(lambda: node.counters().get("refused_manifests"), "the forgery is counted")
    assert node.manifest() is None
    with pytest.raises(PeerUnreachable, match="manifest was refused: wrong_peer"):
        fetch_manifest(liar.multiaddrs(), 60.0)


def test_a_run_of_another_major_version_is_said_to_be_one(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    founder = start("founder")
    newer = of_version(founder.sealed_manifest() or b"", SCHEMA_VERSION + 1)
    monkeypatch.setattr(founder._member.run, "sealed", newer)
    said = (
        f"it speaks version {SCHEMA_VERSION + 1} of the protocol, this node version {SCHEMA_VERSION}: update swarm here"
    )
    with pytest.raises(PeerUnreachable, match=f"^this run cannot be joined: {said}"):
        fetch_manifest(founder.multiaddrs(), 20.0)
    node = start("node", founder.multiaddrs())
    until(lambda: said in node.status().split, "a node that waits for its run says what is wrong")
    assert node.manifest() is None


def test_the_directory_refuses_what_is_not_its_owners(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    until(lambda: a.peers() and b.peers(), "the directory works")
    genuine = a.peers()[0]
    mallory = Identity.generate()
    far = time.time() + 1_000_000
    its_own = seal_peer_record(mallory, replace(genuine, peer_id=mallory.peer_id))
    forged = [
        (b.peer_id, b"junk", far),
        (b.peer_id, {"no": "bytes"}, far),
        (b.peer_id, seal_peer_record(mallory, replace(genuine, multiaddrs=())), genuine.expires_at),
        (b.peer_id, its_own, genuine.expires_at),
        (mallory.peer_id, bytes(100_000), far),
    ]

    async def attack() -> tuple[list[bool], bool, bool, bool]:
        from hivemind.dht.node import DHTNode

        from swarm.net.hivemind.dht import key_of
        from swarm.net.hivemind.dht_entries import PARTS, part_of

        def key(peer_id: str, away: int = 0) -> str:
            return key_of(make_manifest_id(a), (part_of(peer_id) + away) % PARTS)

        node = await DHTNode.create(initial_peers=list(a.multiaddrs() + b.multiaddrs()), nat_port_map=False)
        try:
            stored = [
                await node.store(key(subkey), value, expiry, subkey=subkey, exclude_self=True)
                for subkey, value, expiry in forged
            ]
            other_key = await node.store("other key", b"x", time.time() + 30, exclude_self=True)
            own = replace(genuine, peer_id=mallory.peer_id, model="mallory")
            sealed = seal_peer_record(mallory, own)
            mine = {"subkey": mallory.peer_id, "exclude_self": True}
            misplaced = await node.store(key(mallory.peer_id, away=1), sealed, own.expires_at, **mine)
            honest = await node.store(key(mallory.peer_id), sealed, own.expires_at, **mine)
            return stored, other_key, misplaced, honest
        finally:
            await node.shutdown()

    assert asyncio.run(attack()) == ([False] * len(forged), False, False, True)
    c = start("c", a.multiaddrs())
    until(lambda: {record.model for record in c.peers()} >= {"founder", "b"}, "a newcomer reads the genuine records")
    assert all(record.multiaddrs for record in c.peers())


@contextmanager
def node_process(folder: Path, listen: str = LOOPBACK[0]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    script = Path(__file__).with_name("node_process.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), listen], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def test_a_killed_node_leaves_no_daemon_and_can_come_back(start: Start, tmp_path: Path) -> None:
    with node_process(tmp_path) as (process, address):
        (daemon,) = daemons(process.pid)
        b = start("b", (address,))
        until(b.manifest, "the run is learned")
        b.publish(signed(b, b"hello"))
        until(b.drain, "the node answers")
        process.kill()
        assert gone([daemon]), "its daemon goes"
    until(lambda: not b.status().connected, "its loss is seen")
    with node_process(tmp_path, address.rpartition("/p2p/")[0]) as (_, again):
        assert again == address
        until(lambda: b.status().connected, "the node is found again where it was")
        b.publish(signed(b, b"again"))
        until(b.drain, "the node answers again")


def test_a_bootstrap_killed_in_the_middle_is_missed_by_nobody_and_comes_back(start: Start, tmp_path: Path) -> None:
    with node_process(tmp_path) as (process, address):
        b, c = start("b", (address,)), start("c", (address,))
        for node in (b, c):
            until(lambda node=node: len(node.status().connected) == 2, "everyone is connected to everyone")
        process.kill()
        process.wait()
        exchange(b, c, b"at once")
        for node in (b, c):
            until(lambda node=node: len(node.status().connected) == 1, "its loss is seen")
        exchange(c, b, b"and later")
        late = start("late", (address, *b.multiaddrs()))
        until(late.manifest, "another tells of the run")
        exchange(late, c, b"through another")
    with node_process(tmp_path, address.rpartition("/p2p/")[0]):
        for node in (b, c, late):
            until(lambda node=node: len(node.status().connected) == 3, "it is found again where it was")


def test_ctrl_c_reaches_the_whole_process_group_and_ends_cleanly(tmp_path: Path) -> None:
    with node_process(tmp_path) as (process, _):
        (daemon,) = daemons(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert gone([daemon]), "the daemon goes"


def test_folders_of_killed_nodes_are_swept(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stale, fresh, used = (tmp_path / f"swarm-p2pd-{name}" for name in ("stale", "fresh", "used"))
    for folder in (stale, fresh, used):
        folder.mkdir()
    (used / "control.sock").touch()
    for folder in (stale, used):
        os.utime(folder, (0, 0))
    start("founder").close()
    assert sorted(folder.name for folder in tmp_path.glob("swarm-p2pd-*")) == ["swarm-p2pd-fresh", "swarm-p2pd-used"]


def test_an_identity_without_a_file_and_a_second_start_are_refused(start: Start) -> None:
    with pytest.raises(TransportError, match="file"):
        HivemindTransport(fast_settings(), Identity.generate())
    node = start("founder")
    with pytest.raises(TransportError, match="once"):
        node.start()
