"""Hands jobs to worker processes, receives their replies, and replaces the workers that are lost."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

import msgspec

from swarm.children import Backoff, Oversized, Waker, wait
from swarm.environments.config import VerificationSettings
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
from swarm.environments.verification.processes import START_LIMIT_S, Job, WorkerProcess, WorkerStarter
from swarm.errors import TaskError
from swarm.fair_store import FairQueue
from swarm.reasons import Reason
from swarm.sanitize import clean
from swarm.types import Rejection

logger = logging.getLogger(__name__)

MAX_FAILED_STARTS = 3
MAX_REFUSED_STARTS = 8
"""Starts in a row that the system refused: about a minute, as it may lack memory or processes for a while."""
REFUSED_REST_S = 0.5
"""Pause after the first of them; each further one doubles it."""
MAX_REPORTED = 64
"""Reported failures of tasks; workers make up their texts, and may quote others' answers."""
MAX_COUNTERS = 64
"""Most distinct counters; workers name some of them."""
_OWN_COUNTERS = ("timeouts", "crashes", "violations", "overflows", "restarts")
MAX_WAIT_S = 2.0
"""The pool starts a worker for own jobs when these have waited this long in total while foreign groups occupied every
worker, or when one foreign group takes this long."""
FORGIVEN_PER_S = 0.05
"""Seconds of waiting forgiven per second: occasional waits do not justify the additional worker's 120 MB."""
LONG_S = 1.0
RESERVED_S = 300.0
"""The worker for own jobs ends when no foreign group has taken `LONG_S` for this time."""


class StarvationGuard:
    """Decides when own jobs need an additional worker, because foreign groups keep them waiting, and until when.

    All times are on one monotonic clock.
    """

    def __init__(self) -> None:
        self._left_s = MAX_WAIT_S
        self._measured_at = 0.0
        self._long_at = 0.0
        """Time of the last long foreign group."""

    def ends_at(self, began: float, waiting_since: float) -> float:
        """Time to start a worker for own jobs.

        Foreign groups occupy all others, the newest since `began`; the first own job waits since `waiting_since`,
        infinity when none does.
        """
        # One long group predicts others, even if no own job waited for it.
        return min(began + MAX_WAIT_S, waiting_since + self._left(waiting_since))

    def reserved_until(self) -> float:
        """Time to end the worker for own jobs."""
        return self._long_at + RESERVED_S

    def note_reserved(self, now: float) -> None:
        """A worker for own jobs was started."""
        self._long_at = now

    def note_foreign(self, began: float, now: float) -> None:
        """A foreign group has ended."""
        if now - began > LONG_S:
            self._long_at = now

    def note_waited(self, since: float, now: float) -> None:
        """An own job waited for foreign groups."""
        self._left_s = self._left(since) - (now - since)
        self._measured_at = now

    def _left(self, now: float) -> float:
        return min(MAX_WAIT_S, self._left_s + FORGIVEN_PER_S * (now - self._measured_at))


