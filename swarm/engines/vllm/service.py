"""The vLLM process of a node: sends requests, detects its death, restarts it, and keeps its weights up to date."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch

from swarm.children import Backoff, Child, Duplex, inherited, user_path
from swarm.engines.config import GenerationSettings
from swarm.engines.vllm import delivery
from swarm.engines.vllm.delivery import State, make_work_directory, model_files, state_of
from swarm.engines.vllm.messages import (
    Answer,
    Beat,
    Broken,
    Compiling,
    Done,
    Ready,
    Refused,
    Request,
    Sleep,
    Start,
    Wake,
    decode_reply,
    encode,
)
from swarm.engines.vllm.requests import reads_of
from swarm.errors import EngineCrashed, EngineError, Interrupted
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import release_unused

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
logger = logging.getLogger(__name__)
MAX_CRASHES = 3
"""Consecutive crashes without a completion after which the service gives up."""
BACKOFF_S = 1.0
"""Back-off before the second start; doubles with every further crash."""


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


class VllmService:
    """One process at a time, restarted when it dies."""

    def __init__(
        self,
        policy: Policy,
        settings: GenerationSettings,
        trust_remote_code: bool = False,
        device: torch.device | None = None,
    ) -> None:
        """Start nothing yet; vLLM will use the configured GPUs, or else `device`, by default the policy's.

        Raises `EngineError` for unsupported settings, and if the files of weights fit nowhere.
        """
        self._device = device or policy.device
        if settings.vllm.sleep and self._device.type != "cuda":
            raise EngineError(f"generation.vllm.sleep needs a GPU, the policy is on {self._device}: set it to false")
        _check_gpus(settings.vllm.gpus, self._device, policy.device)
        if policy.media is not None and settings.vllm.num_parts > 1:
            raise EngineError(
                "generation.vllm.gpus must name one GPU for a policy that reads pictures or sounds, got "
                f"{list(settings.vllm.gpus)}"
            )
        if policy.ranks.size > 1 and settings.vllm.gpus:
            raise EngineError(
                "generation.vllm.gpus must be [] when several processes share a policy: each has a vLLM on its own GPU"
            )
        self._policy = policy
        self._settings = settings
        self._trust_remote_code = trust_remote_code
        self._lock = threading.RLock()
        shares_gpu = delivery.shares_gpu(settings.vllm, policy, self._device)
        self.work = make_work_directory(policy)
        """Files of the process, removed when it ends."""
        self._delivery = delivery.Delivery(policy, settings.vllm, self.work, shares_gpu)
        self._process: VllmProcess | None = None
        self._limits: Ready | None = None
        self._state: State | None = None
        """State of the policy's weights at the last push."""
        self._asleep = False
        self._crashes = Backoff(BACKOFF_S)

    @property
    def pid(self) -> int | None:
        """Process id of the running process."""
        return self._process.pid if self._process else None

    def running(self, cancelled: Callable[[], bool]) -> tuple[VllmProcess, Ready]:
        """The process, awake and with the policy's current weights, and its limits.

        Starts it if necessary. Among several ranks it is called where all weights are gathered.

        Raises `EngineError` when it does not start or crashed too often, and `Interrupted`.
        """
        while True:
            try:
                with self._lock:
                    if self._process is None or not self._process.alive:
                        self._start(cancelled)
                    if self._asleep:
                        self._wake()
                    self.push()
                    assert self._process is not None and self._limits is not None
                    return self._process, self._limits
            except EngineCrashed as crash:
                if self._limits is None:  # it never ran: a restart would fail the same way
                    raise EngineError(str(crash)) from crash
                self.crashed(crash)

    def push(self, kv: Literal["keep", "recompute"] = "keep") -> None:
        """Push the policy's weights between two decode steps if they have changed.

        `kv`: whether to keep or recompute the cache of running sequences. Raises `EngineError` when vLLM refuses them,
        `EngineCrashed`.
        """
        with self._lock:
            if self._process is None or self._asleep or self._state == state_of(self._policy):
                return
            try:
                self._state = self._delivery.bring(self._ask, kv)
            except EngineCrashed:
                self._process.kill()  # it may be alive, with a part of the weights
                raise

    def rest(self) -> None:
        """Put vLLM to sleep for training, if configured: it releases the GPU's memory."""
        with self._lock:
            if self._settings.vllm.sleep and self._process is not None and not self._asleep:
                with contextlib.suppress(EngineCrashed):  # the next caller detects it
                    self._ask(lambda call: Sleep(call, keep_weights=self._policy.adapters is not None))
                    self._asleep = True

    def _wake(self) -> None:
        """Weights first, then those of the policy, then the cache: together they may fit, one more copy may not."""
        release_unused()  # torch keeps what training has freed, on the GPU that vLLM reclaims
        self._ask(lambda call: Wake(call, "weights"))
        if self._policy.adapters is None:
            self._state = None  # it has no weights now
        self._asleep = False
        self.push()
        self._ask(lambda call: Wake(call, "kv_cache"))

    def crashed(self, crash: EngineCrashed) -> None:
        """Record a crash; the next start waits for the back-off. Raises `EngineError` after too many consecutive
        crashes."""
        self._crashes.note_failure(time.monotonic())
        logger.warning("%s", crash)
        if self._crashes.failures >= MAX_CRASHES:
            raise EngineError(f"vLLM died {self._crashes.failures} times in a row; last reason: {crash}") from crash

    def worked(self) -> None:
        """A completion arrived: reset the count of crashes."""
        self._crashes.note_success()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None
            shutil.rmtree(self.work, ignore_errors=True)

    def _start(self, cancelled: Callable[[], bool]) -> None:
        if self._process is not None:
            self._process.kill()
        release_unused()  # vLLM does not start where torch still keeps what training has freed
        _pause(self._crashes.until, cancelled)
        settings, policy = self._settings.vllm, self._policy
        python = settings.python or Path(sys.executable)
        process = self._process = VllmProcess(python, self.work, _environment(self._device, settings.gpus))
        try:
            with model_files(policy, self.work) as (directory, state):
                self._state = None if policy.adapters else state
                starting = process.call(lambda call: self._order(call, directory, state.version))
                self._limits = self._wait_until_ready(process, starting, cancelled)
        except BaseException:
            if process.alive:  # it waits for a model
                process.kill()
            raise
        self._asleep = False

    def _order(self, call: int, directory: Path, version: int) -> Start:
        policy, settings = self._policy, self._settings
        return Start(
            id=call,
            work=str(self.work),
            model=str(directory),
            version=version,
            dtype=str(policy.compute_dtype).removeprefix("torch."),
            # vLLM takes the positions of long sequences for all of them if any may be long.
            max_tokens=policy.original_positions or -1,
            max_sequences=settings.max_batch_sequences,
            sampling=settings.sampling(),
            gpu_memory_fraction=settings.vllm.memory_fraction if self._device.type == "cuda" else None,
            cpu_cache_bytes=settings.vllm.cpu_cache_bytes,
            lora_rank=policy.adapters.rank if policy.adapters else 0,
            num_parts=settings.vllm.num_parts,
            sleep=settings.vllm.sleep,
            trust_remote_code=self._trust_remote_code,
            reads=reads_of(policy),
            shares_gpu=self._delivery.shares_gpu,
            reports_experts=policy.routers is not None,
            arguments={**settings.vllm.arguments},
        )

    def _wait_until_ready(self, process: VllmProcess, starting: Call, cancelled: Callable[[], bool]) -> Ready:
        while not cancelled():
            reply = starting.receive(self._settings.vllm.start_timeout_s)
            if isinstance(reply, Ready):
                if not reply.keeps:
                    logger.warning(
                        "vLLM %s is not the one this was made for: it may generate more slowly", reply.version
                    )
                return reply
            if isinstance(reply, Compiling):
                logger.warning("vLLM compiles this model, which takes about half a minute; its next start will not")
        process.kill()
        raise Interrupted("stopped while vLLM was starting")

    def _ask(self, request: Callable[[int], Request]) -> None:
        """Send a request that must not be abandoned. Raises `EngineError` when it is refused."""
        assert self._process is not None
        call = self._process.call(request)
        try:
            while not isinstance(reply := call.receive(self._settings.vllm.silence_timeout_s), Done):
                if isinstance(reply, Refused):
                    raise EngineError(f"vLLM refused: {reply.reason}")
        finally:
            call.close()


