"""Plays own episodes, and compares others' with their replay.

    questions ──▶ engine: a turn each ──▶ verifier: replay so far ──▶ over? ──▶ completions of all turns, and a grade
                      ▲                                                │
                      └───────── past and observation ◀────────────────┘

All episodes take their next turn in one call of the engine, which continues the tokens of their past exactly. A
question with a single turn is over after the first call, and its grade comes while others are still answered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing
from hashlib import blake2b
from itertools import chain, count, groupby

import msgspec
import numpy as np
from msgspec import Struct

from swarm.protocols import RolloutEngine, Verifier
from swarm.reasons import Reason
from swarm.types import (
    Actions,
    Answers,
    Completion,
    Context,
    Grade,
    Observation,
    OwnCall,
    Past,
    Question,
    Rejection,
    RolloutGroup,
    Sampling,
    Step,
    Turn,
    VersionSpan,
)

Stream = Callable[[Sequence[Context], int, Sampling, int], Generator[tuple[int, Answers]]]
"""As `RolloutEngine.stream`."""


def by_generate(engine: RolloutEngine) -> Stream:
    """Its `generate`, in turn with updates; its own `stream` may use another process, with older weights."""

    def stream(
        prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> Generator[tuple[int, Answers]]:
        yield from enumerate(engine.generate(prompts, num_completions, sampling, seed))

    return stream


class Played(Struct, frozen=True):
    """One question with all its episodes."""

    completions: tuple[Completion, ...]
    """[G]"""
    grading: Future[Grade | Rejection]
    """Of all turns; a refusal if the verifier gave up before the end."""


def play(
    stream: Stream,
    verifier: Verifier,
    questions: Sequence[Question],
    num_completions: int,
    sampling: Sampling,
    seed: int,
) -> Generator[tuple[int, Played | Rejection]]:
    """Play G episodes of each question; yields its index and its episodes, or why the engine did not finish them.

    An episode whose past leaves no room for a turn ends its whole group: nobody else could tell why it stops. Raises
    what engine and verifier raise.
    """
    games: dict[int, _Game] = {}
    prompts: list[Context] = [question.prompt for question in questions]
    with closing(stream(prompts, num_completions, sampling, seed)) as finished:
        for index, answers in finished:
            if isinstance(answers, Rejection):
                yield index, answers
                continue
            game = _Game(questions[index], answers, verifier)
            if questions[index].max_turns == 1:
                yield index, game.result()
            else:
                games[index] = game
    for number in count(2):
        yield from _settle(games)
        if not games:
            return
        turn_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        yield from _take_turns(stream, games, sampling, turn_seed)


def _settle(games: dict[int, _Game]) -> Generator[tuple[int, Played | Rejection]]:
    """Wait for all replays; games that are over are yielded and removed."""
    for index, game in tuple(games.items()):
        if (outcome := game.outcome()) is not None:
            del games[index]
            yield index, outcome


def _take_turns(
    stream: Stream, games: dict[int, _Game], sampling: Sampling, seed: int
) -> Generator[tuple[int, Rejection]]:
    """Take one turn in every episode that goes on; a game that cannot is yielded and removed."""
    # Sorted: samples must not depend on the order in which engine and verifier finish.
    places = [
        (index, episode) for index, game in sorted(games.items(), key=lambda pair: pair[0]) for episode in game.going_on
    ]
    prompts: list[Context] = [games[index].past(episode) for index, episode in places]
    with closing(stream(prompts, 1, sampling, seed)) as finished:
        for place, answers in finished:
            index, episode = places[place]
            if index not in games:
                continue
            if isinstance(answers, Rejection):
                del games[index]
                yield index, answers
            else:
                games[index].add(episode, answers[0])


class _Game:
    """The G episodes of one question."""

    def __init__(self, question: Question, first: Sequence[Completion], verifier: Verifier) -> None:
        """`first` [G] are the first turns."""
        self._question = question
        self._verifier = verifier
        self._turns = [[turn] for turn in first]
        self._observations: list[tuple[Observation, ...]] = [()] * len(first)
        """What the next turns were told."""
        self._missing: set[int] = set()
        """Episodes that go on and have not taken their next turn."""
        self._grading = self._replay()

    @property
    def going_on(self) -> list[int]:
        """The episodes that take another turn."""
        return sorted(self._missing)

    def past(self, episode: int) -> Past:
        """What the episode's next turn continues."""
        pairs = zip(self._turns[episode], self._observations[episode], strict=True)
        return Past(self._question.prompt, tuple(Step(turn.token_ids, shown) for turn, shown in pairs))

    def add(self, episode: int, turn: Completion) -> None:
        """Add an episode's next turn; with the last of them, all are replayed."""
        self._turns[episode].append(turn)
        self._missing.remove(episode)
        if not self._missing:
            self._grading = self._replay()

    def outcome(self) -> Played | Rejection | None:
        """Wait for the replay; None if an episode goes on."""
        verdict = self._grading.result()
        if isinstance(verdict, Rejection):
            return self.result()
        shown = [verdict.observed(episode) for episode in range(len(self._turns))]
        if any(now[: len(before)] != before for now, before in zip(shown, self._observations, strict=True)):
            return Rejection(Reason.EPISODE_MISMATCH, "the environment answers the same turns differently each time")
        self._observations = shown
        self._missing = {k for k, turns in enumerate(self._turns) if len(shown[k]) == len(turns)}
        return None if self._missing else self.result()

    def result(self) -> Played:
        """The episodes as they are."""
        pairs = zip(self._turns, self._observations, strict=True)
        return Played(tuple(joined(turns, shown) for turns, shown in pairs), self._grading)

    def _replay(self) -> Future[Grade | Rejection]:
        actions: list[Actions] = [
            turns[0].text if len(turns) == 1 else tuple(turn.text for turn in turns) for turns in self._turns
        ]
        return self._verifier.begin(self._question.ref, actions)


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
    )


def digest(observations: Sequence[Observation]) -> str:
    """Names the observations between an episode's turns, as `Completion.observed` carries it; empty for none."""
    return blake2b(msgspec.msgpack.encode(observations), digest_size=16).hexdigest() if observations else ""


def is_whole(group: RolloutGroup, grade: Grade) -> bool:
    """Whether every episode ends with its last turn, and its author saw the observations that were computed here.

    An author can thus neither leave turns out nor add or exchange any, nor name another start.
    """
    return all(
        len(shown) < len(completion.by_turn()) and digest(shown) == completion.observed and _is_known(shown)
        for completion, shown in ((c, grade.observed(index)) for index, c in enumerate(group.completions))
    )


def _is_known(observations: Sequence[Observation]) -> bool:
    """Whether none of the observations is left to a tool that only the author has."""
    return not any(isinstance(part, OwnCall) for shown in observations for part in shown)


def _merged(spans: Sequence[VersionSpan]) -> tuple[VersionSpan, ...]:
    """The spans with neighbours of one version as one."""
    return tuple(
        VersionSpan(version, sum(span.num_tokens for span in same))
        for version, same in groupby(spans, lambda span: span.version)
    )