class Dispatcher:
    """A thread that serves own jobs first, then foreign ones, sender by sender."""

    def __init__(self, starter: WorkerStarter, settings: VerificationSettings) -> None:
        """Start the workers and the thread."""
        self._starter = starter
        self._settings = settings
        self.ready = Ready()
        """Tasks as reported by the last worker that became ready."""
        self._lock = threading.Lock()
        self._own: deque[Job] = deque()
        self._foreign: FairQueue[Job] = FairQueue(settings.queue_groups)
        self._counters: Counter[str] = Counter(dict.fromkeys(_OWN_COUNTERS, 0))
        self._reported: set[str] = set()
        """Keys of failures that were reported to the user."""
        self._texts: dict[str, str] = {}
        """Texts of failures, by key, since the last `take_texts`."""
        self._failure: TaskError | None = None
        self._closing = False
        self._failed_starts = 0
        self._was_ready = False
        self._waker = Waker()
        self._workers: list[WorkerProcess] = []
        self._unstarted: deque[Callable[[], None]] = deque()
        """Starts that are due after the pause."""
        self._refusals = Backoff(REFUSED_REST_S)
        self._reserved: WorkerProcess | None = None
        """The worker that serves own jobs only."""
        self._guard = StarvationGuard()
        self._thread = threading.Thread(target=self._run, name="verification", daemon=True)
        self._thread.start()

    def put_own(self, job: Job) -> None:
        """Queue one of this node's own jobs. Raises `TaskError` when the tasks cannot be set up."""
        with self._lock:
            self._raise_failure()
            self._own.append(job)
        self._waker.wake()

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
        self._waker.wake()

    def check(self) -> None:
        """Raise `TaskError` when the tasks cannot be set up, or after `close`."""
        with self._lock:
            self._raise_failure()

    def close(self) -> None:
        """Kill the workers and end the thread; own jobs that are unfinished fail, foreign ones are lost."""
        with self._lock:
            self._closing = True
        self._waker.wake()
        self._thread.join()

    def counters(self) -> dict[str, int]:
        """See `VerificationPool.counters`."""
        with self._lock:
            return dict(self._counters)

    def take_texts(self) -> dict[str, str]:
        """See `VerificationPool.take_texts`."""
        with self._lock:
            taken, self._texts = self._texts, {}
        return taken

    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        with self._lock:
            return tuple(worker.pid for worker in self._workers)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise TaskError(str(self._failure))
        if self._closing:
            raise TaskError("the verification pool is closed")

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
        while self._unstarted and self._failure is None and self._refusals.until <= time.monotonic():
            if self._starts(self._unstarted[0]):
                self._unstarted.popleft()

    def _starts(self, start: Callable[[], None]) -> bool:
        """Whether the system lets a process start; if not, starts pause, and after several the pool ends."""
        try:
            start()
        except OSError as error:
            logger.warning("a verification worker cannot be started: %s", error)
            self._refusals.note_failure(time.monotonic())
            if self._refusals.failures >= (MAX_REFUSED_STARTS if self._was_ready else MAX_FAILED_STARTS):
                self._failure = TaskError(f"verification workers cannot be started: {error}")
            return False
        self._refusals.note_success()
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
        if self._guard_due() <= now:
            self._guard.note_reserved(now)
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
        return self._guard.reserved_until() if idle else math.inf

    def _guard_due(self) -> float:
        """Time to start a worker for own jobs; infinity when none is needed."""
        if not self._is_held_up():
            return math.inf
        ends_at = self._guard.ends_at(max(worker.began for worker in self._workers), self._own_since())
        return max(ends_at, self._refusals.until)

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
        self._guard.note_foreign(worker.began, now)
        if self._is_held_up() and since < now:
            self._guard.note_waited(since, now)

    def _listen(self) -> None:
        """Wait for a wake-up, a reply or a deadline, and handle it."""
        deadline = min([worker.deadline for worker in self._workers if worker.asked is not None], default=math.inf)
        deadline = min(deadline, self._guard_due(), self._reservation_ends())
        deadline = min(deadline, self._refusals.until if self._unstarted else math.inf)
        timeout = max(0.0, deadline - time.monotonic()) if deadline < math.inf else None
        ready = wait(self._waker, [worker.channel for worker in self._workers], timeout)
        for worker in tuple(self._workers):
            if worker.channel in ready:
                self._receive(worker)
            elif worker.asked is not None and time.monotonic() >= worker.deadline:
                self._lost(worker, "timeouts")

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
            new = {key: text for key, text in reply.texts.items() if key not in self._reported}
            self._reported.update(list(new)[: MAX_REPORTED - len(self._reported)])
            new = {key: clean(text) for key, text in new.items() if key in self._reported}
            self._texts.update(new)
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
        self._waker.close()
        for job in unfinished:
            job.finish(Failed(str(self._failure)))
