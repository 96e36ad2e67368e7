"""The node's side of one vLLM process: starts it, sends requests, detects its death, ends it with its children."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from swarm.children import Child, Duplex, inherited, user_path
from swarm.engines.vllm.messages import Answer, Beat, Broken, Request, decode_reply, encode
from swarm.errors import EngineCrashed, EngineError

MODULE = "swarm.engines.vllm.server"
LOG = "log.txt"
POLL_S = 0.1
STOP_S = 10.0
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it shares the cores
    "HF_HUB_OFFLINE": "1",  # all files are in a local directory
    "TOKENIZERS_PARALLELISM": "false",
}


class VllmProcess:
    """A server. Any thread may send requests; another delivers the replies to their callers."""

    def __init__(self, python: Path, work: Path, environment: Mapping[str, str]) -> None:
        """Start it without waiting; it imports vLLM until it is asked to load a model. Its log goes to `work`.

        Raises `EngineError` when `python` cannot be run.
        """
        self.beats = 0
        """Messages received so far."""
        self._registry = threading.Lock()
        self._inboxes: dict[int, queue.SimpleQueue[Answer | Broken]] = {}
        self._num_calls = 0
        self._last_problem = ""
        self._problem: str | None = None
        variables = {
            "TRITON_CACHE_DIR": str(_kernels()),
            **inherited("base", "home", "compute", "hub"),
            **ENVIRONMENT,
            **environment,
            "PYTHONPATH": os.pathsep.join((str(_path_to_swarm(work)), *user_path(python))),
        }
        try:
            self._child = Child(MODULE, variables, python=python, log=work / LOG)
        except OSError as error:
            raise EngineError(
                f"generation.vllm.python: {python} cannot be run ({error.strerror}): name a Python that has vLLM"
            ) from error
        self._messages = Duplex(self._child.socket, self._receive, self._note_end)

    @property
    def pid(self) -> int:
        """Process id, and id of its session."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it accepts requests."""
        return self._problem is None

    def call(self, request: Callable[[int], Request]) -> Call:
        """Send a request; `request` receives the call's id, which the replies carry."""
        inbox: queue.SimpleQueue[Answer | Broken] = queue.SimpleQueue()
        with self._registry:
            call = Call(self, self._num_calls, inbox)
            self._num_calls += 1
            self._inboxes[call.id] = inbox
            if self._problem is not None:
                inbox.put(Broken(self._problem))
        self.tell(request(call.id))
        return call

    def tell(self, request: Request) -> None:
        """Send a message. If the process is dead, the receiving thread detects it."""
        self._messages.send(encode(request))

    def forget(self, call: int) -> None:
        """Ignore further replies to this call."""
        with self._registry:
            self._inboxes.pop(call, None)

    def close(self) -> None:
        """Ask it to end, wait briefly, then kill it with its children."""
        self._child.hang_up()
        self._child.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        """Kill it with its children."""
        self._child.kill()
        self._messages.join()

    def _receive(self, message: bytes) -> None:
        reply = decode_reply(message)
        self.beats += 1
        if isinstance(reply, Broken):
            self._last_problem = reply.reason
        elif not isinstance(reply, Beat):
            self._deliver(reply)

    def _note_end(self) -> None:
        problem = self._last_problem or f"it ended without a message; the end of its log: {self._last_line()}"
        with self._registry:
            self._problem = problem
            for inbox in self._inboxes.values():
                inbox.put(Broken(problem))

    def _deliver(self, reply: Answer) -> None:
        with self._registry:
            inbox = self._inboxes.get(reply.id)
        if inbox is not None:
            inbox.put(reply)

    def _last_line(self) -> str:
        lines = self._child.last_words().splitlines()
        return lines[-1] if lines else "there is none"


class Call:
    """A request to a process."""

    def __init__(self, process: VllmProcess, id: int, inbox: queue.SimpleQueue[Answer | Broken]) -> None:
        """Made by `VllmProcess.call`."""
        self.id = id
        self._process = process
        self._inbox = inbox
        self._beats = process.beats
        self._silent_s = 0.0

    def receive(self, silence_timeout_s: float, poll_s: float = POLL_S) -> Answer | None:
        """The next reply; None when there was none for a moment of `poll_s`.

        Raises `EngineCrashed` when the process is dead or was silent for too long. Silence counts only while this end
        listens, so that a suspended machine causes no false alarm.
        """
        try:
            reply = self._inbox.get(timeout=poll_s)
        except queue.Empty:
            self._note_silence(poll_s, silence_timeout_s)
            return None
        if isinstance(reply, Broken):
            raise EngineCrashed(f"vLLM failed: {reply.reason}")
        return reply

    def close(self) -> None:
        """Ignore further replies."""
        self._process.forget(self.id)

    def _note_silence(self, seconds: float, timeout_s: float) -> None:
        if self._beats != self._process.beats:
            self._beats, self._silent_s = self._process.beats, 0.0
        self._silent_s += seconds
        if self._silent_s > timeout_s:
            self._process.kill()
            raise EngineCrashed(f"vLLM said nothing for {timeout_s:g} s, and was killed")


def _kernels() -> Path:
    """Triton's default cache of compiled kernels; vLLM's own default differs between starts that compile and others."""
    return Path(os.environ.get("TRITON_HOME", Path.home())) / ".triton" / "cache"


def _path_to_swarm(work: Path) -> Path:
    """A directory from which that Python imports this package and nothing else."""
    directory = work / "path"
    directory.mkdir(exist_ok=True)
    link = directory / "swarm"
    if not link.is_symlink():
        link.symlink_to(Path(__file__).parents[2], target_is_directory=True)
    return directory
