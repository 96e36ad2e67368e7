"""Child processes: their environment, their messages, and every way in which they can end."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import psutil
import pytest
from hypothesis import given, strategies as st

from nodes.page import page_of
from swarm.children import (
    Backoff,
    Channel,
    Child,
    Duplex,
    Oversized,
    Waker,
    inherited,
    python_path,
    receive,
    spare_loopback,
    user_path,
    wait,
)
from swarm.environments.judge import JudgeSettings
from swarm.extras.judging.service import JudgeProcess
from swarm.net.hivemind.daemon import Daemon
from swarm.net.hivemind.directory import Directory

LONG_S = 120.0
MAX_BYTES = 1_000
SECRETS = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "VLLM_API_KEY"),
    *("GITHUB_TOKEN", "SSH_AUTH_SOCK", "HF_OIDC_RESOURCE", "CUDA_TOKEN", "JUDGE_KEY", "MY_OWN_VARIABLE"),
)


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"secret of {name}")
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HOME", "HTTPS_PROXY", "https_proxy", "LC_ALL"):
        monkeypatch.setenv(name, "plain")


def secrets_of(pid: int) -> set[str]:
    """The secrets in the environment of a live process."""
    return environment_of(pid) & set(SECRETS)


def environment_of(pid: int) -> set[str]:
    """Names of a live process's variables; for a moment after its start there are none."""
    while not (found := psutil.Process(pid).environ()):
        time.sleep(0.01)
    return set(found)


def test_groups_hold_what_is_needed_and_no_secret() -> None:
    told = dict.fromkeys(
        (*SECRETS, "PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "VLLM_USE_V1", "HF_HOME"), ""
    )
    told |= dict.fromkeys(("HF_HUB_OFFLINE", "HTTPS_PROXY", "no_proxy", "LD_LIBRARY_PATH"), "")
    told["TOKENIZERS_PARALLELISM"] = "false"
    assert inherited("base", variables=told).keys() == {"PATH", "LC_ALL", "LD_LIBRARY_PATH"}
    everything = inherited("base", "home", "compute", "hub", variables=told)
    assert everything.keys() == told.keys() - set(SECRETS)
    assert inherited("tokens", variables=told).keys() == {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"}
    assert inherited(names=("JUDGE_KEY",), variables=told).keys() == {"JUDGE_KEY"}


def test_another_python_gets_the_users_path_without_this_ones_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = sysconfig.get_path("purelib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", "here", packages, "/elsewhere")))
    assert user_path() == [str(tmp_path / "here"), packages, "/elsewhere"]
    assert user_path(Path("/other/bin/python")) == [str(tmp_path / "here"), "/elsewhere"]
    monkeypatch.delenv("PYTHONPATH")
    assert user_path() == []


@pytest.mark.network
def test_the_network_s_processes_have_no_secret() -> None:
    async def look() -> tuple[set[str], set[str], set[str]]:
        daemon = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",))
        try:
            async with Directory.running() as directory:
                names = environment_of(daemon.pid)
                return secrets_of(daemon.pid), secrets_of(directory.pid), names
        finally:
            await daemon.stop()

    of_daemon, of_directory, names = asyncio.run(look())
    assert of_daemon == of_directory == set()
    assert "PATH" in names and not names & {"HOME", "HF_HOME", "HTTPS_PROXY", "CUDA_VISIBLE_DEVICES"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (JudgeSettings(model="judge", endpoint="https://judge.example/v1", api_key_env="JUDGE_KEY"), {"JUDGE_KEY"}),
        (JudgeSettings(model="judge", endpoint="http://127.0.0.1:1/v1"), set()),
        (JudgeSettings(model="tiny"), set()),
        (JudgeSettings(model="owner/model"), {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"}),
    ],
)
def test_a_judge_has_its_key_and_no_other(settings: JudgeSettings, expected: set[str]) -> None:
    judge = JudgeProcess(settings)
    try:
        assert secrets_of(judge.pid) == expected
        assert "HF_HOME" in environment_of(judge.pid)
    finally:
        judge.kill()


def test_the_page_has_no_secret(tmp_path: Path) -> None:
    pytest.importorskip("swarm.extras.page")
    before = set(psutil.Process().children())
    with page_of(tmp_path, None, lambda line: None):
        (page,) = set(psutil.Process().children()) - before
        assert secrets_of(page.pid) == set()


@pytest.mark.parametrize(
    ("told", "spared"),
    [
        ({"HTTP_PROXY": "http://p:1"}, "localhost,127.0.0.1,::1"),
        ({"https_proxy": "http://p:1", "no_proxy": "a.example, localhost"}, "a.example,localhost,127.0.0.1,::1"),
        ({"all_proxy": "http://p:1", "NO_PROXY": "*"}, None),
        ({"PATH": "/bin"}, None),
    ],
)
def test_no_proxy_is_used_for_this_machine(told: dict[str, str], spared: str | None) -> None:
    before = dict(told)
    spare_loopback(told)
    assert told == (before if spared is None else before | {"no_proxy": spared, "NO_PROXY": spared})


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, MAX_BYTES), theirs


