"""The process behind the verification pool: `python -m swarm.environments.verification.worker FD`, for `pool.py` only.

The first message selects its purpose. A preparing worker downloads and converts data sets, then ends: it never sees a
foreign completion. A serving worker first confines itself, then draws questions and grades groups. The two have
separate rights. A worker ends when its socket closes, so that it outlives a killed parent by at most the current job;
an alarm ends a job that hangs, even while a C extension holds the interpreter lock.
"""

from __future__ import annotations

import mimetypes
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from swarm.children import serve
from swarm.environments.answering import MAX_PROMPT_CHARS
from swarm.environments.code import load
from swarm.environments.config import TASK_LIST, Context, Failures, TaskConfig
from swarm.environments.mixture import Bounds, TaskMixture
from swarm.environments.sandbox.confinement import Confinement
from swarm.environments.sandbox.usage import TaskMemory, Usage
from swarm.environments.verification.messages import (
    MAX_DETAIL_CHARS,
    Draw,
    Drawn,
    DrawnSeveral,
    DrawSeveral,
    Failed,
    Graded,
    GradeGroup,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Reply,
    Request,
    Setup,
    decode_request,
    encode,
    observed_problem,
    prompt_problem,
)
from swarm.errors import TaskError
from swarm.kinds import file_of
from swarm.protocols import Source
from swarm.reasons import Reason
from swarm.types import Grade, Prompt, Question, Rejection, as_text

if TYPE_CHECKING:
    from swarm.environments.conversion.counting import Conversion

ALARM_GRACE_S = 1.0
"""The pool kills a late worker at the time limit; the alarm ends workers whose pool is gone."""

WATCH_EVERY_S = 0.05
SOON_S = 0.1
"""Processor time of a message of several questions; slower ones are drawn one by one, by all workers of the pool."""


def work(pool: Connection) -> None:
    """Answer requests until the pool closes its end."""
    mimetypes.knownfiles.clear()  # the system's, which aiohttp reads when it is imported, and the sandbox refuses
    match decode_request(pool.recv_bytes()):
        case Prepare() as request:
            _prepare(request, partial(_report, pool, threading.Lock()))
        case Setup() as setup:
            _serve(pool, setup)


def _report(pool: Connection, turn: threading.Lock, reply: Prepared) -> None:
    """Send, and wait until the pool has read it; any thread may call it."""
    with turn:
        pool.send_bytes(encode(reply))
        if not reply.ends:
            pool.recv_bytes()


def _prepare(request: Prepare, send: Callable[[Prepared], None]) -> None:
    """Download and convert the data sets one by one, confined to the necessary files and to the limits."""
    usage = Usage()
    writable = tuple(map(Path, (*request.writable, ".")))
    confinement = Confinement()
    confinement.enclose(map(Path, request.readable), writable, request.network)
    confinement.limit_files(request.limits.bytes)
    import swarm.environments.sources.hf_datasets  # noqa: F401  before memory is measured
    from swarm.environments.conversion.counting import Conversion

    configs = TASK_LIST.validate_json(request.configs)
    send(Prepared())
    for config in configs:
        begun = usage.written()
        limits = replace(request.limits, run_bytes=max(0, request.limits.run_bytes - begun))
        conversion = Conversion(limits, lambda unfinished: send(Prepared(unfinished=unfinished)), usage.limit_memory)
        usage.limit_memory(limits.memory(0))
        with _Watch(config.name, conversion, usage, send):
            try:
                rows = config.store(Path(request.writable[-1]), conversion)
                reply = Prepared({config.name: rows}, written=usage.written())
            except TaskError as error:
                reply = Prepared(unprepared={config.name: _cut(error)}, written=usage.written())
        send(reply)


class _Watch:
    """Ends this process when a data set takes too much of the disk, wherever it is written and in whatever library."""

    def __init__(self, task: str, conversion: Conversion, usage: Usage, send: Callable[[Prepared], None]) -> None:
        self._task = task
        self._conversion = conversion
        self._usage = usage
        self._send = send
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> None:
        self._begun = self._usage.written()
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(WATCH_EVERY_S):
            written = self._usage.written()
            try:
                self._conversion.check_written(written - self._begun)
            except TaskError as error:
                text = f"task {self._task!r}: {error}"[:MAX_DETAIL_CHARS]
                self._send(Prepared(unprepared={self._task: text}, written=written, ends=True))
                os._exit(1)


