"""Messages between the verification pool and its workers, as msgpack on a socket."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from operator import le

import msgspec

from swarm.environments.sandbox.confinement import PROTECTIONS
from swarm.environments.sources.stored import StoredRows
from swarm.types import MAX_TURNS, Actions, Earned, Grade, Question, Rejection, TaskRef, as_text
from swarm.types.media import Media

MAX_REPLY_BYTES = 2**24
MAX_PROMPT_CHARS = 2**20
"""Of a question, and of the observations of a group's episodes together."""
MAX_DETAIL_CHARS = 2_000
"""Characters of a reply's text for people."""
MAX_COUNTS = 16
MAX_COUNT_CHARS = 40
_MOST = 10**9


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """The only message to a worker that downloads and converts data sets."""

    configs: bytes
    """JSON list of task configurations."""
    readable: tuple[str, ...]
    """Local files that the tasks name."""
    writable: tuple[str, ...]
    """The libraries' caches."""
    network: bool


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First message to a worker that draws and grades."""

    configs: bytes
    """JSON list of task configurations."""
    time_limit_s: float
    memory_limit_bytes: int
    elsewhere: str
    """A file that the worker must not reach; it tests whether it can."""
    lenient: bool = False
    """Omit tasks that cannot be set up."""
    stored: dict[str, StoredRows] = {}
    """Rows of data sets, by task."""
    unprepared: dict[str, str] = {}
    """Why the other tasks have no rows."""
    folders: tuple[str, ...] = ()
    """Of local data sets whose rows name files."""


class Draw(msgspec.Struct, frozen=True, tag="draw"):
    """Ask for one question of the mixture, or of one task."""

    seed: int
    index: int
    skip: int = 0
    """Number of tasks to skip, because they timed out or crashed on this question."""
    task: str = ""


class GradeGroup(msgspec.Struct, frozen=True, tag="grade"):
    """Ask for the rewards of one group."""

    ref: TaskRef
    texts: tuple[Actions, ...]


Request = Prepare | Setup | Draw | GradeGroup


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """All data sets are on disk, except those with a reason."""

    stored: dict[str, StoredRows]
    unprepared: dict[str, str]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The tasks are set up."""

    skipped: dict[str, str] = {}
    """As in `TaskMixture`."""
    unprotected: dict[str, str] = {}
    """Protections that do not hold, as in `Confinement.probe`."""
    held_out: dict[str, int] = {}
    """Questions of each task's held-out streams before one repeats, where there is an end."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A `TaskError` during setup, or because no task could make a question."""

    error: str


class Drawn(msgspec.Struct, frozen=True, tag="drawn"):
    """The requested question."""

    question: Question
    counts: dict[str, int]
    """Increments of `TaskMixture.counts` since the last reply."""


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


def in_order(request: Request, reply: Reply, tasks: Mapping[str, Collection[str]]) -> bool:
    """Whether an intact worker could send this reply in a run with these tasks and names of their rewards.

    Foreign text may have taken over the worker; wrong rewards are then all that it can cause.
    """
    match request, reply:
        case Prepare(), Prepared(stored, unprepared):
            return stored.keys() | unprepared.keys() <= set(tasks)
        case Setup(), Ready(skipped, unprotected, held_out):
            known = skipped.keys() | held_out.keys() <= set(tasks) and unprotected.keys() <= PROTECTIONS.keys()
            return known and all(0 <= count <= _MOST for count in held_out.values())
        case Draw(task=task), Drawn(question, counts):
            asked = question.ref.task in ([task] if task else tasks)
            bounded = len(as_text(question.prompt)) <= MAX_PROMPT_CHARS and 1 <= question.max_turns <= MAX_TURNS
            return asked and bounded and _plausible(counts)
        case GradeGroup(ref, texts), Graded(grade, counts):
            fair = len(grade.rewards) == len(texts) and all(0.0 <= reward <= 1.0 for reward in grade.rewards)
            timed = math.isfinite(grade.seconds) and grade.seconds >= 0.0
            bounded = max(len(as_text(grade.prompt)), num_observed_chars(grade)) <= MAX_PROMPT_CHARS
            adds_up = _adds_up(grade, tasks.get(ref.task, ()))
            return fair and timed and bounded and _follows(grade, texts) and adds_up and _plausible(counts)
        case ((Draw() | GradeGroup()), Refused(rejection)):
            return len(rejection.detail) <= MAX_DETAIL_CHARS
        case ((Setup() | Draw()), Failed()):
            return True
    return False


def num_observed_chars(grade: Grade) -> int:
    """Characters of all observations of a group, and one more for each part: empty ones take memory, too."""
    parts = (part for episode in grade.observations for shown in episode for part in shown)
    return sum(1 if isinstance(part, Earned | Media) else len(part.text) + 1 for part in parts)


def _follows(grade: Grade, texts: Sequence[Actions]) -> bool:
    """Whether there are observations for all episodes or for none, and no more in one than it has turns."""
    turns = [1 if isinstance(actions, str) else len(actions) for actions in texts]
    each = [len(episode) for episode in grade.observations] or [0] * len(turns)
    return len(each) == len(turns) and all(map(le, each, turns))


def _adds_up(grade: Grade, names: Collection[str]) -> bool:
    """Whether the named rewards are those of the task, one for each completion, and in range."""
    return grade.parts.keys() == set(names) and all(
        len(values) == len(grade.rewards) and all(0.0 <= value <= 1.0 for value in values)
        for values in grade.parts.values()
    )


def _plausible(counts: dict[str, int]) -> bool:
    return len(counts) <= MAX_COUNTS and all(
        name.isidentifier() and len(name) <= MAX_COUNT_CHARS and 0 <= count <= _MOST for name, count in counts.items()
    )
