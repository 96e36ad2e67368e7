"""Questions and grades made by killable processes.

    draw, grade ──▶ own jobs ──────────▶┐
                                        ├─▶ dispatcher thread ─▶ worker (one job at a time) ─▶ results
    submit ──▶ external jobs (bounded) ─▶┘                          killed when late, replaced

The node's process imports neither ReasoningGYM nor `datasets`. A scorer may hang, hold the interpreter or take the
process down: it costs one job and one worker, never the node. Own jobs are always taken first; once they had to wait
for strangers' all the same, one further worker takes nothing else.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Pipe, wait

from swarm.errors import TaskError
from swarm.tasks.config import TASK_LIST, TaskConfig, VerificationSettings
from swarm.tasks.messages import (
    Draw,
    Drawn,
    Failed,
    Graded,
    GradeGroup,
    Ready,
    Refused,
    Reply,
    Setup,
    decode_reply,
    encode,
)
from swarm.types import Grade, Question, Rejection, TaskRef

logger = logging.getLogger(__name__)

MAX_FAILED_STARTS = 3
START_LIMIT_S = 900.0
"""A first start may download and convert data sets."""
PATIENCE_S = 1.0
"""So long an own job waits while every worker is on others' groups before a worker is started for own ones alone."""

_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "USE_TORCH": "0",  # `datasets` would look for it
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "PYTHONHASHSEED": "0",  # some generators iterate over sets of strings: every node must make the same questions
}


class _Job:
    """One request and where its outcome goes."""

    def __init__(self, request: Draw | GradeGroup, finish: Callable[[Reply], None], own: bool) -> None:
        # encoded here, in the caller's thread: what cannot be encoded is the caller's error
        self.message = encode(request)
        self.what = f"a group of {request.ref.task}" if isinstance(request, GradeGroup) else str(request)
        self.finish = finish
        self.own = own
        self.queued_at = time.monotonic()


class _Worker:
    """One process, the socket to it, and what it is doing."""

    def __init__(self, setup: Setup) -> None:
        self.connection, theirs = Pipe()
        # a plain child, not multiprocessing's: it neither imports the parent's __main__ nor inherits its memory
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "swarm.tasks.worker", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # some generators print
            env={**os.environ, **_WORKER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            process_group=0,  # a terminal's Ctrl-C is for the node, which then closes the pool
        )
        theirs.close()
        with suppress(ConnectionError):  # a child that died at once is found by the next wait
            self.connection.send_bytes(encode(setup))
        self.ready = False
        self.job: _Job | None = None
        self.deadline = time.monotonic() + START_LIMIT_S

    def give(self, job: _Job, time_limit_s: float) -> None:
        self.job = job
        self.deadline = time.monotonic() + time_limit_s
        self.connection.send_bytes(job.message)

    @property
    def busy(self) -> bool:
        return not self.ready or self.job is not None

    def kill(self) -> int:
        """End the process; its exit code, or minus the signal that ended it."""
        self.process.kill()
        code = self.process.wait()
        self.connection.close()
        return code


