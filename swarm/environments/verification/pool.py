"""Makes questions and grades in killable processes.

    draw, grade ──▶ own jobs ──────────────────▶┐
                                                ├─▶ dispatcher thread ─▶ worker (one job at a time) ─▶ results
    submit ──▶ a line for each sender (bounded) ▶┘                        killed when late, replaced

The node's process imports neither ReasoningGYM nor `datasets`. A scorer may hang, hold the interpreter lock or crash:
that costs one job and one worker, never the node. Own jobs have priority; if they still wait too long for foreign jobs,
an additional worker serves only own jobs, until foreign jobs have been short for a while. Workers run in a sandbox
(`sandbox.confinement`), because foreign text may take one over; the pool checks replies against its requests and never
blocks on them. A separate process downloads and converts data sets, and ends before the workers start.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Literal

import msgspec

from swarm.environments.code import resolved
from swarm.environments.config import (
    CODE_FIELDS,
    TASK_LIST,
    DatasetTask,
    TaskConfig,
    VerificationSettings,
    code_of,
    rewards_of,
)
from swarm.environments.episodes.config import VerifiersTask
from swarm.environments.sandbox.directories import (
    WorkerDirectories,
    caches,
    download_environment,
    environment,
    token_file,
)
from swarm.environments.scoring.combination import names_of
from swarm.environments.specs import is_on_disk
from swarm.environments.verification.channel import Channel, Oversized
from swarm.environments.verification.fair import FairQueue
from swarm.environments.verification.messages import (
    MAX_REPLY_BYTES,
    Draw,
    Drawn,
    Failed,
    Graded,
    GradeGroup,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Reply,
    Setup,
    decode_reply,
    encode,
    in_order,
)
from swarm.errors import TaskError
from swarm.reasons import Reason
from swarm.types import Actions, Grade, Question, Rejection, TaskRef

logger = logging.getLogger(__name__)

WORKER = "swarm.environments.verification.worker"
MAX_FAILED_STARTS = 3
START_LIMIT_S = 900.0
"""Long, because a first start may download and convert data sets."""
PATIENCE_S = 2.0
"""The pool starts a worker for own jobs when these have waited this long in total while foreign groups occupied every
worker, or when one foreign group takes this long."""
PATIENCE_PER_S = 0.05
"""Seconds of waiting forgiven per second: occasional waits do not justify the additional worker's 120 MB."""
LONG_S = 1.0
RESERVED_S = 300.0
"""The worker for own jobs ends when no foreign group has taken `LONG_S` for this time."""
MAX_COUNTERS = 64
"""Most distinct counters; workers name some of them."""
_LAST_WORDS_BYTES = 2_000
_OWN_COUNTERS = ("timeouts", "crashes", "violations", "overflows", "restarts")


class _Job:
    """One request and the receiver of its outcome."""

    def __init__(self, request: Draw | GradeGroup, finish: Callable[[Reply], None], own: bool) -> None:
        self.request = request
        # encode in the caller's thread, so that an encoding error is raised there
        self.message = encode(request)
        self.what = f"a group of {request.ref.task}" if isinstance(request, GradeGroup) else str(request)
        self.finish = finish
        self.own = own
        self.queued_at = time.monotonic()


class _Worker:
    """One process, its socket and its current job."""

    def __init__(self, request: Prepare | Setup, room: Path, told: dict[str, str]) -> None:
        self.request = request
        self._room = room
        self._stderr = room.with_suffix(".stderr")
        end, theirs = socket.socketpair()
        self.channel = Channel(end, MAX_REPLY_BYTES)
        with theirs, self._stderr.open("ab") as stderr:
            # not multiprocessing: a plain child neither imports the parent's __main__ nor inherits its memory
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # some generators print
                stderr=stderr,  # not the node's: foreign text must not reach a terminal
                cwd=room,
                env=told,
                start_new_session=True,  # the terminal's Ctrl-C goes to the node, which then closes the pool
            )
        self.ready = False
        self.job: _Job | None = None
        self.began = time.monotonic()
        """Time of its last job's start."""
        self.deadline = self.began + START_LIMIT_S
        self._send(encode(request))

    def give(self, job: _Job, time_limit_s: float) -> None:
        self.job = job
        self.began = time.monotonic()
        self.deadline = self.began + time_limit_s
        self._send(job.message)

    @property
    def asked(self) -> Prepare | Setup | Draw | GradeGroup | None:
        """The request that it must answer."""
        if not self.ready:
            return self.request
        return self.job.request if self.job is not None else None

    def kill(self) -> str:
        """Kill the process; returns how it ended, with the end of its standard error."""
        self.process.kill()
        code = self.process.wait()
        self.channel.close()
        words = b""
        with suppress(FileNotFoundError):  # already killed
            words = self._stderr.read_bytes()[-_LAST_WORDS_BYTES:].strip()
            self._stderr.unlink()
        shutil.rmtree(self._room, ignore_errors=True)
        return f"worker exited with {code}" + (f"; standard error: {words.decode(errors='replace')!r}" if words else "")

    def _send(self, message: bytes) -> None:
        with suppress(ConnectionError):  # the next wait detects a dead child
            self.channel.send(message)


