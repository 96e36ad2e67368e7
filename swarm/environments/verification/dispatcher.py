"""Hands jobs to worker processes, receives their replies, and replaces the workers that are lost."""

from __future__ import annotations

import logging
import math
import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing, suppress
from socket import socketpair
from typing import Literal

import msgspec

from swarm.environments.config import VerificationSettings
from swarm.environments.verification.channel import Oversized
from swarm.environments.verification.messages import (
    Drawn,
    DrawnSeveral,
    Failed,
    Graded,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Reply,
    decode_reply,
    in_order,
)
from swarm.environments.verification.patience import Patience
from swarm.environments.verification.process import START_LIMIT_S, Job, WorkerProcess
from swarm.environments.verification.starting import WorkerStarter
from swarm.errors import TaskError
from swarm.fair_store import FairQueue
from swarm.foreign import clean
from swarm.reasons import Reason
from swarm.types import Rejection

logger = logging.getLogger(__name__)

MAX_FAILED_STARTS = 3
MAX_REFUSED_STARTS = 8
"""In a row, of which the system allows none: about a minute, as it may lack memory or processes for a while."""
REFUSED_REST_S = 0.5
"""After the first of them; each further one doubles it."""
WAKE_UPS = 4_096
"""Taken at once; further ones wake the thread again."""
MAX_SAID = 64
"""Failures of tasks that are told; workers make up their texts, and may quote others' answers."""
MAX_COUNTERS = 64
"""Most distinct counters; workers name some of them."""
_OWN_COUNTERS = ("timeouts", "crashes", "violations", "overflows", "restarts")


