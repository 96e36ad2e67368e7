"""Child processes of a node: their environment, their start and end, their messages, and pauses between restarts.

    node                                            child: `python -m MODULE FD ...`
    Child ──── starts, ends, last words ──────────▶ `serve`, in a separate session: ends when its socket closes
    Channel ── one reply to each request ─────────▶ Connection
    Duplex ─── any message at any time ───────────▶ Connection

A message is its length in four bytes and its content. The node never waits until a child reads, and refuses a message
that is too long before it stores it, because some children handle the text of untrusted peers.

Environment variables go to a child by name, in groups; secrets go only where they are used:

    base      every process: where programs, libraries, temporary files and the locale are
    home      the user's files: caches of the page, of models and of compiled kernels
    compute   GPUs, threads, torch, vLLM
    hub       the Hugging Face hub and the way to it
    tokens    the hub's token
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import psutil

GROUPS: dict[str, re.Pattern[str]] = {
    "base": re.compile(r"PATH|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|TEMP|TMP|(DY)?LD_(FALLBACK_)?LIBRARY_PATH|PYTHONHOME"),
    "home": re.compile(r"HOME|USER|LOGNAME|XDG_\w+|VIRTUAL_ENV|CONDA_PREFIX"),
    "compute": re.compile(
        r"(CUDA|CUBLAS|CUDNN|NVIDIA|NCCL|GLOO|ROCR|HIP|HSA|AMD|MIOPEN|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|VLLM"
        r"|OMP|KMP|GOMP|MKL|OPENBLAS|NUMEXPR|RAYON|BITSANDBYTES)_\w+"
        r"|TOKENIZERS_PARALLELISM|LIBRARY_PATH|CPATH|CC|CXX|LD_PRELOAD|MALLOC_\w+"
    ),
    "hub": re.compile(
        r"HF_\w+|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_\w+|(HTTP|HTTPS|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE"
        r"|CURL_CA_BUNDLE",
        re.IGNORECASE,
    ),
}
TOKENS = ("HF_TOKEN", "HF_TOKEN_PATH", "HF_OIDC_RESOURCE", "HUGGING_FACE_HUB_TOKEN")
SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|OIDC)(_|$)", re.IGNORECASE)
"""Names that no group includes, whatever they begin with."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")

MAX_BYTES = 2**30
"""Longest message by default."""
MARK = "SWARM_CHILD"
"""Variable of a child, random, by which processes that left its session are found."""
PROCESSES = Path("/proc")
_LENGTH = struct.Struct("!I")
_PIECE_BYTES = 2**18
_LAST_WORDS_BYTES = 2_000
_EXIT_S = 1.0
"""From the end of a connection to that of its process."""
_SWEEPS = 16
"""Searches for processes of a child that was killed: more may start until all are."""
_WAKE_UPS = 4_096
"""Bytes consumed at once; further ones end the next `wait`."""


