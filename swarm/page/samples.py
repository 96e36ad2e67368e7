"""The latest samples of a node for the page: texts of strangers, cut and without control characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from swarm.foreign import clean, clean_lines
from swarm.page.node import MAX_NAME_CHARS
from swarm.page.sharing import tail
from swarm.reasons import sentence
from swarm.telemetry.samples.records import SampledCompletion, SampleRecord, folded, read, why
from swarm.types.thumbnails import as_url

READ_BYTES = 2**20
MAX_SAMPLES = 40
MAX_OF_AN_OUTCOME = 12
"""So that the most frequent one does not displace the others."""
MAX_QUESTION_CHARS = 1_000
MAX_TEXT_CHARS = 1_000
"""Of one completion."""
MAX_COMPLETIONS = 8
MAX_ANSWER_CHARS = 200
MAX_PICTURES = 8
"""Of a question, and of a completion."""


class ShownCompletion(Struct, frozen=True):
    """One completion."""

    text: str
    reward: float | None
    claimed: float | None
    """Its sender's reward."""
    ended: str
    """Why it ended."""
    parts: dict[str, float]
    why: str
    """What was found as its answer, and what was expected."""
    count: int
    """How often it was given."""
    pictures: list[str]
    """What the policy was shown between its turns: addresses that hold the picture."""


class ShownSample(Struct, frozen=True):
    """One group, and what became of it."""

    time: float
    round: int
    outcome: str
    why: str
    """The reason's sentence; empty for a group trained on."""
    task: str
    question: str
    expected: str
    """The right answer; empty where there is no single one."""
    pictures: list[str]
    """Those of the question, likewise."""
    sender: str
    own: bool
    policy: str
    version: int
    completions: list[ShownCompletion]
    num_completions: int


def latest(folder: Path, names: Mapping[str, str]) -> list[ShownSample]:
    """The latest first; `names` has the peers' names by peer id."""
    chosen: list[ShownSample] = []
    counts: dict[tuple[str, bool], int] = {}
    for record in reversed(read(folder, READ_BYTES)):
        kind = record.outcome, record.own
        if counts.get(kind, 0) < MAX_OF_AN_OUTCOME and len(chosen) < MAX_SAMPLES:
            counts[kind] = counts.get(kind, 0) + 1
            chosen.append(_shown(record, names))
    return chosen


def _shown(record: SampleRecord, names: Mapping[str, str]) -> ShownSample:
    name = clean(names.get(record.sender, ""), MAX_NAME_CHARS)
    return ShownSample(
        time=record.time,
        round=record.round,
        outcome=record.outcome,
        why=sentence(record.reason) if record.reason else "",
        task=clean(record.task, MAX_NAME_CHARS),
        question=clean_lines((record.question or "")[:MAX_QUESTION_CHARS]),
        expected=clean(record.expected, MAX_ANSWER_CHARS),
        pictures=_pictures(record.pictures),
        sender=f"{name} ({tail(record.sender)})" if name else tail(record.sender),
        own=record.own,
        policy=clean(record.policy, MAX_NAME_CHARS),
        version=record.version,
        completions=[
            _completion(each, count, record.expected) for each, count in folded(record.completions)[:MAX_COMPLETIONS]
        ],
        num_completions=record.num_completions,
    )


def _completion(completion: SampledCompletion, count: int, expected: str) -> ShownCompletion:
    several = len(completion.turns) > 1
    text = "\n".join(f"{turn.role}: {turn.text}" if several else turn.text for turn in completion.turns)
    length = sum(turn.num_chars for turn in completion.turns)
    cut = clean_lines(text[:MAX_TEXT_CHARS])
    return ShownCompletion(
        text=cut if length <= MAX_TEXT_CHARS else f"{cut} ... ({length:,} characters)",
        reward=completion.reward,
        claimed=completion.claimed,
        ended=clean(completion.finish_reason, MAX_NAME_CHARS),
        parts={clean(name, MAX_NAME_CHARS): value for name, value in completion.parts.items()},
        why=clean(why(completion.reward, expected, completion.found), 2 * MAX_ANSWER_CHARS),
        count=count,
        pictures=_pictures(png for turn in completion.turns for png in turn.pictures),
    )


def _pictures(pngs: Iterable[bytes]) -> list[str]:
    """The first of those that are pictures."""
    return [url for png in pngs if (url := as_url(png))][:MAX_PICTURES]