class Dispatcher:
    """A thread that serves own jobs first, then foreign ones, sender by sender."""

    def __init__(self, starter: WorkerStarter, settings: VerificationSettings) -> None:
        """Start the workers and the thread."""
        self._starter = starter
        self._settings = settings
        self.ready = Ready()
        """What the last worker that became ready said of the tasks."""
        self._lock = threading.Lock()
        self._own: deque[Job] = deque()
        self._foreign: FairQueue[Job] = FairQueue(settings.queue_groups)
        self._counters: Counter[str] = Counter(dict.fromkeys(_OWN_COUNTERS, 0))
        self._said: set[str] = set()
        """Keys of the failures that the user has been told of."""
        self._new: dict[str, str] = {}
        """Their texts, by key, that nobody has taken."""
        self._failure: TaskError | None = None
        self._closing = False
        self._failed_starts = 0
        self._was_ready = False
        self._wake_reader, self._wake_writer = socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._workers: list[WorkerProcess] = []
        self._unstarted: deque[Callable[[], None]] = deque()
        """Starts that are due as soon as there is no rest."""
        self._refusals = 0
        """In a row."""
        self._rest_until = -math.inf
        self._reserved: WorkerProcess | None = None
        """The worker that serves own jobs only."""
        self._patience = Patience()
        self._thread = threading.Thread(target=self._run, name="verification", daemon=True)
        self._thread.start()

    def put_own(self, job: Job) -> None:
        """Queue one of this node's own jobs. Raises `TaskError` when the tasks cannot be set up."""
        with self._lock:
            self._raise_failure()
            self._own.append(job)
        self._wake()

    def put_foreign(self, sender: str, job: Job) -> None:
        """Queue a sender's job; when the queue is full, the oldest of the sender with the most is refused.

        Raises `TaskError` when the tasks cannot be set up.
        """
        with self._lock:
            self._raise_failure()
            dropped = self._foreign.put(sender, job)
            self._counters["overflows"] += dropped is not None
        if dropped is not None:
            detail = f"more than {self._settings.queue_groups}"
            dropped.finish(Refused(Rejection(Reason.VERIFIER_OVERFLOW, detail)))
        self._wake()

    def check(self) -> None:
        """Raise `TaskError` when the tasks cannot be set up, or after `close`."""
        with self._lock:
            self._raise_failure()

    def close(self) -> None:
        """Kill the workers and end the thread; own jobs that are unfinished fail, foreign ones are lost."""
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join()

    def counters(self) -> dict[str, int]:
        """See `VerificationPool.counters`."""
        with self._lock:
            return dict(self._counters)

    def take_texts(self) -> dict[str, str]:
        """See `VerificationPool.take_texts`."""
        with self._lock:
            taken, self._new = self._new, {}
        return taken

    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        with self._lock:
            return tuple(worker.process.pid for worker in self._workers)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise TaskError(str(self._failure))
        if self._closing:
            raise TaskError("the verification pool is closed")

    def _wake(self) -> None:
        with suppress(OSError):  # full: it will wake up in any case; or closed with the thread
            self._wake_writer.send(b"\0")

    # everything below runs in the thread

    def _run(self) -> None:
        try:
            self._unstarted.append(self._begin)
            while not self._closing and self._failure is None:
                self._start_due()
                self._hand_out()
                self._listen()
        finally:
            self._shut_down()

    def _begin(self) -> None:
        """Start the first processes here: workers end with the thread that started them."""
        preparer = self._starter.preparer()
        if preparer is not None:
            preparer.deadline = self._starter.preparation.deadline()
            self._keep(preparer)
        else:
            self._start_graders()

    def _start_graders(self) -> None:
        self._unstarted.extend([self._start_grader] * self._settings.workers)

    def _start_grader(self) -> None:
        self._keep(self._starter.grader())

    def _start_reserved(self) -> None:
        reserved = self._starter.grader()
        self._reserved = reserved
        self._keep(reserved)

    def _start_due(self) -> None:
        while self._unstarted and self._failure is None and self._rest_until <= time.monotonic():
            if self._starts(self._unstarted[0]):
                self._unstarted.popleft()

    def _starts(self, start: Callable[[], None]) -> bool:
        """Whether the system lets a process start; otherwise there is a rest, and after several the pool ends."""
        try:
            start()
        except OSError as error:
            logger.warning("a verification worker cannot be started: %s", error)
            self._refusals += 1
            if self._refusals < (MAX_REFUSED_STARTS if self._was_ready else MAX_FAILED_STARTS):
                self._rest_until = time.monotonic() + REFUSED_REST_S * 2.0 ** (self._refusals - 1)
            else:
                self._failure = TaskError(f"verification workers cannot be started: {error}")
            return False
        self._refusals = 0
        return True

    def _keep(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._workers = [*self._workers, worker]

    def _remove(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._workers = [other for other in self._workers if other is not worker]

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.asked is None and (job := self._next_job(own_only=worker is self._reserved)) is not None:
                worker.give(job, self._settings.time_limit_s)
        now = time.monotonic()
        if self._patience_ends() <= now:
            self._patience.note_reserved(now)
            self._starts(self._start_reserved)
        elif self._reservation_ends() <= now:
            self._release()

    def _next_job(self, own_only: bool) -> Job | None:
        with self._lock:
            if self._own:
                return self._own.popleft()
            return None if own_only else self._foreign.get()

    def _release(self) -> None:
        """End the worker for own jobs to free its memory."""
        released, self._reserved = self._reserved, None
        assert released is not None
        self._remove(released)
        released.kill()

    def _reservation_ends(self) -> float:
        """Time to end the worker for own jobs; infinity when there is none, or it is busy."""
        idle = self._reserved is not None and self._reserved.asked is None
        return self._patience.reserved_until() if idle else math.inf

    def _patience_ends(self) -> float:
        """Time to start a worker for own jobs; infinity when none is needed."""
        if not self._is_held_up():
            return math.inf
        ends_at = self._patience.ends_at(max(worker.began for worker in self._workers), self._own_since())
        return max(ends_at, self._rest_until)

    def _is_held_up(self) -> bool:
        """Whether foreign groups occupy every worker and none serves own jobs."""
        jobs = [worker.job for worker in self._workers]
        return self._reserved is None and bool(jobs) and all(job is not None and not job.own for job in jobs)

    def _own_since(self) -> float:
        """Time since when an own job waits; infinity when none does."""
        with self._lock:
            return self._own[0].queued_at if self._own else math.inf

    def _note_end(self, worker: WorkerProcess) -> None:
        """When a foreign job ends, record how long it kept own jobs waiting."""
        if worker.job is None or worker.job.own:
            return
        now, since = time.monotonic(), self._own_since()
        self._patience.note_foreign(worker.began, now)
        if self._is_held_up() and since < now:
            self._patience.note_waited(since, now)

    def _listen(self) -> None:
        """Wait for a wake-up, a reply or a deadline, and handle it."""
        deadline = min([worker.deadline for worker in self._workers if worker.asked is not None], default=math.inf)
        deadline = min(deadline, self._patience_ends(), self._reservation_ends())
        deadline = min(deadline, self._rest_until if self._unstarted else math.inf)
        timeout = max(0.0, deadline - time.monotonic()) if deadline < math.inf else None
        with closing(selectors.PollSelector()) as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            for worker in self._workers:
                writing = selectors.EVENT_WRITE if worker.channel.blocked else 0
                selector.register(worker.channel, selectors.EVENT_READ | writing, worker)
            awake = {key.data: events for key, events in selector.select(timeout)}
        if None in awake:
            self._wake_reader.recv(WAKE_UPS)
        for worker in tuple(self._workers):
            if awake.get(worker, 0) & selectors.EVENT_READ:
                self._receive(worker)
            elif worker.asked is not None and time.monotonic() >= worker.deadline:
                self._lost(worker, "timeouts")
            elif worker in awake:
                with suppress(ConnectionError):  # the next read detects this as well
                    worker.channel.flush()

    def _receive(self, worker: WorkerProcess) -> None:
        try:
            message = worker.channel.receive()
            reply = decode_reply(message) if message is not None else None
        except (EOFError, ConnectionError):
            self._lost(worker, "crashes")
            return
        except (Oversized, msgspec.DecodeError, RecursionError) as error:
            self._lost(worker, "violations", str(error))
            return
        if message is None or reply is None:
            return
        asked = worker.asked
        if (
            asked is None
            or not in_order(asked, reply, self._starter.rewards, self._starter.shows, time.monotonic() - worker.began)
            or not self._counted(reply)
        ):
            self._lost(worker, "violations", f"it answered {message[:200]!r}")
        elif worker.job is not None:
            self._note_end(worker)
            job, worker.job = worker.job, None
            job.finish(reply)
        elif isinstance(reply, Prepared):
            self._prepared(worker, reply)
        elif isinstance(reply, Ready):
            worker.ready, self._was_ready, self._failed_starts = True, True, 0
            self.ready = reply
        elif isinstance(reply, Failed):
            self._lost(worker, "crashes", error=reply.error)

    def _prepared(self, worker: WorkerProcess, reply: Prepared) -> None:
        """Once all data sets are on disk, end the process with network access and start the graders."""
        preparation = self._starter.preparation
        if reply.ends:
            worker.kill()
        if not preparation.accept(reply):
            self._lost(worker, "violations", "it named files outside the cache as rows")
            return
        self._failed_starts = 0
        if preparation.wanted:
            if reply.ends:
                self._replace(worker)
            else:
                worker.proceed(preparation.deadline())
            return
        worker.kill()
        with self._lock:
            self._workers = []
        self._start_graders()

    def _counted(self, reply: Reply) -> bool:
        """Add a worker's counts; False when it uses a reserved name or too many names."""
        if not isinstance(reply, Drawn | DrawnSeveral | Graded):
            return True
        with self._lock:
            if not reply.counts.keys().isdisjoint(_OWN_COUNTERS):
                return False
            if len(self._counters.keys() | reply.counts.keys()) > MAX_COUNTERS:
                return False
            self._counters.update(reply.counts)
            new = {key: text for key, text in reply.texts.items() if key not in self._said}
            self._said.update(list(new)[: MAX_SAID - len(self._said)])
            new = {key: clean(text) for key, text in new.items() if key in self._said}
            self._new.update(new)
        for text in new.values():
            logger.warning("%s", text)
        return True

    def _lost(self, worker: WorkerProcess, how: Literal["timeouts", "crashes", "violations"], error: str = "") -> None:
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
        if not worker.ready and not self._left_out(worker, how, detail):
            self._failed_starts += 1
            # a first start that reports unusable tasks would only report them again
            if self._failed_starts == MAX_FAILED_STARTS or (error and not self._was_ready):
                ended = f"took over {START_LIMIT_S} s" if late else ended
                self._failure = TaskError(error or f"verification workers do not start: the last {ended}")
                return
        self._count("restarts")
        self._replace(worker)

    def _left_out(self, worker: WorkerProcess, how: Literal["timeouts", "crashes", "violations"], detail: str) -> bool:
        """Whether the loss is that of a data set, so that the others are prepared without it."""
        if how == "violations" or not isinstance(worker.request, Prepare):
            return False
        late = how == "timeouts"
        return self._starter.preparation.give_up(f"it took over {START_LIMIT_S:.0f} s" if late else detail, late)

    def _replace(self, worker: WorkerProcess) -> None:
        self._remove(worker)
        if worker is self._reserved:
            self._reserved = None
            self._starts(self._start_reserved)
        else:
            self._unstarted.append(self._begin if isinstance(worker.request, Prepare) else self._start_grader)

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
            self._foreign.clear()
        for worker in self._workers:
            worker.kill()
        self._starter.close()
        self._wake_reader.close()
        self._wake_writer.close()
        for job in unfinished:
            job.finish(Failed(str(self._failure)))
