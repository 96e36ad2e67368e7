"""A plain verification worker that answers a group whose first completion names some rubbish with that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import swarm.environments.verification.worker as worker
from swarm.environments.mixture import TaskMixture
from swarm.environments.verification.messages import (
    Drawn,
    Failed,
    Graded,
    GradeGroup,
    Ready,
    Refused,
    Reply,
    Request,
    encode,
)
from swarm.reasons import Reason
from swarm.types import Grade, Question, Rejection
from tests.environments.plain_worker import be_plain

honest = worker._answer


def write_message(fd: int, message: bytes) -> None:
    Connection(os.dup(fd)).send_bytes(message)


def graded(*rewards: float, prompt: str = "?", seconds: float = 0.0, **counts: int) -> bytes:
    return encode(Graded(Grade(prompt, rewards, seconds), counts))


def refused(reason: Reason, detail: str = "", seconds: float = 0.0) -> bytes:
    return encode(Refused(Rejection(reason, detail, seconds)))


RUBBISH: dict[str, Callable[[int, GradeGroup], object]] = {
    "no message": lambda fd, request: os.write(fd, b"\xff" * 64),
    "a message too long": lambda fd, request: os.write(fd, b"\x7f\xff\xff\xff" + b"x" * 2**16),
    "no reply": lambda fd, request: write_message(fd, b"\x81\xa4type\xa5drawn"),
    "a reply nested without end": lambda fd, request: write_message(fd, b"\x91" * 2**20),
    "two replies": lambda fd, request: os.write(fd, 2 * (len(ok := graded(0, 0)).to_bytes(4, "big") + ok)),
    "too few rewards": lambda fd, request: write_message(fd, graded(1)),
    "rewards that are no numbers": lambda fd, request: write_message(fd, graded(float("nan"), 1)),
    "rewards out of range": lambda fd, request: write_message(fd, graded(2, 1)),
    "endless time": lambda fd, request: write_message(fd, graded(1, 1, seconds=float("inf"))),
    "an endless question": lambda fd, request: write_message(fd, graded(1, 1, prompt="?" * 2**21)),
    "an answer to something else": lambda fd, request: write_message(fd, encode(Drawn(Question(request.ref, "?"), {}))),
    "a reason that does not exist": lambda fd, request: write_message(fd, encode(Refused(Rejection("invented")))),
    "an endless explanation": lambda fd, request: write_message(
        fd, refused(Reason.QUESTION_MISMATCH, detail="x" * 2_001)
    ),
    "a fraud of the author": lambda fd, request: write_message(fd, refused(Reason.WRONG_LOGPROBS)),
    "a time-out of its own": lambda fd, request: write_message(fd, refused(Reason.VERIFIER_TIMEOUT)),
    "more time than passed": lambda fd, request: write_message(fd, graded(1, 1, seconds=500.0)),
    "a refusal after more time than passed": lambda fd, request: write_message(
        fd, refused(Reason.QUESTION_MISMATCH, seconds=500.0)
    ),
    "a refusal after endless time": lambda fd, request: write_message(
        fd, refused(Reason.QUESTION_MISMATCH, seconds=float("inf"))
    ),
    "a refusal after no time": lambda fd, request: write_message(
        fd, refused(Reason.QUESTION_MISMATCH, seconds=float("nan"))
    ),
    "a refusal before it was asked": lambda fd, request: write_message(
        fd, refused(Reason.QUESTION_MISMATCH, seconds=-1.0)
    ),
    "failure of everything": lambda fd, request: write_message(fd, encode(Failed("give up"))),
    "that it is ready": lambda fd, request: write_message(fd, encode(Ready())),
    "counts of the pool's own": lambda fd, request: write_message(fd, graded(1, 1, restarts=1)),
    "counts below nothing": lambda fd, request: write_message(fd, graded(1, 1, some=-1)),
    "endless counts": lambda fd, request: write_message(fd, graded(1, 1, **{f"a{n}": 1 for n in range(99)})),
}


def answer(mixture: TaskMixture, request: Request) -> Reply:
    """As an honest worker, unless asked for rubbish; then it stays there until it is killed."""
    if isinstance(request, GradeGroup) and request.texts[0] in RUBBISH:
        descriptor = int(sys.argv[1])
        RUBBISH[request.texts[0]](descriptor, request)
        while True:
            os.read(descriptor, 1)
    return honest(mixture, request)


if __name__ == "__main__":
    be_plain()
    worker._answer = answer
    worker.main()
