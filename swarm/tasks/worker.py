"""The process behind the verification pool: `python -m swarm.tasks.worker FD`, started by `pool.py` only.

It ends when its socket does, so it outlives a parent that was killed by no more than the job at hand; a job that
hangs is ended by an alarm of its own, which the kernel delivers even while a C extension holds the interpreter.
"""

from __future__ import annotations

import resource
import signal
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection

from msgspec.structs import replace

from swarm.errors import TaskError
from swarm.tasks.config import TASK_LIST
from swarm.tasks.messages import (
    Draw,
    Drawn,
    Failed,
    Graded,
    GradeGroup,
    Ready,
    Refused,
    Reply,
    Request,
    Setup,
    decode_request,
    encode,
)
from swarm.tasks.mixture import TaskMixture
from swarm.types import Grade

ALARM_GRACE_S = 1.0
"""The pool kills a late worker at the time limit; the alarm is for workers whose pool is gone."""


def serve(connection: Connection) -> None:
    """Answer requests until the other end closes."""
    setup = decode_request(connection.recv_bytes())
    assert isinstance(setup, Setup)
    resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_limit_bytes, setup.memory_limit_bytes))
    try:
        mixture = TaskMixture(TASK_LIST.validate_json(setup.configs), setup.lenient)
    except TaskError as error:
        connection.send_bytes(encode(Failed(str(error))))
        return
    connection.send_bytes(encode(Ready(mixture.skipped)))
    while True:
        request = decode_request(connection.recv_bytes())
        signal.setitimer(signal.ITIMER_REAL, setup.time_limit_s + ALARM_GRACE_S)
        reply = _answer(mixture, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(encode(reply))


def _answer(mixture: TaskMixture, request: Request) -> Reply:
    match request:
        case Draw(seed, index, skip):
            try:
                return Drawn(mixture.question(seed, index, skip), _take(mixture.counts))
            except TaskError as error:
                return Failed(str(error))
        case GradeGroup(ref, texts):
            started = time.perf_counter()
            result = mixture.grade(ref, texts)
            result = replace(result, seconds=time.perf_counter() - started)
            return Graded(result, _take(mixture.counts)) if isinstance(result, Grade) else Refused(result)
        case Setup():
            raise AssertionError("a worker is set up once")


def _take(counts: Counter[str]) -> dict[str, int]:
    taken = dict(counts)
    counts.clear()
    return taken


def main() -> None:
    """Run one worker on the socket whose file descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main()
