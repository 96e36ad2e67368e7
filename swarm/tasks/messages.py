"""What the verification pool and its workers say to each other, as msgpack on a socket of their own."""

from __future__ import annotations

import msgspec

from swarm.types import Grade, Question, Rejection, TaskRef


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First message to a worker."""

    configs: bytes
    """JSON list of task configurations."""
    time_limit_s: float
    memory_limit_bytes: int
    lenient: bool = False
    """Go without tasks that cannot be set up."""


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


Request = Setup | Draw | GradeGroup


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The tasks are set up."""

    skipped: dict[str, str] = {}
    """As in `TaskMixture`."""


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


Reply = Ready | Failed | Drawn | Graded | Refused

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder[Request](Request).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode
