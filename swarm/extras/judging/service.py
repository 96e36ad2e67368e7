"""Asks a judge or a reward service about groups: queue, budget, time limits and cache, in a separate thread.

    ask ──▶ own groups ──────────────────────────▶┐
                                                  ├─▶ thread ─▶ process: endpoint or model ─▶ numbers ─▶ finish
    ask ──▶ a line for each sender (bounded) ─────▶┘    one batch at a time; killed when late, replaced after a pause

Every group gets an outcome within the time limit, whatever the judge does: rewards, or why it is left out. A judge that
is down is asked again after a pause that doubles from 5 s to 5 min; until then groups are left out at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec

from swarm.children import Backoff, Channel, Child, Oversized, Waker, inherited, python_path, wait
from swarm.environments.judge import JudgeSettings, RaterSettings
from swarm.environments.sources.lru import LruCache
from swarm.errors import ConfigError, EngineCrashed
from swarm.extras.judging.prompts import (
    MAX_REPLY_BYTES,
    Asked,
    Broken,
    Ratings,
    Ready,
    Reply,
    Setup,
    Sheet,
    decode_reply,
    encode,
)
from swarm.fair_store import FairQueue
from swarm.policy.config import is_on_hub
from swarm.reasons import Reason
from swarm.types import Rejection

WORKER = "swarm.extras.judging.worker"


class Process(Protocol):
    """A process that a judge is asked through."""

    channel: Channel
    """Readable when `receive` has something."""

    def send(self, queries: Sequence[Asked]) -> None:
        """Ask; `receive` detects a dead process."""

    def receive(self) -> Reply | None:
        """The next reply; None while it is incomplete. Raises `EngineCrashed`."""

    def kill(self) -> None:
        """End the process."""


class JudgeProcess:
    """One process; its first reply is `Ready` or `Broken`, then there is one to each list of queries."""

    def __init__(self, settings: RaterSettings) -> None:
        """Start it. Raises `OSError`."""
        self._child = Child(WORKER, {**_environment(settings), **python_path()})
        self.channel = Channel(self._child.socket, MAX_REPLY_BYTES)
        self.channel.send(encode(Setup(settings.rater, settings.model_dump_json().encode())))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def send(self, queries: Sequence[Asked]) -> None:
        """Ask; `receive` detects a dead process."""
        self.channel.send(encode(tuple(queries)))

    def receive(self) -> Reply | None:
        """The next reply; None while it is incomplete.

        Raises `EngineCrashed`, also for a reply that no intact process sends.
        """
        try:
            message = self.channel.receive()
            return None if message is None else decode_reply(message)
        except (EOFError, OSError) as error:
            raise EngineCrashed(f"its process {self._child.ending()}") from error
        except (Oversized, msgspec.DecodeError) as error:
            raise EngineCrashed("its process sent what it must not") from error

    def kill(self) -> None:
        """End the process."""
        self._child.kill()


def _environment(settings: RaterSettings) -> dict[str, str]:
    """What an endpoint's client needs, with its key alone of all secrets; or what a model needs."""
    if settings.address is not None:
        return inherited("base", "home", "hub", names=(settings.api_key_env,) if settings.api_key_env else ())
    assert isinstance(settings, JudgeSettings)
    tokens = ("tokens",) if settings.model and is_on_hub(settings.model) else ()
    return inherited("base", "home", "compute", "hub", *tokens)


GRACE_S = 2.0
"""The process itself ends requests at the time limit; it is killed this much later."""
START_LIMIT_S = 900.0
"""Long, because a first start may download a model."""
REST_S = (5.0, 300.0)
MAX_FAILED_STARTS = 3
"""Refused by the system, or ended before the judge was ever ready, before it is said to be impossible to set up."""
COUNTERS = ("requests", "tokens", "cached", "failures", "timeouts", "restarts")

CLOSED = Rejection(Reason.JUDGE_FAILED, "the judge or reward service is closed")

Finish = Callable[[tuple[float, ...] | Rejection], None]
HOUR_S = 3_600.0
TICK_S = 1.0
"""Requests within this time are stored as one entry."""