class VerificationPool:
    """Implements `TaskVerifier` with worker processes.

    Workers start in the background; the first call that needs the tasks raises a `TaskError` if they are unusable, and
    so does every later call.
    """

    def __init__(
        self,
        configs: Sequence[TaskConfig],
        settings: VerificationSettings,
        lenient: bool = False,
        files: Collection[str] = (),
    ) -> None:
        """Start the workers and the dispatcher thread.

        `lenient`, for another node's task list: omit tasks that cannot be set up, and read no files except the caches
        and those of the tasks named in `files`, whose paths this node's user gave.
        """
        self._settings = settings
        self._configs = tuple(configs) if lenient else tuple(_from_anywhere(config) for config in configs)
        self._tasks = {config.name: names_of(rewards_of(config)) for config in self._configs}
        self._lenient = lenient
        self._files = frozenset(files)
        self._directories = WorkerDirectories()
        self._python_path = os.pathsep.join(filter(None, sys.path))
        self._setup = Setup(
            configs=TASK_LIST.dump_json(self._configs),
            time_limit_s=settings.time_limit_s,
            memory_limit_bytes=settings.memory_limit_bytes,
            elsewhere=str(self._directories.lock),
            lenient=lenient,
        )
        self._ready = Ready()
        self._lock = threading.Lock()
        self._own: deque[_Job] = deque()
        self._external: FairQueue[tuple[str, _Job]] = FairQueue(settings.queue_groups)
        self._done: list[tuple[str, Grade | Rejection]] = []
        self._counters: Counter[str] = Counter(dict.fromkeys(_OWN_COUNTERS, 0))
        self._failure: TaskError | None = None
        self._closing = False
        self._failed_starts = 0
        self._was_ready = False
        self._wake_reader, self._wake_writer = Pipe(duplex=False)
        self._workers: list[_Worker] = []
        self._reserved: _Worker | None = None
        """The worker that serves own jobs only."""
        self._long_at = 0.0
        """Time of the last long foreign group."""
        self._patience = (PATIENCE_S, 0.0)
        """The remaining patience, and the time of its measurement."""
        self._thread = threading.Thread(target=self._run, name="verification", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> dict[str, str]:
        """The tasks that a lenient pool omitted, with reasons. Raises `TaskError` when none can be set up."""
        first = Draw(0, 0)
        self._question(self._ask(first), first)
        return dict(self._ready.skipped)

    def num_held_out(self, task: str) -> int | None:
        """Questions of a task's held-out streams before one repeats; None when there is no end. Waits until ready."""
        self.wait_until_ready()
        return self._ready.held_out.get(task)

    def unprotected(self) -> dict[str, str]:
        """Protections that a worker found missing, as in `Confinement.probe`; known once ready."""
        return dict(self._ready.unprotected)

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        """Questions `start .. start + count - 1` of stream `seed`: of one task, or of the weighted mixture of all.

        If a task of the mixture fails, hangs or crashes on a question, the next in the list takes over. Raises
        `TaskError` when none is left, or when the tasks cannot be set up.
        """
        draws = [Draw(seed, index, task=task) for index in range(start, start + count)]
        pending = [(self._ask(each), each) for each in draws]
        return [self._question(reply, each) for reply, each in pending]

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[Actions]]]) -> list[Grade | Rejection]:
        """Grade groups and wait: one result per job, in order. Raises `TaskError` when the tasks cannot be set up."""
        pending = [self.begin(ref, texts) for ref, texts in jobs]
        return [verdict.result() for verdict in pending]

    def begin(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """Grade one of this node's own groups; the call or its result raises `TaskError` when the tasks cannot be set
        up."""
        verdict: Future[Grade | Rejection] = Future()

        def finish(reply: Future[Reply]) -> None:
            try:
                verdict.set_result(_outcome(reply.result()))
            except TaskError as error:
                verdict.set_exception(error)

        self._ask(GradeGroup(ref, tuple(texts))).add_done_callback(finish)
        return verdict

    def replay(self, ref: TaskRef, actions: Actions) -> Future[Grade | Rejection]:
        """An own episode so far. See `Verifier`."""
        return self.begin(ref, [actions])

    def submit(self, key: str, ref: TaskRef, texts: Sequence[Actions], sender: str = "") -> None:
        """Queue a group for grading; never blocks.

        Senders are served in turn. When the queue is full, the oldest group of the sender with the most gets
        `verifier_overflow`.
        """

        def finish(reply: Reply) -> None:
            if not isinstance(reply, Failed):  # the pool is closing, and nobody will collect
                with self._lock:
                    self._done.append((key, _outcome(reply)))

        job = _Job(GradeGroup(ref, tuple(texts)), finish, own=False)
        with self._lock:
            self._raise_failure()
            if (dropped := self._external.put(sender, (key, job))) is not None:
                self._counters["overflows"] += 1
                overflow = Rejection(Reason.VERIFIER_OVERFLOW, f"more than {self._settings.queue_groups}")
                self._done.append((dropped[0], overflow))
        self._wake()

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """Results since the last call, by key; raises `TaskError` when the tasks cannot be set up."""
        with self._lock:
            self._raise_failure()
            done, self._done = self._done, []
            return done

    def close(self) -> None:
        """Kill the workers and end the thread; unfinished jobs are lost, and waiting calls raise `TaskError`."""
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join()

    def counters(self) -> dict[str, int]:
        """Cumulative counts of the workers and of `TaskMixture`.

        `timeouts`, `crashes`, `violations` (replies that no intact worker sends), `overflows` of the queue, `restarts`.
        """
        with self._lock:
            return dict(self._counters)

    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        with self._lock:
            return tuple(worker.process.pid for worker in self._workers)

    def _ask(self, request: Draw | GradeGroup) -> Future[Reply]:
        reply: Future[Reply] = Future()
        job = _Job(request, reply.set_result, own=True)
        with self._lock:
            self._raise_failure()
            self._own.append(job)
        self._wake()
        return reply

    def _question(self, reply: Future[Reply], draw: Draw) -> Question:
        """The question that `draw` asked for, asked again where a worker was lost."""
        forgiven = False
        while True:  # ends, because a worker fails when it has to skip every task
            answer = reply.result()
            match answer:
                case Drawn(question, _):
                    return question
                case Failed(error):
                    raise TaskError(error)
            outcome = _outcome(answer)
            if isinstance(outcome, Rejection) and outcome.reason == Reason.VERIFIER_CRASH and not forgiven:
                forgiven = True  # the worker may have been killed from outside: blame the task only the second time
            else:
                draw = msgspec.structs.replace(draw, skip=draw.skip + 1)
            reply = self._ask(draw)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise TaskError(str(self._failure))
        if self._closing:
            raise TaskError("the verification pool is closed")

    def _wake(self) -> None:
        self._wake_writer.send_bytes(b"")

    # the dispatcher thread

    def _run(self) -> None:
        try:
            self._begin()
            while not self._closing and self._failure is None:
                self._hand_out()
                self._listen()
        except OSError as error:
            self._failure = TaskError(f"verification workers cannot be started: {error}")
        finally:
            self._shut_down()

    def _begin(self) -> None:
        """Start the first processes here: workers end with the thread that started them."""
        wanted = [config for config in self._configs if isinstance(config, DatasetTask | VerifiersTask)]
        if not wanted:
            self._start_serving()
            return
        own = [config for config in wanted if not self._lenient or config.name in self._files]
        files = [config.path for config in own if isinstance(config, DatasetTask) and is_on_disk(config)]
        places = caches()
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        # a founder chooses the data sets, but must not use this user's token
        readable = (*files, *(() if self._lenient else (str(token_file()),)))
        request = Prepare(self._setup.configs, readable, tuple(map(str, places)), len(files) < len(wanted))
        room = self._directories.new()
        self._keep(_Worker(request, room, download_environment(room, self._python_path, not self._lenient)))

    def _start_serving(self) -> None:
        for _ in range(self._settings.workers):
            self._keep(self._new_worker())

    def _new_worker(self) -> _Worker:
        room = self._directories.new()
        return _Worker(self._setup, room, environment(room, self._python_path))

    def _keep(self, worker: _Worker, instead_of: _Worker | None = None) -> None:
        with self._lock:
            self._workers = [*(other for other in self._workers if other is not instead_of), worker]

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.asked is None and (job := self._next_job(own_only=worker is self._reserved)) is not None:
                worker.give(job, self._settings.time_limit_s)
        now = time.monotonic()
        if self._patience_ends() <= now:
            self._long_at = now
            self._reserved = self._new_worker()
            self._keep(self._reserved)
        elif self._reservation_ends() <= now:
            self._release()

    def _release(self) -> None:
        """End the worker for own jobs to free its memory."""
        released, self._reserved = self._reserved, None
        assert released is not None
        with self._lock:
            self._workers = [worker for worker in self._workers if worker is not released]
        released.kill()

    def _reservation_ends(self) -> float:
        """Time to end the worker for own jobs; infinity when there is none, or it is busy."""
        idle = self._reserved is not None and self._reserved.asked is None
        return self._long_at + RESERVED_S if idle else math.inf

    def _next_job(self, own_only: bool) -> _Job | None:
        with self._lock:
            if self._own:
                return self._own.popleft()
            waiting = None if own_only else self._external.get()
            return waiting[1] if waiting is not None else None

    def _patience_ends(self) -> float:
        """Time to start a worker for own jobs, on the deadlines' clock; infinity when none is needed."""
        if not self._is_held_up():
            return math.inf
        since = self._own_since()
        # One long group predicts others, even if no own job waited for it.
        return min(max(worker.began for worker in self._workers) + PATIENCE_S, since + self._patience_left(since))

    def _is_held_up(self) -> bool:
        """Whether foreign groups occupy every worker and none serves own jobs."""
        jobs = [worker.job for worker in self._workers]
        return self._reserved is None and bool(jobs) and all(job is not None and not job.own for job in jobs)

    def _own_since(self) -> float:
        """Time since when an own job waits; infinity when none does."""
        with self._lock:
            return self._own[0].queued_at if self._own else math.inf

    def _patience_left(self, now: float) -> float:
        left, then = self._patience
        return min(PATIENCE_S, left + PATIENCE_PER_S * (now - then))

    def _note_end(self, worker: _Worker) -> None:
        """When a foreign job ends, record how long it kept own jobs waiting."""
        now = time.monotonic()
        if worker.job is None or worker.job.own:
            return
        if now - worker.began > LONG_S:
            self._long_at = now
        since = self._own_since()
        if self._is_held_up() and since < now:
            self._patience = (self._patience_left(since) - (now - since), now)

    def _listen(self) -> None:
        """Wait for a wake-up, a reply or a deadline, and handle it."""
        deadline = min([worker.deadline for worker in self._workers if worker.asked is not None], default=math.inf)
        deadline = min(deadline, self._patience_ends(), self._reservation_ends())
        timeout = max(0.0, deadline - time.monotonic()) if deadline < math.inf else None
        with closing(selectors.PollSelector()) as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            for worker in self._workers:
                writing = selectors.EVENT_WRITE if worker.channel.blocked else 0
                selector.register(worker.channel, selectors.EVENT_READ | writing, worker)
            awake = {key.data: events for key, events in selector.select(timeout)}
        while self._wake_reader.poll():
            self._wake_reader.recv_bytes()
        for worker in tuple(self._workers):
            if awake.get(worker, 0) & selectors.EVENT_READ:
                self._receive(worker)
            elif worker.asked is not None and time.monotonic() >= worker.deadline:
                self._lost(worker, "timeouts")
            elif worker in awake:
                with suppress(ConnectionError):  # the next read detects this as well
                    worker.channel.flush()

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.channel.receive()
            reply = decode_reply(message) if message is not None else None
        except (EOFError, ConnectionError):
            self._lost(worker, "crashes")
            return
        except (Oversized, msgspec.DecodeError, RecursionError) as error:
            self._lost(worker, "violations", str(error))
            return
        if reply is None:
            return
        asked = worker.asked
        if asked is None or not in_order(asked, reply, self._tasks) or not self._counted(reply):
            self._lost(worker, "violations", f"it answered {str(reply)[:200]}")
        elif worker.job is not None:
            self._note_end(worker)
            job, worker.job = worker.job, None
            job.finish(reply)
        elif isinstance(reply, Prepared):
            self._prepared(worker, reply)
        elif isinstance(reply, Ready):
            worker.ready, self._was_ready, self._failed_starts = True, True, 0
            self._ready = reply
        elif isinstance(reply, Failed):
            self._lost(worker, "crashes", error=reply.error)

    def _prepared(self, worker: _Worker, reply: Prepared) -> None:
        """Data sets are on disk: end the process with network access and start the graders."""
        cache = caches()[1]
        files = [Path(part.path) for rows in reply.stored.values() for part in rows.files]
        if not all(path.is_relative_to(cache) and ".." not in path.parts for path in files):
            self._lost(worker, "violations", "it named files outside the cache as rows")
            return
        worker.kill()
        with self._lock:
            self._workers = []
        self._setup = msgspec.structs.replace(self._setup, stored=reply.stored, unprepared=reply.unprepared)
        self._start_serving()

    def _counted(self, reply: Reply) -> bool:
        """Add a worker's counts; False when it uses a reserved name or too many names."""
        if not isinstance(reply, Drawn | Graded):
            return True
        with self._lock:
            if not reply.counts.keys().isdisjoint(_OWN_COUNTERS):
                return False
            if len(self._counters.keys() | reply.counts.keys()) > MAX_COUNTERS:
                return False
            self._counters.update(reply.counts)
        return True

    def _lost(self, worker: _Worker, how: Literal["timeouts", "crashes", "violations"], error: str = "") -> None:
        """Remove a lost worker, give its job a result, and start another unless starts keep failing."""
        ended = worker.kill()
        job = worker.job
        late = how == "timeouts"
        detail = f"over {self._settings.time_limit_s} s" if late else f"{error}; {ended}" if error else ended
        if job is not None or how == "violations":
            self._count(how)
            logger.warning("lost a verification worker on %s: %s", job.what if job is not None else "nothing", detail)
        if job is not None:
            self._note_end(worker)
            reason = Reason.VERIFIER_TIMEOUT if late else Reason.VERIFIER_CRASH
            job.finish(Refused(Rejection(reason, detail)))
        if not worker.ready:
            self._failed_starts += 1
            # a first start that reports unusable tasks would only report them again
            if self._failed_starts == MAX_FAILED_STARTS or (error and not self._was_ready):
                ended = f"took over {START_LIMIT_S} s" if late else ended
                self._failure = TaskError(error or f"verification workers do not start: the last {ended}")
                return
        self._count("restarts")
        if isinstance(worker.request, Prepare):
            with self._lock:
                self._workers = []
            self._begin()
            return
        replacement = self._new_worker()
        if worker is self._reserved:
            self._reserved = replacement
        self._keep(replacement, instead_of=worker)

    def _count(self, what: str) -> None:
        with self._lock:
            self._counters[what] += 1

    def _shut_down(self) -> None:
        """End every process and every waiting call, whatever ended the thread."""
        with self._lock:
            if self._failure is None:
                ended = "is closed" if self._closing else "failed; its thread's traceback says why"
                self._failure = TaskError(f"the verification pool {ended}")
            unfinished = [worker.job for worker in self._workers if worker.job is not None] + list(self._own)
            self._own.clear()
            self._external.clear()
        for worker in self._workers:
            worker.kill()
        self._directories.close()
        for job in unfinished:
            job.finish(Failed(str(self._failure)))


def _outcome(reply: Reply) -> Grade | Rejection:
    match reply:
        case Graded(grade, _):
            return grade
        case Refused(rejection):
            return rejection
        case Failed(error):
            raise TaskError(error)
    raise AssertionError(f"a verification worker answered {reply} to a group")


def _from_anywhere(config: TaskConfig) -> TaskConfig:
    """The same task for a process in another directory."""
    here: dict[str, str] = {}
    if isinstance(config, DatasetTask) and is_on_disk(config):
        here["path"] = str(Path(config.path).expanduser().absolute())
    if (target := code_of(config)) is not None:
        here[CODE_FIELDS[config.kind]] = resolved(target)
    return config.model_copy(update=here)
