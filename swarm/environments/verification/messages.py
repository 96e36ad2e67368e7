"""Messages between the verification pool and its workers, as msgpack on a socket."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import le
from types import MappingProxyType

import msgspec

from swarm.environments.answering import MAX_PROMPT_CHARS
from swarm.environments.config import MAX_FAILURE_CHARS, StoredRows
from swarm.environments.conversion.limits import Limits
from swarm.environments.sandbox.confinement import PROTECTIONS
from swarm.reasons import OF_GRADING
from swarm.types import (
    MAX_TURNS,
    Actions,
    Grade,
    Observation,
    Prompt,
    Question,
    Rejection,
    StepReward,
    TaskRef,
    Tools,
    as_text,
    media_of,
    tools_of,
)
from swarm.types.media import MAX_MEDIA_BYTES, Media, Modality, content, media_problem, modality

MAX_TEXT_REPLY_BYTES = 2**24
"""Longest reply without media."""
MAX_OBSERVED_BYTES = 2**26
"""Decoded bytes of the media in the observations of a group's episodes together."""
MAX_TOOLS_CHARS = 2**19
"""Most characters of what a question says of its tools."""
MAX_DETAIL_CHARS = 2_000
"""Characters of a reply's text for people."""
MAX_SHOWN_CHARS = 200
"""Longest detail of an answer."""
MAX_COUNTS = 16
MAX_COUNT_CHARS = 40
MAX_TEXTS = 256
"""About failures in one reply."""
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
    limits: Limits


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First message to a worker that draws and grades."""

    configs: bytes
    """JSON list of task configurations."""
    time_limit_s: float
    memory_limit_bytes: int
    tasks_bytes: int
    """Memory for all tasks."""
    elsewhere: str
    """A file that the worker must not reach; it tests whether it can."""
    lenient: bool = False
    """Omit tasks that cannot be set up."""
    stored: dict[str, StoredRows] = {}
    """Rows of data sets, by task."""
    unprepared: dict[str, str] = {}
    """Why the other tasks have no rows."""
    folders: tuple[str, ...] = ()
    """Folders of local data sets whose rows name files."""


class Draw(msgspec.Struct, frozen=True, tag="draw"):
    """Ask for one question of the mixture, or of one task."""

    seed: int
    index: int
    skip: int = 0
    """Number of tasks to skip, because they timed out or crashed on this question."""
    task: str = ""


class DrawSeveral(msgspec.Struct, frozen=True, tag="draw several"):
    """Ask for the first of some questions in a row, as many as are made soon; what fails among them ends the row."""

    seed: int
    start: int
    count: int
    task: str = ""


class GradeGroup(msgspec.Struct, frozen=True, tag="grade"):
    """Ask for the rewards of one group."""

    ref: TaskRef
    texts: tuple[Actions, ...]


Request = Prepare | Setup | Draw | DrawSeveral | GradeGroup


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """One data set is on disk, or not for a reason; without one, the process is confined, or has begun another."""

    stored: dict[str, StoredRows] = {}
    unprepared: dict[str, str] = {}
    written: int = 0
    """Bytes that this process has written so far."""
    unfinished: str = ""
    """Path to remove if the process ends now."""
    ends: bool = False
    """It does: the data set has taken too much."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The tasks are set up."""

    skipped: dict[str, str] = {}
    """See `TaskMixture`."""
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
    texts: dict[str, str] = {}
    """About the first failures, as in `Failures`."""


class DrawnSeveral(msgspec.Struct, frozen=True, tag="drawn several"):
    """The first of the requested questions, perhaps none. The pool asks for the others one by one."""

    questions: tuple[Question, ...]
    counts: dict[str, int]
    texts: dict[str, str] = {}
    """See `Drawn`."""


class Graded(msgspec.Struct, frozen=True, tag="graded"):
    """Rewards of the group."""

    grade: Grade
    counts: dict[str, int]
    texts: dict[str, str] = {}
    """See `Drawn`."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The group's reference was refused."""

    rejection: Rejection


