"""What the verification pool and its workers say to each other, as msgpack on a socket of their own."""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

from swarm.environments.sandbox.confinement import PROTECTIONS
from swarm.environments.sources.stored import StoredRows
from swarm.types import Grade, Question, Rejection, TaskRef

MAX_REPLY_BYTES = 2**24
MAX_PROMPT_CHARS = 2**20
MAX_DETAIL_CHARS = 2_000
"""Of what a reply says to people."""
MAX_COUNTS = 16
MAX_COUNT_CHARS = 40
_MOST = 10**9


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """First and only message to a worker that is to download and convert data sets."""

    configs: bytes
    """JSON list of task configurations."""
    readable: tuple[str, ...]
    """The user's own files that they name."""
    writable: tuple[str, ...]
    """The caches of the libraries."""
    network: bool


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First message to a worker that draws and grades."""

    configs: bytes
    """JSON list of task configurations."""
    time_limit_s: float
    memory_limit_bytes: int
    elsewhere: str
    """A file that this worker has no business with: it tries whether it can get at it."""
    lenient: bool = False
    """Go without tasks that cannot be set up."""
    stored: dict[str, StoredRows] = {}
    """Rows of data sets, by task."""
    unprepared: dict[str, str] = {}
    """Why there are no rows of other tasks."""


class Draw(msgspec.Struct, frozen=True, tag="draw"):
    """Ask for one question of the mixture."""

    seed: int
    index: int
    skip: int = 0
    """Tasks to pass over, because each of them timed out or crashed on this question."""


class GradeGroup(msgspec.Struct, frozen=True, tag="grade"):
    """Ask for the rewards of one group."""

    ref: TaskRef
    texts: tuple[str, ...]


Request = Prepare | Setup | Draw | GradeGroup


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """All data sets are on this disk, but for those with a reason."""

    stored: dict[str, StoredRows]
    unprepared: dict[str, str]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The tasks are set up."""

    skipped: dict[str, str] = {}
    """As in `TaskMixture`."""
    unprotected: dict[str, str] = {}
    """What the worker can still reach, as in `Confinement.probe`."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A `TaskError`: while setting up, or because no task could make a question."""

    error: str


class Drawn(msgspec.Struct, frozen=True, tag="drawn"):
    """The question asked for."""

    question: Question
    counts: dict[str, int]
    """What `TaskMixture.counts` gained since the last reply."""


class Graded(msgspec.Struct, frozen=True, tag="graded"):
    """Rewards of the group."""

    grade: Grade
    counts: dict[str, int]
    """As in `Drawn`."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The group's reference was refused."""

    rejection: Rejection


Reply = Prepared | Ready | Failed | Drawn | Graded | Refused

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder[Request](Request).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode


def in_order(request: Request, reply: Reply, tasks: Collection[str]) -> bool:
    """Whether a worker that does what it should could give this reply, in a run with these tasks.

    A stranger's text may have taken the worker over; what it can still do is to give wrong rewards.
    """
    match request, reply:
        case Prepare(), Prepared(stored, unprepared):
            return stored.keys() | unprepared.keys() <= set(tasks)
        case Setup(), Ready(skipped, unprotected):
            return skipped.keys() <= set(tasks) and unprotected.keys() <= PROTECTIONS.keys()
        case Draw(), Drawn(question, counts):
            return question.ref.task in tasks and len(question.prompt) <= MAX_PROMPT_CHARS and _plausible(counts)
        case GradeGroup(_, texts), Graded(grade, counts):
            fair = len(grade.rewards) == len(texts) and all(0.0 <= reward <= 1.0 for reward in grade.rewards)
            timed = math.isfinite(grade.seconds) and grade.seconds >= 0.0
            return fair and timed and len(grade.prompt) <= MAX_PROMPT_CHARS and _plausible(counts)
        case ((Draw() | GradeGroup()), Refused(rejection)):
            return len(rejection.detail) <= MAX_DETAIL_CHARS
        case ((Setup() | Draw()), Failed()):
            return True
    return False


def _plausible(counts: dict[str, int]) -> bool:
    return len(counts) <= MAX_COUNTS and all(
        name.isidentifier() and len(name) <= MAX_COUNT_CHARS and 0 <= count <= _MOST for name, count in counts.items()
    )