def inherited(*groups: str, names: tuple[str, ...] = (), variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that a child needs: those of the groups and with these names."""
    wanted = [GROUPS[group] for group in groups if group != "tokens"]
    names += TOKENS if "tokens" in groups else ()
    return {
        name: value
        for name, value in variables.items()
        if name in names or (not SECRET.search(name) and any(pattern.fullmatch(name) for pattern in wanted))
    }


def spare_loopback(variables: MutableMapping[str, str] = os.environ) -> None:
    """Have no library use a proxy for this machine itself, where variables name one."""
    known = variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    if "*" in known or not any(name.lower().endswith("_proxy") for name in variables):
        return
    hosts = [host.strip() for host in known.split(",") if host.strip()]
    variables["no_proxy"] = variables["NO_PROXY"] = ",".join(dict.fromkeys((*hosts, *LOOPBACK)))


def python_path() -> dict[str, str]:
    """The variable with which a child imports from where this process does."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def user_path(python: Path | None = None) -> list[str]:
    """Entries of the user's PYTHONPATH for a child with `python`; default: this process's.

    Another Python has its own packages and gets none of this one's.
    """
    entries = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if python is None or os.path.abspath(python) == sys.executable:
        return entries
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [entry for entry in entries if entry not in own]


class Child:
    """A process that runs a module, connected to the node by a socket pair.

    It leads its own session: the terminal's Ctrl-C reaches the node only, which then ends the child. Only the
    end of its standard error is kept, away from the terminal, because untrusted text may be in it.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
        python: Path | None = None,
        directory: Path | None = None,
        log: Path | None = None,
    ) -> None:
        """Start `python -m MODULE FD ...` with the descriptors of its socket and of `descriptors`.

        Its output and errors go to `log`; by default its output is dropped. Raises `OSError`.
        """
        # not multiprocessing: a plain child neither imports the parent's __main__ nor inherits its memory
        self.socket, theirs = socket.socketpair()
        self._mark = secrets.token_hex(16)
        with theirs, ExitStack() as undone:
            undone.enter_context(self.socket)
            errors = undone.enter_context(log.open("w+b")) if log else None
            given = (theirs.fileno(), *descriptors)
            self._process = subprocess.Popen(
                [str(python or sys.executable), "-P", "-m", module, *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=errors or subprocess.DEVNULL,
                stderr=errors or subprocess.PIPE,
                cwd=directory,
                env={**environment, MARK: self._mark},
                start_new_session=True,
            )
            undone.pop_all()
        self._log = errors
        self._log_lock = threading.Lock()
        """Any thread may ask for the last words while another kills the process and closes its log."""
        self._tail = _Tail(self._process.stderr) if self._process.stderr else None
        self._last_words = ""

    @property
    def pid(self) -> int:
        """Process id, and id of its session."""
        return self._process.pid

    def wait(self, timeout_s: float) -> int | None:
        """The exit code; None if it still runs after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def kill(self) -> str:
        """Kill the process with all that it started, on Linux also outside its session; returns `ending`."""
        started = self._started()
        with suppress(ProcessLookupError, PermissionError):  # the session has ended
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for _ in range(_SWEEPS):
            for process in started:
                with suppress(psutil.Error):
                    process.kill()
            if not (started := self._marked()):
                break
        self.hang_up()
        self.socket.close()
        self._last_words = self.last_words()
        with self._log_lock:
            if self._log is not None:
                self._log.close()
        return self.ending()

    def _started(self) -> list[psutil.Process]:
        """Processes with its mark, and those that descend from it with another environment."""
        try:
            return [*psutil.Process(self.pid).children(recursive=True), *self._marked()]
        except psutil.Error:
            return self._marked()

    def _marked(self) -> list[psutil.Process]:
        """Processes with its mark, but itself."""
        found = []
        for folder in PROCESSES.glob("[0-9]*"):
            with suppress(OSError, psutil.Error):
                if self._mark.encode() in (folder / "environ").read_bytes() and int(folder.name) != self.pid:
                    found.append(psutil.Process(int(folder.name)))
        return found

    def hang_up(self) -> None:
        """Close the connection: the process ends, and threads that read see its end."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def ending(self) -> str:
        """Exit code, after a short wait, and the end of its standard error."""
        code, words = self.wait(_EXIT_S), self.last_words()
        return f"exited with {code}" + (f"; standard error: {words!r}" if words else "")

    def last_words(self) -> str:
        """The end of its standard error, or of its log."""
        if self._tail is not None:
            return self._tail.text(_EXIT_S if self._process.poll() is not None else 0.0)
        with self._log_lock:
            if self._log is None or self._log.closed:
                return self._last_words
            size = os.fstat(self._log.fileno()).st_size
            words = os.pread(self._log.fileno(), _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES))
        return words.strip().decode(errors="replace")


class _Tail:
    """Reads a stream to its end, and keeps the end: a child may write for weeks."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self._thread = threading.Thread(target=self._read, name="standard error", daemon=True)
        self._thread.start()

    def text(self, wait_s: float) -> str:
        """What is kept by now, or after `wait_s` if the stream has not ended."""
        self._thread.join(wait_s)
        return self._kept.strip().decode(errors="replace")

    def _read(self) -> None:
        with self._stream as stream:
            while piece := os.read(stream.fileno(), _PIECE_BYTES):
                self._kept = (self._kept + piece)[-_LAST_WORDS_BYTES:]


def serve(work: Callable[[Connection], None]) -> None:
    """In a child: run `work` on the socket given as the first argument, until the node closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):
        work(Connection(int(sys.argv[1])))


class Oversized(Exception):
    """A message exceeds the limit."""


class Channel:
    """The node's end of a socket pair with a child that sends one message at a time; never blocks."""

    def __init__(self, end: socket.socket, max_bytes: int = MAX_BYTES) -> None:
        """Accept messages of at most `max_bytes`."""
        end.setblocking(False)
        self._socket = end
        self._max_bytes = max_bytes
        self._unsent = bytearray()
        self._received = bytearray()

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self._socket.fileno()

    @property
    def blocked(self) -> bool:
        """Whether sent bytes are still buffered."""
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Start to send; the next `receive` detects a closed end."""
        self._unsent += _LENGTH.pack(len(message)) + message
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket accepts."""
        with suppress(BlockingIOError, ConnectionError):
            while self._unsent:
                del self._unsent[: self._socket.send(bytes(self._unsent[:_PIECE_BYTES]))]

    def receive(self) -> bytes | None:
        """The next message; None while it is incomplete. Raises `EOFError`, `ConnectionError`, `Oversized`."""
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return None
        if not piece:
            raise EOFError
        self._received += piece
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        # one message at a time: refuse any bytes after it
        if length > self._max_bytes or len(self._received) > _LENGTH.size + length:
            raise Oversized(f"a message of {length} bytes, or more than one")
        if len(self._received) < _LENGTH.size + length:
            return None
        message = bytes(self._received[_LENGTH.size :])
        self._received.clear()
        return message


class Waker:
    """Ends a `wait` from another thread."""

    def __init__(self) -> None:
        """Open a socket pair."""
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self._reader.fileno()

    def wake(self) -> None:
        """End the current `wait`, or else the next one."""
        with suppress(OSError):  # full: it will end in any case; or closed
            self._writer.send(b"\0")

    def reset(self) -> None:
        """Forget earlier calls of `wake`."""
        with suppress(BlockingIOError):
            self._reader.recv(_WAKE_UPS)

    def close(self) -> None:
        """Close both sockets."""
        self._reader.close()
        self._writer.close()


def wait(waker: Waker, channels: Iterable[Channel], timeout_s: float | None) -> set[Channel]:
    """Channels with something to receive, after `timeout_s` or `waker.wake` at the latest; sends what is buffered."""
    with selectors.PollSelector() as selector:
        selector.register(waker, selectors.EVENT_READ)
        for channel in channels:
            selector.register(
                channel, selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.blocked else 0), channel
            )
        awake = {key.data: events for key, events in selector.select(timeout_s)}
    if None in awake:
        waker.reset()
        del awake[None]
    for channel in awake:
        channel.flush()
    return {channel for channel, events in awake.items() if events & selectors.EVENT_READ}