class Budget:
    """Requests and tokens of the last hour, those for others' groups apart."""

    def __init__(
        self, requests: int | None, tokens: int | None, strangers_share: float, clock: Callable[[], float]
    ) -> None:
        """Nothing spent. None: no limit."""
        self._requests = requests
        self._tokens = tokens
        self._strangers_share = strangers_share
        self._own = _Hour(clock)
        self._strangers = _Hour(clock)

    def allows(self, requests: int, own: bool) -> bool:
        """Whether there is room for so many more requests.

        Their tokens are known only afterwards: as long as any are left, the requests may be made.
        """
        for limit, before, strangers, more in (
            (self._requests, self._own.requests, self._strangers.requests, requests),
            (self._tokens, self._own.tokens, self._strangers.tokens, 1),
        ):
            if limit is None:
                continue
            if before + strangers + more > limit or (not own and strangers + more > self._strangers_share * limit):
                return False
        return True

    def spend(self, requests: int, tokens: int, own: bool) -> None:
        """Record what was spent."""
        (self._own if own else self._strangers).add(requests, tokens)


class _Hour:
    """Sums over the last hour."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticks: deque[tuple[float, int, int]] = deque()
        """(time, requests, tokens), oldest first."""

    @property
    def requests(self) -> int:
        self._forget()
        return sum(tick[1] for tick in self._ticks)

    @property
    def tokens(self) -> int:
        self._forget()
        return sum(tick[2] for tick in self._ticks)

    def add(self, requests: int, tokens: int) -> None:
        now = self._clock()
        if self._ticks and now - self._ticks[-1][0] < TICK_S:
            began, more_requests, more_tokens = self._ticks.pop()
            self._ticks.append((began, requests + more_requests, tokens + more_tokens))
        else:
            self._ticks.append((now, requests, tokens))

    def _forget(self) -> None:
        while self._ticks and self._ticks[0][0] <= self._clock() - HOUR_S:
            self._ticks.popleft()


class _Job:
    """One group."""

    def __init__(self, sheet: Sheet, finish: Finish, own: bool, late_at: float) -> None:
        self.sheet = sheet
        self.own = own
        self.late_at = late_at
        """An own group is left out then: a round waits for it."""
        self._finish: Finish | None = finish

    @property
    def open(self) -> bool:
        return self._finish is not None

    def settle(self, outcome: tuple[float, ...] | Rejection) -> None:
        """Report the outcome, once."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(outcome)


class _Batch:
    """What the process is being asked."""

    def __init__(self, jobs: Sequence[_Job], queries: Sequence[Asked], late_at: float) -> None:
        self.jobs = jobs
        self.queries = queries
        self.late_at = late_at


