"""Own episodes as an engine and a verifier make them, and others' compared with their replay.

    questions ──▶ engine: a turn each ──▶ verifier: replay so far ──▶ over? ──▶ completions of all turns, and a grade
                      ▲                                                │
                      └───────── past and observation ◀────────────────┘

Each episode takes its next turn as soon as its environment has answered, while the engine goes on with the others
(`playing/`). An engine that cannot be told of turns while it generates is asked in rounds: all episodes that go on take
a turn in one call. Either way it continues the tokens of their past exactly. A question with a single turn is over
after the first call, and its grade comes while others are still answered.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from itertools import chain, groupby
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from swarm.protocols import RolloutEngine, Turns
from swarm.types import (
    Answers,
    Completion,
    Context,
    Grade,
    Observation,
    OwnCall,
    Part,
    Rejection,
    RolloutGroup,
    Sampling,
    Told,
    Turn,
    VersionSpan,
)


class Stream(Protocol):
    """As `RolloutEngine.stream`."""

    def __call__(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Answer prompts, and turns if it can."""
        ...


def by_generate(engine: RolloutEngine) -> Stream:
    """Its `generate`, in turn with updates; its own `stream` may use another process, with older weights."""

    def stream(
        prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int, turns: Turns | None = None
    ) -> Generator[tuple[int, Answers]]:
        yield from enumerate(engine.generate(prompts, num_completions, sampling, seed) if prompts else ())

    return stream


class Played(Struct, frozen=True):
    """One question with all its episodes."""

    completions: tuple[Completion, ...]
    """[G]"""
    grading: Future[Grade | Rejection]
    """Of all turns; a refusal if the verifier gave up before the end."""


def joined(turns: Sequence[Completion], observations: Sequence[Observation]) -> Completion:
    """One completion of an episode's turns; `observations` are those between them."""
    if len(turns) == 1:
        return turns[0]
    return Completion(
        text="".join(turn.text for turn in turns),
        finish_reason=turns[-1].finish_reason,
        token_ids=tuple(chain.from_iterable(turn.token_ids for turn in turns)),
        logprobs=tuple(chain.from_iterable(turn.logprobs for turn in turns)),
        versions=_merged([span for turn in turns for span in turn.versions]),
        routing=turns[-1].routing,  # the last turn's prompt is everything before it
        turns=tuple(Turn(len(turn.text), len(turn.token_ids), turn.finish_reason) for turn in turns),
        observed=digest(observations),
        told=tuple(part.text for shown in observations for part in shown if isinstance(part, Told)),
    )


def digest(observations: Sequence[Observation]) -> str:
    """Names the observations between an episode's turns, as `Completion.observed` carries it; empty for none."""
    return blake2b(msgspec.msgpack.encode(observations), digest_size=16).hexdigest() if observations else ""


def has_own_calls(grade: Grade) -> bool:
    """Whether observations are left to a tool that only the episodes' author has."""
    return any(isinstance(part, OwnCall) for shown in grade.observations for each in shown for part in each)


def as_told(group: RolloutGroup, grade: Grade) -> Grade:
    """The grade with what the author says that its tool answered, where it says so."""
    observations = tuple(
        _answered(grade.observed(index), completion.told) for index, completion in enumerate(group.completions)
    )
    return replace(grade, observations=observations)


def _answered(observations: Sequence[Observation], told: Sequence[str]) -> tuple[Observation, ...]:
    left = iter(told)

    def answered(part: Part) -> Part:
        if not isinstance(part, OwnCall):
            return part
        text = next(left, None)
        return part if text is None else Told(text)

    return tuple(tuple(map(answered, shown)) for shown in observations)


def is_whole(group: RolloutGroup, grade: Grade) -> bool:
    """Whether every episode ends with its last turn, and its author saw the observations of the grade.

    An author can thus neither leave turns out nor add or exchange any, nor name another start.
    """
    return not has_own_calls(grade) and all(
        len(shown) < len(completion.by_turn()) and digest(shown) == completion.observed
        for completion, shown in ((c, grade.observed(index)) for index, c in enumerate(group.completions))
    )


def _merged(spans: Sequence[VersionSpan]) -> tuple[VersionSpan, ...]:
    """The spans with neighbours of one version as one."""
    return tuple(
        VersionSpan(version, sum(span.num_tokens for span in same))
        for version, same in groupby(spans, lambda span: span.version)
    )