Reply = Prepared | Ready | Failed | Drawn | DrawnSeveral | Graded | Refused

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder[Request](Request).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode


def max_reply_bytes(shows: Mapping[str, Collection[Modality]]) -> int:
    """Bytes of a reply in a run whose tasks show these media besides text."""
    if not any(shows.values()):
        return MAX_TEXT_REPLY_BYTES
    return MAX_TEXT_REPLY_BYTES + MAX_MEDIA_BYTES + MAX_OBSERVED_BYTES


def in_order(
    request: Request,
    reply: Reply,
    tasks: Mapping[str, Collection[str]],
    shows: Mapping[str, Collection[Modality]] = MappingProxyType({}),
    took_s: float = math.inf,
) -> bool:
    """Whether an intact worker could send this reply in a run with these tasks and names of their rewards.

    `shows` are the media that each task has besides text; `took_s` is the time between request and reply. Foreign text
    may have taken over the worker; wrong results of grading are then all that it can cause.
    """
    match request, reply:
        case Prepare(), Prepared(stored, unprepared, written):
            return stored.keys() | unprepared.keys() <= set(tasks) and written >= 0
        case Setup(), Ready(skipped, unprotected, held_out):
            known = skipped.keys() | held_out.keys() <= set(tasks) and unprotected.keys() <= PROTECTIONS.keys()
            return known and all(0 <= count <= _MOST for count in held_out.values())
        case Draw(task=task), Drawn(question, counts, said):
            return _is_askable(question, [task] if task else tasks, shows) and _plausible(counts, said)
        case DrawSeveral(count=count, task=task), DrawnSeveral(questions, counts, said):
            askable = all(_is_askable(question, [task] if task else tasks, {}) for question in questions)
            bounded = sum(len(as_text(question.prompt)) for question in questions) <= MAX_PROMPT_CHARS
            return len(questions) <= count and askable and bounded and _plausible(counts, said)
        case GradeGroup(ref, texts), Graded(grade, counts, said):
            fair = len(grade.rewards) == len(texts) and all(0.0 <= reward <= 1.0 for reward in grade.rewards)
            timed = _timed(grade.seconds, took_s)
            bounded = prompt_problem(grade.prompt) is None and observed_problem(grade) is None
            shown = _shows_only((*media_of(grade.prompt), *_observed(grade)), shows.get(ref.task, ()))
            adds_up = _adds_up(grade, tasks.get(ref.task, ()))
            follows = _follows(grade, texts) and _shown_briefly(grade)
            return fair and timed and bounded and shown and follows and adds_up and _plausible(counts, said)
        case ((Draw() | GradeGroup()), Refused(rejection)):
            bounded = len(rejection.detail) <= MAX_DETAIL_CHARS and _timed(rejection.seconds, took_s)
            return bounded and rejection.reason in OF_GRADING
        case ((Setup() | Draw()), Failed()):
            return True
    return False


def _timed(seconds: float, took_s: float) -> bool:
    """Whether a worker can have graded for so long: the seconds are charged to the group's sender."""
    return math.isfinite(seconds) and 0.0 <= seconds <= took_s


def _is_askable(question: Question, tasks: Collection[str], shows: Mapping[str, Collection[Modality]]) -> bool:
    bounded = prompt_problem(question.prompt) is None and 1 <= question.max_turns <= MAX_TURNS
    shown = _shows_only(media_of(question.prompt), shows.get(question.ref.task, ()))
    return question.ref.task in tasks and bounded and shown


def prompt_problem(prompt: Prompt) -> str | None:
    """Why a question is too much for a reply; None if it is not."""
    if (num_chars := len(as_text(prompt))) > MAX_PROMPT_CHARS:
        return f"a question of {num_chars} characters, more than {MAX_PROMPT_CHARS}"
    return media_problem(media_of(prompt)) or _tools_problem(tools_of(prompt))