class JudgeService:
    """A judge or reward service of this node. Any thread may ask.

    Outcomes come from the service's thread, or from within `ask`.
    """

    def __init__(
        self,
        settings: RaterSettings,
        start: Callable[[RaterSettings], Process] = JudgeProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start thread and process."""
        self._settings = settings
        self._start = start
        self._clock = clock
        self._lock = threading.Lock()
        self._own: deque[_Job] = deque()
        self._others: FairQueue[_Job] = FairQueue(settings.queue_groups)
        self._cache: LruCache[bytes, float] = LruCache(settings.cache_scores)
        self._budget = Budget(*settings.per_hour, settings.strangers_share, clock)
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._waker = Waker()
        self._closing = False
        self._known = threading.Event()
        """Set once the first process has said whether it can judge."""
        self._broken = ""
        self._process: Process | None = None
        self._ready = False
        self._starting_until = math.inf
        self._batch: _Batch | None = None
        self._failures = Backoff(*REST_S)
        self._thread = threading.Thread(target=self._run, name=settings.rater, daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Raises `ConfigError` when the judge cannot be set up."""
        problem = self._broken if self._known.wait(START_LIMIT_S) else f"it is not ready after {START_LIMIT_S:g} s"
        if problem:
            raise ConfigError(f"{self._settings.called} cannot be set up: {problem}")

    def ask(self, sheet: Sheet, finish: Finish, sender: str | None = None) -> None:
        """Get a group's rewards without waiting; `finish` is called once. `sender`: None for an own group."""
        late_at = self._clock() + self._settings.time_limit_s if sender is None else math.inf
        job = _Job(sheet, finish, sender is None, late_at)
        if sheet.most_queries > self._settings.queries_per_group:
            job.settle(Rejection(Reason.JUDGE_BUDGET, f"{sheet.most_queries} requests for one group"))
            return
        dropped, closed = None, False
        with self._lock:
            if self._closing:
                closed = True
            elif sender is None:
                self._own.append(job)
            else:
                dropped = self._others.put(sender, job)
        if closed:
            job.settle(CLOSED)
            return
        if dropped is not None:
            dropped.settle(Rejection(Reason.VERIFIER_OVERFLOW, f"more than {self._settings.queue_groups}"))
        self._waker.wake()

    def counters(self) -> dict[str, int]:
        """Cumulative counts: `requests` and `tokens`, replies from the cache, batches failed and late, restarts."""
        with self._lock:
            return {f"{self._settings.rater}_{name}": count for name, count in self._counters.items()}

    def close(self) -> None:
        """End thread and process; groups that wait are left out."""
        with self._lock:
            self._closing = True
        self._waker.wake()
        self._thread.join()

    # the service's thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._tend()
                self._expire()
                self._hand_out()
                self._listen()
        finally:
            self._closing = True
            self._known.set()
            if self._process is not None:
                self._process.kill()
            self._waker.close()
            self._settle_all([*(self._batch.jobs if self._batch else ()), *self._take_waiting()], CLOSED)

    def _tend(self) -> None:
        """Start a process when there is none, unless the judge rests."""
        if self._process is not None or self._clock() < self._failures.until:
            return
        try:
            self._process = self._start(self._settings)
        except OSError as error:  # the machine may lack memory or processes for a while
            self._not_started(error)
            return
        self._ready = False
        self._starting_until = self._clock() + START_LIMIT_S

    def _not_started(self, error: OSError) -> None:
        self._count("failures", 1)
        self._failures.note_failure(self._clock())
        self._give_up(f"its process cannot be started: {error}")

    def _give_up(self, detail: str) -> None:
        """After several failed starts, and none that succeeded, whoever waits for the judge learns why."""
        if self._failures.failures >= MAX_FAILED_STARTS and not self._known.is_set():
            self._broken = detail
            self._known.set()

    def _expire(self) -> None:
        now = self._clock()
        with self._lock:
            waiting = list(self._own)
            self._own = deque(job for job in waiting if job.late_at > now)
        asked = self._batch.jobs if self._batch else ()
        late = [job for job in (*waiting, *asked) if job.own and job.open and job.late_at <= now]
        self._settle_all(late, Rejection(Reason.JUDGE_TIMEOUT, f"no reply in {self._settings.time_limit_s:g} s"))
        if self._batch is not None and self._batch.late_at <= now:
            self._lost("timeouts", Reason.JUDGE_TIMEOUT, f"{self._settings.called} is late")
        elif self._process is not None and not self._ready and self._starting_until <= now:
            self._lost("timeouts", Reason.JUDGE_TIMEOUT, f"{self._settings.called} does not start")

    def _hand_out(self) -> None:
        if self._clock() < self._failures.until:
            down = f"{self._settings.called} is down; it is asked again in {self._failures.until - self._clock():.0f} s"
            self._settle_all(self._take_waiting(), Rejection(Reason.JUDGE_FAILED, down))
            return
        if self._process is None or not self._ready or self._batch is not None:
            return
        jobs: list[_Job] = []
        queries: dict[Asked, None] = {}
        while len(queries) < self._settings.queries_at_once and (job := self._next()) is not None:
            missing = [query for query in job.sheet.queries if self._cache.get(_key(query)) is None]
            new = sum(query not in queries for query in missing)
            if not missing:
                self._count("cached", len(job.sheet.queries))
                self._settle(job)
            elif not self._budget.allows(new, job.own):
                job.settle(Rejection(Reason.JUDGE_BUDGET, "nothing is left of this hour's budget"))
            else:
                self._count("cached", len(job.sheet.queries) - len(missing))
                self._budget.spend(new, 0, job.own)
                queries.update(dict.fromkeys(missing))
                jobs.append(job)
        if queries:
            self._send(_Batch(jobs, tuple(queries), self._clock() + self._settings.time_limit_s + GRACE_S))

    def _send(self, batch: _Batch) -> None:
        assert self._process is not None
        self._batch = batch
        self._count("requests", len(batch.queries))
        self._process.send(batch.queries)

    def _listen(self) -> None:
        """Wait for a wake-up, a reply or a deadline."""
        channels = [self._process.channel] if self._process else []
        ready = wait(self._waker, channels, self._patience())
        if self._process is None or self._process.channel not in ready:
            return
        try:
            reply = self._process.receive()
        except EngineCrashed as error:
            self._lost("failures", Reason.JUDGE_FAILED, str(error))
            return
        if reply is None:
            return
        if isinstance(reply, Ratings) and self._batch is not None and _fits(reply, self._batch.queries):
            batch, self._batch = self._batch, None
            self._accept(batch, reply)
        elif isinstance(reply, Ready) and not self._ready:
            self._ready = True
            self._known.set()
        elif isinstance(reply, Broken) and not self._ready:
            self._broken = self._broken or reply.error
            self._known.set()
            self._lost("failures", Reason.JUDGE_FAILED, reply.error)
        else:
            self._lost("failures", Reason.JUDGE_FAILED, "its process sent what it must not")

    def _accept(self, batch: _Batch, ratings: Ratings) -> None:
        self._count("tokens", ratings.tokens)
        strangers = sum(not job.own for job in batch.jobs) / len(batch.jobs)
        self._budget.spend(0, round(ratings.tokens * (1 - strangers)), own=True)
        self._budget.spend(0, round(ratings.tokens * strangers), own=False)
        for query, number in zip(batch.queries, ratings.numbers, strict=True):
            if number is not None:
                self._cache.put(_key(query), number)
        for job in batch.jobs:
            self._settle(job, ratings.error)
        if ratings.unanswered == len(batch.queries):
            self._count("failures", 1)
            self._failures.note_failure(self._clock())
        else:
            self._failures.note_success()

    def _settle(self, job: _Job, error: str = "") -> None:
        """Report a group's rewards by the replies that are known."""
        known = {query: number for query in job.sheet.queries if (number := self._cache.get(_key(query))) is not None}
        if len(known) == len(job.sheet.queries):
            job.settle(job.sheet.rewards(known))
        else:
            job.settle(Rejection(Reason.JUDGE_FAILED, error))

    def _lost(self, counter: str, reason: Reason, detail: str) -> None:
        """End the process, and leave out what it was asked."""
        assert self._process is not None
        self._process.kill()
        self._process = None
        batch, self._batch = self._batch, None
        self._count(counter, 1)
        self._count("restarts", 1)
        self._settle_all(batch.jobs if batch else (), Rejection(reason, detail))
        self._failures.note_failure(self._clock())
        self._give_up(detail)

    def _next(self) -> _Job | None:
        with self._lock:
            return self._own.popleft() if self._own else self._others.get()

    def _take_waiting(self) -> list[_Job]:
        waiting = []
        while (job := self._next()) is not None:
            waiting.append(job)
        return waiting

    def _settle_all(self, jobs: Sequence[_Job], outcome: Rejection) -> None:
        for job in jobs:
            job.settle(outcome)

    def _patience(self) -> float | None:
        """Seconds until something is due; None when nothing is."""
        with self._lock:
            due = [job.late_at for job in self._own]
        due += [job.late_at for job in (self._batch.jobs if self._batch else ()) if job.open]
        due.append(self._batch.late_at if self._batch else math.inf)
        due.append(self._failures.until if self._process is None else math.inf)
        due.append(self._starting_until if self._process is not None and not self._ready else math.inf)
        left = min(due) - self._clock()
        return max(0.0, left) if left < math.inf else None

    def _count(self, what: str, by: int) -> None:
        with self._lock:
            self._counters[what] += by


def _key(query: Asked) -> bytes:
    """Names a query in the cache, whose texts would take much more memory."""
    return blake2b(encode(query), digest_size=16).digest()


def _fits(ratings: Ratings, queries: Sequence[Asked]) -> bool:
    """Whether an intact process could send this."""
    counts = 0 <= ratings.tokens <= 10**12 and 0 <= ratings.unanswered <= len(queries)
    return (
        counts
        and len(ratings.numbers) == len(queries)
        and all(number is None or query.allows(number) for number, query in zip(ratings.numbers, queries, strict=True))
    )