class Duplex:
    """The node's end of a socket pair with a child that may send at any time.

    Two blocking ends can each wait until the other reads. Here threads move the messages, which wait in this process
    without limit, so that neither sending nor a slow reader blocks either side.
    """

    def __init__(self, end: socket.socket, deliver: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """`deliver` gets each message and `ended` is called after the last one, both in a thread.

        The threads end when the other end is closed, or `end` is shut down.
        """
        self._connection = Connection(os.dup(end.fileno()))
        self._unsent: SimpleQueue[bytes | None] = SimpleQueue()
        self._deliver = deliver
        self._ended = ended
        self._receiver = threading.Thread(target=self._receive, name="child-receive", daemon=True)
        self._receiver.start()
        threading.Thread(target=self._send, name="child-send", daemon=True).start()

    def send(self, message: bytes) -> None:
        """Start to send; lost if the other end is closed."""
        self._unsent.put(message)

    def join(self) -> None:
        """Wait until `ended` has returned."""
        self._receiver.join()

    def _send(self) -> None:
        with suppress(OSError):
            while (message := self._unsent.get()) is not None:
                self._connection.send_bytes(message)

    def _receive(self) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._deliver(self._connection.recv_bytes(MAX_BYTES))
        finally:
            self._unsent.put(None)
            self._ended()


async def send(writer: asyncio.StreamWriter, message: bytes) -> None:
    """Write a message. Raises `ConnectionError`."""
    writer.write(_LENGTH.pack(len(message)) + message)
    await writer.drain()


async def receive(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """The next message. Raises `EOFError` at the end, and `ValueError` for a message that is too long."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > max_bytes:
        raise ValueError(f"a message must have at most {max_bytes} bytes, got {length}")
    return await reader.readexactly(length)


class Backoff:
    """Pauses between starts of a child: twice as long after every further failure in a row."""

    def __init__(self, first_s: float, longest_s: float = math.inf) -> None:
        self.failures = 0
        """Failures in a row."""
        self.until = -math.inf
        """Earliest time of the next start."""
        self._first_s = first_s
        self._longest_s = longest_s

    def note_failure(self, now: float) -> None:
        """A start failed, or the child ended, at `now`."""
        self.until = now + min(self._longest_s, self._first_s * 2.0 ** min(self.failures, 60))
        self.failures += 1

    def note_success(self) -> None:
        """The child works."""
        self.failures = 0