def _tools_problem(tools: Tools | None) -> str | None:
    """Why tools are none that a policy can be asked with; None if they are."""
    if tools is None:
        return None
    texts = (text for each in tools.schemas for text in (each.name, each.description, each.parameters))
    if (num_chars := sum(map(len, texts)) + len(tools.request)) > MAX_TOOLS_CHARS:
        return f"tools with {num_chars} characters, more than {MAX_TOOLS_CHARS}"
    try:
        schemas = [msgspec.json.decode(each.parameters) for each in tools.schemas]
    except (msgspec.DecodeError, RecursionError):
        return "a tool whose parameters are no JSON"
    return None if schemas and all(isinstance(each, dict) for each in schemas) else "tools without schemas"


def observed_problem(grade: Grade) -> str | None:
    """Why the observations of a group's episodes are too much for a reply; None if they are not."""
    num_chars = _num_observed_chars(grade)
    if num_chars > MAX_PROMPT_CHARS:
        return f"observations of {num_chars} characters, more than {MAX_PROMPT_CHARS}"
    for episode in grade.observations:
        if problem := next(filter(None, map(media_problem, map(_media_in, episode))), None):
            return f"an observation with {problem}"
        if (num_bytes := _num_bytes(part for shown in episode for part in _media_in(shown))) > MAX_MEDIA_BYTES:
            return f"an episode whose observations have {num_bytes} bytes of media, more than {MAX_MEDIA_BYTES}"
    if (num_bytes := _num_bytes(_observed(grade))) > MAX_OBSERVED_BYTES:
        return f"a group whose observations have {num_bytes} bytes of media, more than {MAX_OBSERVED_BYTES}"
    return None


def _num_observed_chars(grade: Grade) -> int:
    """Characters of all observations of a group, and one more for each part: empty ones take memory, too."""
    parts = (part for episode in grade.observations for shown in episode for part in shown)
    return sum(1 if isinstance(part, StepReward | Media) else len(part.text) + 1 for part in parts)


def _media_in(observation: Observation) -> tuple[Media, ...]:
    return tuple(part for part in observation if isinstance(part, Media))


def _observed(grade: Grade) -> Iterator[Media]:
    """The media of all observations of a group."""
    return (part for episode in grade.observations for shown in episode for part in _media_in(shown))


def _num_bytes(parts: Iterable[Media]) -> int:
    return sum(len(content(part)) for part in parts)


def _shows_only(parts: Iterable[Media], allowed: Collection[Modality]) -> bool:
    return all(modality(part) in allowed for part in parts)


def _follows(grade: Grade, texts: Sequence[Actions]) -> bool:
    """Whether there are observations for all episodes or for none, and no more in one than it has turns."""
    turns = [1 if isinstance(actions, str) else len(actions) for actions in texts]
    each = [len(episode) for episode in grade.observations] or [0] * len(turns)
    return len(each) == len(turns) and all(map(le, each, turns))


def _shown_briefly(grade: Grade) -> bool:
    """Whether the answers for people are one for each completion, if any, and short."""
    answers = (grade.expected, *grade.found)
    return len(grade.found) in (0, len(grade.rewards)) and max(map(len, answers)) <= MAX_SHOWN_CHARS


def _adds_up(grade: Grade, names: Collection[str]) -> bool:
    """Whether the named rewards are those of the task, one for each completion, and in range."""
    return grade.parts.keys() == set(names) and all(
        len(values) == len(grade.rewards) and all(0.0 <= value <= 1.0 for value in values)
        for values in grade.parts.values()
    )


def _plausible(counts: dict[str, int], texts: dict[str, str]) -> bool:
    counted = len(counts) <= MAX_COUNTS and all(
        name.isidentifier() and len(name) <= MAX_COUNT_CHARS and 0 <= count <= _MOST for name, count in counts.items()
    )
    shown = len(texts) <= MAX_TEXTS and all(max(map(len, text)) <= MAX_FAILURE_CHARS for text in texts.items())
    return counted and shown
