"""Child processes that communicate with JSON lines; none of them outlives the benchmark."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import psutil

ONE_THREAD = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "RAYON_NUM_THREADS",
    )
}
ROOT = Path(__file__).parents[2]
"""Of the repository: what children import from."""
Json = dict[str, object]


class ChildFailed(Exception):
    """A child exited or timed out unexpectedly."""


class Child:
    """A process that reads commands from standard input and writes events to standard output, one JSON object per line.

    `events` keeps all its events. It leads its own session, so that a terminal's signal reaches only the driver.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] = {}) -> None:
        """Start it; standard error goes to `log`."""
        self.name = name
        self.events: list[Json] = []
        self._news: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                list(arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **ONE_THREAD, **environment},
                start_new_session=True,
            )
        self._tree: list[psutil.Process] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        output = self.process.stdout
        assert output is not None
        for line in output:
            # Libraries print too, and a killed process leaves an incomplete line.
            with suppress(json.JSONDecodeError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self.events.append(event)
                    self._news.put(event)
        self._news.put(None)

    def tell(self, do: str, **arguments: object) -> None:
        """Send a command; ignored by a dead process."""
        pipe = self.process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError, ValueError):
            pipe.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            pipe.flush()

    def wait_for(self, event: str, timeout_s: float = 120.0) -> Json:
        """The next event of this kind; skips others. Raises `ChildFailed`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                news = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ChildFailed(
                    f"{self.name} did not send {event!r} within {timeout_s:g} s: {self.last_words()}"
                ) from None
            if news is None:
                raise ChildFailed(f"{self.name} ended before {event!r}: {self.last_words()}")
            if news["event"] == event:
                return news

    def ask(self, do: str, timeout_s: float = 30.0) -> Json:
        """Send a command and wait for the event of the same name."""
        self.tell(do)
        return self.wait_for(do, timeout_s)

    def said(self, event: str) -> list[Json]:
        """All events of this kind so far."""
        return [each for each in list(self.events) if each["event"] == event]

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """The process and its descendants, also after its death."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            # A dead process has no children, but its descendants may still run.
            found = [root, *root.children(recursive=True)]
            self._tree = found + [process for process in self._tree if process not in found and process.is_running()]
        return self._tree

    def signal_tree(self, number: signal.Signals) -> None:
        """Send a signal to the process and its descendants, such as its network daemon."""
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to it and its descendants, like a power failure."""
        self.signal_tree(signal.SIGKILL)
        self.process.wait()
        self._reader.join(5)

    def end(self) -> None:
        """Kill it and its descendants."""
        tree = self.tree()
        self.signal_tree(signal.SIGCONT)
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        psutil.wait_procs(tree, timeout=5)
        self._reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def cpu_s(self) -> float:
        """CPU seconds so far of the process and its descendants."""
        total = 0.0
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory_bytes(self) -> int:
        """Resident memory of the process and its descendants."""
        total = 0
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                total += int(process.memory_info().rss)
        return total

    def own_memory_bytes(self) -> int:
        """The same, with shared pages divided among their processes (PSS, where available)."""
        total = 0
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                info = process.memory_full_info()._asdict()
                total += int(info.get("pss") or info["rss"])
        return total

    def last_words(self) -> str:
        """The end of its standard error."""
        with suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            return " | ".join(lines[-3:])
        return ""


class ChildProcesses:
    """All children of a measurement; the end of the block ends them, whatever happened."""

    def __init__(self, folder: Path) -> None:
        """Logs go to `folder`."""
        self.folder = folder
        self.children: list[Child] = []

    def __enter__(self) -> ChildProcesses:
        """Start without children."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End all children; one failure does not stop the rest."""
        with patient():
            for child in self.children:
                child.tree()
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.process.pid, signal.SIGKILL)
            for child in self.children:
                with suppress(OSError, psutil.Error):
                    child.end()

    def start(self, name: str, arguments: Sequence[str], environment: Mapping[str, str] = {}) -> Child:
        """Start a child that ends with this processes."""
        child = Child(name, arguments, self.folder / f"{name}.log", environment)
        self.children.append(child)
        return child


@contextmanager
def patient() -> Iterator[None]:
    """Defer Ctrl-C while children are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.1) -> bool:
    """Wait for a condition; returns whether it became true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def emit(event: str, **fields: object) -> None:
    """In a child: send one event to the driver as a whole line."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def commands() -> queue.SimpleQueue[Json]:
    """In a child: yield the driver's commands; `quit` when the driver exits."""
    waiting: queue.SimpleQueue[Json] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            waiting.put(json.loads(line))
        waiting.put({"do": "quit"})

    threading.Thread(target=read, daemon=True).start()
    return waiting