class VerificationPool:
    """Implements `Verifier` with worker processes.

    Workers start at once and in the background; what is wrong with the tasks is raised as `TaskError` by the first
    call that needs them. Every call raises it from then on.
    """

    def __init__(self, configs: Sequence[TaskConfig], settings: VerificationSettings, lenient: bool = False) -> None:
        """Start the workers and the thread that feeds them. `lenient`: go without tasks that cannot be set up."""
        self._settings = settings
        self._setup = Setup(
            TASK_LIST.dump_json(tuple(configs)), settings.time_limit_s, settings.memory_limit_bytes, lenient
        )
        self._skipped: dict[str, str] = {}
        self._lock = threading.Lock()
        self._own: deque[_Job] = deque()
        self._external: deque[tuple[str, _Job]] = deque()
        self._done: list[tuple[str, Grade | Rejection]] = []
        self._counters: Counter[str] = Counter(timeouts=0, crashes=0, overflows=0, restarts=0)
        self._failure: TaskError | None = None
        self._closing = False
        self._failed_starts = 0
        self._was_ready = False
        self._wake_reader, self._wake_writer = Pipe(duplex=False)
        self._workers = [_Worker(self._setup) for _ in range(settings.workers)]
        self._reserved: _Worker | None = None
        """That of them which takes own jobs only."""
        self._thread = threading.Thread(target=self._run, name="verification", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> dict[str, str]:
        """The tasks left out by a lenient pool, each with the reason. Raises `TaskError` when none can be set up."""
        self._question(0, 0, self._ask(Draw(0, 0)))
        return dict(self._skipped)

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        """Questions `start .. start + count - 1` of the weighted mixture's stream `seed`.

        A task that fails, hangs or crashes on a question is passed over for the next in the list. Raises `TaskError`
        when none is left, or when the tasks cannot be set up.
        """
        pending = [(index, self._ask(Draw(seed, index))) for index in range(start, start + count)]
        return [self._question(seed, index, reply) for index, reply in pending]

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[str]]]) -> list[Grade | Rejection]:
        """Grade groups and wait: one result a job, in order. Raises `TaskError` when the tasks cannot be set up."""
        pending = [self.begin(ref, texts) for ref, texts in jobs]
        return [verdict.result() for verdict in pending]

    def begin(self, ref: TaskRef, texts: Sequence[str]) -> Future[Grade | Rejection]:
        """Grade one of this node's own groups; call or result raise `TaskError` when the tasks cannot be set up."""
        verdict: Future[Grade | Rejection] = Future()

        def finish(reply: Future[Reply]) -> None:
            try:
                verdict.set_result(_outcome(reply.result()))
            except TaskError as error:
                verdict.set_exception(error)

        self._ask(GradeGroup(ref, tuple(texts))).add_done_callback(finish)
        return verdict

    def submit(self, key: str, ref: TaskRef, texts: Sequence[str]) -> None:
        """Queue a group for grading; never blocks. A full queue gives its oldest group `verifier_overflow`."""

        def finish(reply: Reply) -> None:
            if not isinstance(reply, Failed):  # the pool is ending, and nobody will collect
                with self._lock:
                    self._done.append((key, _outcome(reply)))

        job = _Job(GradeGroup(ref, tuple(texts)), finish, own=False)
        with self._lock:
            self._raise_failure()
            if len(self._external) == self._settings.queue_groups:
                dropped, _ = self._external.popleft()
                self._counters["overflows"] += 1
                self._done.append((dropped, Rejection("verifier_overflow", f"more than {self._settings.queue_groups}")))
            self._external.append((key, job))
        self._wake()

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """What has been graded since the last call; raises `TaskError` when the tasks cannot be set up."""
        with self._lock:
            self._raise_failure()
            done, self._done = self._done, []
            return done

    def close(self) -> None:
        """Kill the workers and end the thread; what is unfinished is lost, a waiting call gets `TaskError`."""
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join()

    def counters(self) -> dict[str, int]:
        """Cumulative: timeouts, crashes, overflows of the queue, restarts of workers, and what `TaskMixture` counts."""
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

    def _question(self, seed: int, index: int, reply: Future[Reply]) -> Question:
        skip, forgiven = 0, False
        while True:  # a worker told to skip every task fails at once
            answer = reply.result()
            match answer:
                case Drawn(question, _):
                    return question
                case Failed(error):
                    raise TaskError(error)
            outcome = _outcome(answer)
            if isinstance(outcome, Rejection) and outcome.reason == "verifier_crash" and not forgiven:
                forgiven = True  # the worker may have been killed from outside: the task is blamed the second time
            else:
                skip += 1
            reply = self._ask(Draw(seed, index, skip))

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
            while not self._closing and self._failure is None:
                self._hand_out()
                self._listen()
        finally:
            self._shut_down()

    def _hand_out(self) -> None:
        for worker in self._workers:
            if not worker.busy and (job := self._next_job(own_only=worker is self._reserved)) is not None:
                try:
                    worker.give(job, self._settings.time_limit_s)
                except ConnectionError:
                    self._lost(worker, late=False)
        if self._patience_ends() <= time.monotonic():
            self._reserved = _Worker(self._setup)
            with self._lock:
                self._workers = [*self._workers, self._reserved]

    def _next_job(self, own_only: bool) -> _Job | None:
        with self._lock:
            if self._own:
                return self._own.popleft()
            return self._external.popleft()[1] if self._external and not own_only else None

    def _patience_ends(self) -> float:
        """When a worker must be started for own jobs, on the clock of deadlines; infinity when none has to."""
        with self._lock:
            oldest = self._own[0].queued_at if self._own else math.inf
        jobs = [worker.job for worker in self._workers]
        taken = self._reserved is None and all(job is not None and not job.own for job in jobs)
        return oldest + PATIENCE_S if taken else math.inf

    def _listen(self) -> None:
        """Wait for a wake-up, a reply or a deadline, and deal with each."""
        deadline = min([worker.deadline for worker in self._workers if worker.busy], default=math.inf)
        deadline = min(deadline, self._patience_ends())
        timeout = max(0.0, deadline - time.monotonic()) if deadline < math.inf else None
        awake = wait([self._wake_reader, *(worker.connection for worker in self._workers)], timeout)
        while self._wake_reader.poll():
            self._wake_reader.recv_bytes()
        for worker in tuple(self._workers):
            if worker.connection in awake:
                self._receive(worker)
            elif worker.busy and time.monotonic() >= worker.deadline:
                self._lost(worker, late=True)

    def _receive(self, worker: _Worker) -> None:
        try:
            reply = decode_reply(worker.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self._lost(worker, late=False)
            return
        if worker.ready:
            job, worker.job = worker.job, None
            assert job is not None
            if isinstance(reply, Drawn | Graded):
                with self._lock:
                    self._counters.update(reply.counts)
            job.finish(reply)
        elif isinstance(reply, Ready):
            worker.ready, self._was_ready, self._failed_starts = True, True, 0
            self._skipped = reply.skipped
        elif isinstance(reply, Failed):
            self._lost(worker, late=False, error=reply.error)

    def _lost(self, worker: _Worker, late: bool, error: str = "") -> None:
        """Bury a worker, give its job a result, and start another unless starting has become hopeless."""
        code = worker.kill()
        job = worker.job
        if job is not None:
            reason = "verifier_timeout" if late else "verifier_crash"
            detail = f"over {self._settings.time_limit_s} s" if late else f"worker ended with {code}"
            self._count("timeouts" if late else "crashes")
            logger.warning("lost a verification worker on %s: %s", job.what, detail)
            job.finish(Refused(Rejection(reason, detail)))
        if not worker.ready:
            self._failed_starts += 1
            # a first start that reports what is wrong with the tasks would only report it again
            if self._failed_starts == MAX_FAILED_STARTS or (error and not self._was_ready):
                ended = f"took over {START_LIMIT_S} s" if late else f"ended with {code}"
                self._failure = TaskError(error or f"verification workers do not start: the last one {ended}")
                return
        self._count("restarts")
        replacement = _Worker(self._setup)
        if worker is self._reserved:
            self._reserved = replacement
        with self._lock:
            self._workers[self._workers.index(worker)] = replacement

    def _count(self, what: str) -> None:
        with self._lock:
            self._counters[what] += 1

    def _shut_down(self) -> None:
        """Leave no process, and no caller waiting, whatever ended the thread."""
        with self._lock:
            if self._failure is None:
                ended = "is closed" if self._closing else "broke; its thread's traceback says why"
                self._failure = TaskError(f"the verification pool {ended}")
            unfinished = [worker.job for worker in self._workers if worker.job is not None] + list(self._own)
            self._own.clear()
            self._external.clear()
        for worker in self._workers:
            worker.kill()
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