def test_messages_go_both_ways(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    other = Connection(os.dup(theirs.fileno()))
    channel.send(b"question")
    channel.send(b"")
    assert other.recv_bytes() == b"question" and other.recv_bytes() == b""
    other.send_bytes(b"answer")
    assert channel.receive() == b"answer"
    assert channel.receive() is None


def test_a_message_in_pieces_is_not_waited_for(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    for piece in (b"\0\0", b"\0\3", b"ab"):
        theirs.sendall(piece)
        assert channel.receive() is None
    theirs.sendall(b"c")
    assert channel.receive() == b"abc"


def test_an_end_that_does_not_read_is_not_waited_for(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    content = os.urandom(2**22)
    channel.send(content)
    assert channel.blocked
    received = bytearray()
    while len(received) < len(content) + 4:
        received += theirs.recv(2**20)
        channel.flush()
    assert not channel.blocked and bytes(received[4:]) == content


@pytest.mark.parametrize("sent", [struct.pack("!I", MAX_BYTES + 1), b"\xff" * 8, b"\0\0\0\1ab"])
def test_what_is_too_much_is_refused_before_it_is_stored(sent: bytes, ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.sendall(sent)
    with pytest.raises(Oversized):
        channel.receive()


def test_a_closed_end_is_detected(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.close()
    channel.send(b"x")
    waker = Waker()
    assert wait(waker, [channel], LONG_S) == {channel}
    waker.close()
    with pytest.raises((EOFError, ConnectionError)):
        channel.receive()


@given(st.lists(st.binary(max_size=60), max_size=20), st.booleans())
def test_any_bytes_in_any_pieces_are_messages_or_refused(pieces: list[bytes], small: bool) -> None:
    """It never raises anything else, and gives exactly the messages that the bytes hold."""
    if small:  # otherwise random bytes hardly ever begin with a length that is allowed
        pieces = [
            part for piece in pieces for part in (struct.pack("!I", len(piece))[:2], b"\0", bytes([len(piece)]), piece)
        ]
    ours, theirs = socket.socketpair()
    sent = b"".join(pieces)
    received: list[bytes] = []
    with ours, theirs:
        channel = Channel(ours, MAX_BYTES)
        with suppress(Oversized):
            for piece in pieces:
                theirs.sendall(piece)
                if piece and (message := channel.receive()) is not None:
                    received.append(message)
    assert sent.startswith(b"".join(struct.pack("!I", len(message)) + message for message in received))
    assert all(len(message) <= MAX_BYTES for message in received)


@given(st.binary(max_size=60), st.integers(0, 40))
def test_the_asyncio_end_reads_messages_or_refuses(sent: bytes, max_bytes: int) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        with suppress(EOFError, ValueError):
            assert await receive(reader, max_bytes) == sent[4:][: int.from_bytes(sent[:4], "big")]

    asyncio.run(read())


def test_waiting_ends_by_a_wake_up_and_sends_meanwhile(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    waker = Waker()
    for _ in range(10_000):  # more than the socket holds: none waits
        waker.wake()
    while wait(waker, [channel], 0.0) or wait(waker, [], 0.0):
        raise AssertionError("nothing was sent")
    channel.send(bytes(2**21))
    reader = Thread(target=lambda: [theirs.recv(2**20, socket.MSG_WAITALL) for _ in range(2)])
    reader.start()
    while channel.blocked:
        assert wait(waker, [channel], LONG_S) == set()
    reader.join()
    theirs.sendall(b"x")
    assert wait(waker, [channel], LONG_S) == {channel}
    waker.close()
    waker.wake()


def duplex(end: socket.socket) -> tuple[Duplex, SimpleQueue[bytes | None]]:
    received: SimpleQueue[bytes | None] = SimpleQueue()
    return Duplex(end, received.put, lambda: received.put(None)), received


def test_a_duplex_receives_what_was_sent_before_the_other_end_was_closed() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        end, received = duplex(ours)
        end.send(b"x" * 2**22)
        other = Connection(theirs.detach())
        other.send_bytes(b"last")
        other.close()
        assert received.get(timeout=LONG_S) == b"last"
        assert received.get(timeout=LONG_S) is None
        end.join()
        end.send(b"nobody")


def test_two_ends_that_flood_each_other_block_neither() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        end, received = duplex(ours)
        other = Connection(theirs.detach())
        for _ in range(8):
            end.send(b"x" * 2**20)
        for _ in range(8):
            other.send_bytes(b"y" * 2**20)
        assert all(received.get(timeout=LONG_S) == b"y" * 2**20 for _ in range(8))
        assert all(other.recv_bytes() == b"x" * 2**20 for _ in range(8))
        other.close()


def test_a_duplex_ends_by_a_message_that_is_refused_or_too_long() -> None:
    def refuse(message: bytes) -> None:
        raise ValueError(message)

    for deliver, sent in ((refuse, b"\0\0\0\1x"), (lambda message: None, b"\x7f\xff\xff\xff")):
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr("threading.excepthook", lambda raised: None)
            ended: SimpleQueue[bool] = SimpleQueue()
            end = Duplex(ours, deliver, lambda: ended.put(True))  # noqa: B023
            theirs.sendall(sent)
            assert ended.get(timeout=LONG_S)
            end.join()


def run(code: str, folder: Path, **options: object) -> Child:
    """A child that runs this code."""
    (folder / "a_child.py").write_text(code)
    variables = {**inherited("base"), "PYTHONPATH": os.pathsep.join([str(folder), python_path()["PYTHONPATH"]])}
    return Child("a_child", variables, **options)  # type: ignore[arg-type]


ECHO = """
from swarm.children import serve
def work(node):
    while True:
        node.send_bytes(node.recv_bytes() + b"!")
serve(work)
"""


def answer(channel: Channel) -> bytes:
    waker = Waker()
    while (message := channel.receive() if wait(waker, [channel], LONG_S) else None) is None:
        pass
    waker.close()
    return message


def test_a_child_serves_until_the_node_closes_its_end(tmp_path: Path) -> None:
    child = run(ECHO, tmp_path)
    channel = Channel(child.socket)
    channel.send(b"hello")
    assert answer(channel) == b"hello!"
    child.hang_up()
    assert child.wait(LONG_S) == 0
    assert child.kill() == "exited with 0" == child.kill()


def test_an_interrupt_of_the_terminal_does_not_reach_a_child(tmp_path: Path) -> None:
    child = run(ECHO, tmp_path)
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    channel = Channel(child.socket)
    channel.send(b"hello")
    assert answer(channel) == b"hello!"
    os.kill(child.pid, signal.SIGINT)  # nor does one that is sent to it
    channel.send(b"again")
    assert answer(channel) == b"again!"
    child.kill()


FLOODS = """
import os, sys
print("dropped" * 2**20)
sys.stderr.write("x" * 2**22 + "the last words \\x1b[2J")
sys.exit(3)
"""


def test_a_child_that_floods_its_output_holds_nobody_up_and_its_last_words_are_kept(tmp_path: Path) -> None:
    child = run(FLOODS, tmp_path)
    assert child.wait(LONG_S) == 3
    ending = child.kill()
    assert ending.startswith("exited with 3; standard error: 'xxx") and len(ending) < 2_100
    assert ending.endswith("the last words \\x1b[2J'"), "no control character reaches a terminal"


def test_a_log_keeps_all_that_a_child_prints(tmp_path: Path) -> None:
    child = run("import sys; print('out', flush=True); print('error', file=sys.stderr)", tmp_path, log=tmp_path / "log")
    assert child.wait(LONG_S) == 0
    child.kill()
    assert (tmp_path / "log").read_text() == "out\nerror\n" and child.last_words() == "out\nerror"


def test_the_last_words_are_read_while_another_thread_kills_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = run("import sys; print('out', flush=True)", tmp_path, log=tmp_path / "log")
    assert child.wait(LONG_S) == 0
    killer = Thread(target=child.kill)

    def slow_fstat(descriptor: int, fstat: Callable[[int], os.stat_result] = os.fstat) -> os.stat_result:
        if killer.ident is None:
            killer.start()
            killer.join(0.5)  # without a lock it closes the log here
        return fstat(descriptor)

    monkeypatch.setattr("swarm.children.os.fstat", slow_fstat)
    assert child.last_words() == "out"
    killer.join(LONG_S)
    assert not killer.is_alive() and child.last_words() == "out"


PARENT = """
import subprocess, sys
from swarm.children import serve
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
serve(lambda node: (node.send_bytes(str(child.pid).encode()), node.recv_bytes(), node.recv_bytes()))
"""


@pytest.mark.parametrize("dead", [False, True])
def test_a_child_is_killed_with_its_children_even_if_it_died_before(dead: bool, tmp_path: Path) -> None:
    child = run(PARENT, tmp_path)
    grandchild = psutil.Process(int(answer(Channel(child.socket))))
    if dead:
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(LONG_S) == -9
    assert child.kill() == "exited with -9"
    assert not psutil.pid_exists(child.pid)
    end = time.monotonic() + LONG_S
    while grandchild.is_running() and grandchild.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.01)


LEFT = """
import os, subprocess, sys
from swarm.children import serve
sleep = "import os, time; os.setsid(); {fork}print(os.getpid(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleep], stdout=subprocess.PIPE, **{options})
pid = child.stdout.readline()
serve(lambda node: (node.send_bytes(pid), node.recv_bytes(), node.recv_bytes()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("fork", "options"),
    [("", "dict()"), ("os.fork() and os._exit(0); ", "dict()"), ("", "dict(env={})")],
    ids=["another session", "an orphan of another session", "another session and environment"],
)
def test_what_a_child_started_in_another_session_is_killed_too(fork: str, options: str, tmp_path: Path) -> None:
    child = run(LEFT.format(fork=fork, options=options), tmp_path)
    grandchild = psutil.Process(int(answer(Channel(child.socket))))
    child.kill()
    end = time.monotonic() + LONG_S
    while grandchild.is_running() and grandchild.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_child_that_cannot_be_started_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()
    for python in (Path("/nowhere/python"), Path("/")):
        with pytest.raises(OSError, match="python|denied"):
            Child("a_child", {}, python=python)
    if sys.platform == "linux":
        assert set(os.listdir("/proc/self/fd")) == before


def test_a_child_ends_with_a_node_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "a_child.py").write_text(ECHO)
    node = f"""
import sys, time
from swarm.children import Child, python_path
sys.path.insert(0, {str(tmp_path)!r})
print(Child("a_child", python_path()).pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", node], stdout=subprocess.PIPE, env=dict(os.environ)) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    child.wait(LONG_S)


def test_every_failure_in_a_row_doubles_the_pause() -> None:
    backoff = Backoff(0.5, 4.0)
    assert backoff.until == -math.inf
    pauses = []
    for _ in range(2_000):
        backoff.note_failure(100.0)
        pauses.append(backoff.until - 100.0)
    assert pauses[:6] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0] and backoff.failures == 2_000
    backoff.note_success()
    backoff.note_failure(100.0)
    assert backoff.until == 100.5 and backoff.failures == 1