def _pause(until: float, cancelled: Callable[[], bool]) -> None:
    while time.monotonic() < until:
        if cancelled():
            raise Interrupted("stopped before vLLM's restart")
        time.sleep(POLL_S)


def _check_gpus(gpus: Sequence[int], device: torch.device, policy_device: torch.device) -> None:
    """Raises `EngineError` for GPUs that vLLM cannot have for itself."""
    if not gpus:
        return
    if device.type != "cuda":
        raise EngineError(f"generation.vllm.gpus needs CUDA, the policy is on {device}: set it to []")
    if missing := [gpu for gpu in gpus if gpu >= torch.cuda.device_count()]:
        raise EngineError(
            f"generation.vllm.gpus must be below {torch.cuda.device_count()}, the number of visible GPUs, got {missing}"
        )
    if policy_device.type == "cuda" and (own := policy_device.index or 0) in gpus:
        raise EngineError(
            f"generation.vllm.gpus must not have GPU {own}, on which the policy is: leave it out, or choose another "
            "policy.device"
        )


def _environment(device: torch.device, gpus: Sequence[int]) -> dict[str, str]:
    """Variables that put vLLM on these GPUs, or on the policy's device, with as many threads."""
    if device.type != "cuda":
        return {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(torch.get_num_threads())}
    # On ROCm either variable may be set, and vLLM refuses two that differ.
    variables = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if torch.version.hip else ("CUDA_VISIBLE_DEVICES",)
    visible = next(filter(None, map(os.environ.get, variables)), None)
    names = visible.split(",") if visible else None
    chosen = gpus or [device.index or 0]
    return dict.fromkeys(variables, ",".join(names[gpu] if names else str(gpu) for gpu in chosen))