def _serve(pool: Connection, setup: Setup) -> None:
    memory = TaskMemory(setup.tasks_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_limit_bytes, setup.memory_limit_bytes))
    configs = TASK_LIST.validate_json(setup.configs)
    rows = [Path(part.path) for stored in setup.stored.values() for part in stored.files]
    code = [config.code for config in configs if config.code is not None]
    confinement = Confinement()
    readable = [*rows, *map(Path, setup.folders), *filter(None, map(file_of, code))]
    confinement.enclose(readable, [Path(".")], network=False)
    for config in configs:
        with suppress(TaskError, ImportError):  # the task's source reports it
            config.import_libraries()
    for target in code:
        with suppress(TaskError):  # the task's source reports it
            load(target)
    confinement.seal()
    try:
        memory.begin()
        mixture = TaskMixture(configs, setup.lenient, partial(_source, setup), Bounds(memory.used, memory.max_bytes))
    except TaskError as error:
        pool.send_bytes(encode(Failed(_cut(error))))
        return
    unprotected = confinement.probe(Path(setup.elsewhere), setup.memory_limit_bytes)
    skipped = {name: reason[:MAX_DETAIL_CHARS] for name, reason in mixture.skipped.items()}
    held_out = {name: count for name in mixture.sources if (count := mixture.num_held_out(name)) is not None}
    pool.send_bytes(encode(Ready(skipped, unprotected, held_out)))
    while True:
        request = decode_request(pool.recv_bytes())
        signal.setitimer(signal.ITIMER_REAL, setup.time_limit_s + ALARM_GRACE_S)
        reply = _answer(mixture, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        memory.forget_if_full()
        pool.send_bytes(encode(reply))


def _source(setup: Setup, config: TaskConfig, counts: Failures) -> Source:
    if config.name in setup.unprepared:
        raise TaskError(setup.unprepared[config.name])
    return config.build(Context(counts, setup.stored.get(config.name)))


def _answer(mixture: TaskMixture, request: Request) -> Reply:
    match request:
        case Draw(seed, index, skip, task):
            try:
                question = mixture.question(seed, index, skip, task)
            except TaskError as error:
                return Failed(_cut(error))
            if (too_long := _too_long(question.prompt)) is not None:
                return Refused(too_long)
            return Drawn(question, *_take(mixture.counts))
        case DrawSeveral():
            return DrawnSeveral(_several(mixture, request), *_take(mixture.counts))
        case GradeGroup(ref, texts):
            started = time.perf_counter()
            result = mixture.grade(ref, texts)
            if isinstance(result, Grade):
                result = _too_long(result.prompt) or _too_much(result) or result
            result = replace(result, seconds=time.perf_counter() - started)
            if isinstance(result, Grade):
                return Graded(result, *_take(mixture.counts))
            return Refused(replace(result, detail=result.detail[:MAX_DETAIL_CHARS]))
        case Prepare() | Setup():
            raise AssertionError("a worker accepts one Setup")


def _several(mixture: TaskMixture, request: DrawSeveral) -> tuple[Question, ...]:
    """The first questions, until one fails, together they are long, or making them takes long."""
    ends_at = time.process_time() + SOON_S  # not by the clock: other work on this machine is no reason to stop
    made: list[Question] = []
    num_chars = 0
    for index in range(request.start, request.start + request.count):
        try:
            question = mixture.question(request.seed, index, task=request.task)
        except TaskError:
            break
        num_chars += len(as_text(question.prompt))
        if num_chars > MAX_PROMPT_CHARS:
            break
        made.append(question)
        if time.process_time() > ends_at:
            break
    return tuple(made)


def _too_long(prompt: Prompt) -> Rejection | None:
    problem = prompt_problem(prompt)
    return Rejection(Reason.QUESTION_MISMATCH, problem) if problem is not None else None


def _too_much(grade: Grade) -> Rejection | None:
    problem = observed_problem(grade)
    return Rejection(Reason.EPISODE_MISMATCH, problem) if problem is not None else None


def _cut(error: TaskError) -> str:
    return str(error)[:MAX_DETAIL_CHARS]


def _take(failures: Failures) -> tuple[dict[str, int], dict[str, str]]:
    taken = dict(failures)
    failures.clear()
    return taken, failures.take_texts()


def main() -> None:
    """Run one worker on the socket whose file descriptor is the only argument."""
    serve(work)


if __name__ == "__main__":
    main()
