"""Plays own episodes, and compares others' with their replay.

    questions ──▶ engine: a turn each ──▶ verifier: replay so far ──▶ over? ──▶ completions of all turns, and a grade
                      ▲                                                │
                      └───────── past and observation ◀────────────────┘

Each episode takes its next turn as soon as its environment has answered, while the engine goes on with the others. An
engine that cannot be told of turns while it generates is asked in rounds: all episodes that go on take a turn in one
call. Either way it continues the tokens of their past exactly. A question with a single turn is over after the first
call, and its grade comes while others are still answered.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import closing
from hashlib import blake2b
from itertools import chain, count, groupby
from typing import Protocol

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from swarm.protocols import RolloutEngine, Turns, Verifier
from swarm.reasons import Reason
from swarm.types import (
    Actions,
    Answers,
    Completion,
    Context,
    Grade,
    NextTurn,
    Observation,
    OwnCall,
    Part,
    Past,
    Question,
    Rejection,
    RolloutGroup,
    Sampling,
    Step,
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
    single = [index for index, question in enumerate(questions) if question.max_turns == 1]
    prompts = [questions[index].prompt for index in single]
    several = {index: question for index, question in enumerate(questions) if question.max_turns > 1}
    table = _Table(verifier, several, num_completions, len(prompts))
    turns = (table,) if several else ()
    with closing(stream(prompts, num_completions, sampling, seed, *turns)) as finished:
        for name, answers in finished:
            if name >= len(prompts):
                table.answer(name, answers)
                yield from table.over()
            elif isinstance(answers, Rejection):
                yield single[name], answers
            else:
                texts = [completion.text for completion in answers]
                yield single[name], Played(answers, verifier.begin(questions[single[name]].ref, texts))
    for number in count(1):
        left = table.all_that_follow()
        yield from table.over()
        if not left:
            return
        turn_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        with closing(stream([turn.context for turn in left], 1, sampling, turn_seed)) as finished:
            for place, answers in finished:
                table.answer(left[place].episode, answers)
                yield from table.over()


class _Table:
    """The episodes of some questions, between engine and verifier: the `Turns` of an engine's call.

    Episode k of the i-th question is called `first + i * G + k`.
    """

    def __init__(self, verifier: Verifier, questions: Mapping[int, Question], num_completions: int, first: int) -> None:
        """All first turns are ready."""
        self._verifier = verifier
        self._episodes: dict[int, tuple[_Game, int]] = {}
        """Those of games that are not over, by name: the game and the place in it."""
        for index, question in questions.items():
            game = _Game(index, question, num_completions)
            for place in range(num_completions):
                self._episodes[first + len(self._episodes)] = game, place
        self.num_episodes = len(self._episodes)
        self._continuing = set(self._episodes)
        self._ready = [NextTurn(name, 1, game.question.prompt) for name, (game, _) in self._episodes.items()]
        self._replays: dict[int, Future[Grade | Rejection]] = {}
        self._over: list[tuple[int, Played | Rejection]] = []

    @property
    def continuing(self) -> Collection[int]:
        """Episodes that may take another turn after the one taken last. See `Turns`."""
        return self._continuing

    def take(self, wait: bool) -> list[NextTurn]:
        """The turns that are ready. See `Turns`."""
        self._settle()
        while wait and not self._ready and self._replays:
            futures.wait(self._replays.values(), return_when=futures.FIRST_COMPLETED)
            self._settle()
        ready, self._ready = self._ready, []
        for turn in ready:
            game, _ = self._episodes[turn.episode]
            if turn.number == game.question.max_turns:
                self._continuing.discard(turn.episode)
        return ready

    def all_that_follow(self) -> list[NextTurn]:
        """All turns that follow those that were answered, in the same order whoever finishes first."""
        futures.wait(self._replays.values())
        return sorted(self.take(wait=False), key=lambda turn: turn.episode)

    def answer(self, name: int, answers: Answers) -> None:
        """Add an episode's next turn, and have it replayed unless it is the last."""
        if name not in self._episodes:  # its game has ended without it
            return
        game, place = self._episodes[name]
        if isinstance(answers, Rejection):
            self._end(game, answers)
            return
        game.turns[place].append(answers[0])
        if game.refusal is None and len(game.turns[place]) < game.question.max_turns:
            self._replays[name] = self._verifier.replay(game.question.ref, game.actions(place))
        else:
            self._end_episode(name)

    def over(self) -> Iterator[tuple[int, Played | Rejection]]:
        """The games that have ended since the last call, by index of their question."""
        over, self._over = self._over, []
        yield from over

    def _settle(self) -> None:
        """Read the replays that are complete."""
        for name, replay in tuple(self._replays.items()):
            if replay.done():
                del self._replays[name]
                if name in self._episodes:
                    self._replayed(name, replay)

    def _replayed(self, name: int, replay: Future[Grade | Rejection]) -> None:
        game, place = self._episodes[name]
        verdict = replay.result()
        if isinstance(verdict, Rejection):
            self._refuse(game, replay)
        elif len(shown := verdict.observed(0)) == len(game.turns[place]) and game.refusal is None:
            game.shown[place] = shown
            self._ready.append(NextTurn(name, len(shown) + 1, game.past(place)))
            return
        self._end_episode(name)

    def _refuse(self, game: _Game, refusal: Future[Grade | Rejection]) -> None:
        """No episode of a game goes on; turns that the engine has begun are waited for."""
        game.refusal = refusal
        stopped = [turn.episode for turn in self._ready if self._episodes[turn.episode][0] is game]
        self._ready = [turn for turn in self._ready if turn.episode not in stopped]
        for name in stopped:
            self._end_episode(name)

    def _end_episode(self, name: int) -> None:
        game, place = self._episodes[name]
        self._continuing.discard(name)
        game.open.discard(place)
        if not game.open:
            self._end(game, game.played(self._verifier))

    def _end(self, game: _Game, outcome: Played | Rejection) -> None:
        self._over.append((game.index, outcome))
        names = {name for name, (other, _) in self._episodes.items() if other is game}
        self._ready = [turn for turn in self._ready if turn.episode not in names]
        self._continuing -= names
        for name in names:
            del self._episodes[name]


class _Game:
    """The G episodes of one question."""

    def __init__(self, index: int, question: Question, num_completions: int) -> None:
        """Nothing is said yet. `index` is that of the question."""
        self.index = index
        self.question = question
        self.turns: list[list[Completion]] = [[] for _ in range(num_completions)]
        self.shown: list[tuple[Observation, ...]] = [()] * num_completions
        """What the turns after the first were told."""
        self.open = set(range(num_completions))
        """The episodes that are not over."""
        self.refusal: Future[Grade | Rejection] | None = None
        """The verifier's, for one of the episodes."""

    def past(self, place: int) -> Past:
        """What an episode's next turn continues."""
        pairs = zip(self.turns[place], self.shown[place], strict=True)
        return Past(self.question.prompt, tuple(Step(turn.token_ids, shown) for turn, shown in pairs))

    def actions(self, place: int) -> Actions:
        """What the environment is told."""
        turns = self.turns[place]
        return turns[0].text if len(turns) == 1 else tuple(turn.text for turn in turns)

    def played(self, verifier: Verifier) -> Played:
        """The episodes as they are, replayed together: for their grade, and because observations must be the same
        each time."""
        completions = tuple(joined(turns, shown) for turns, shown in zip(self.turns, self.shown, strict=True))
        if self.refusal is not None:
            return Played(completions, self.refusal)
        grading = verifier.begin(self.question.ref, [self.actions(place) for place in range(len(self.turns))])
        return Played(completions, _checked(grading, self.shown))


def _checked(grading: Future[Grade | Rejection], shown: Sequence[Sequence[Observation]]) -> Future[Grade | Rejection]:
    """A grade whose observations begin with those that were `shown` to the policy, or a refusal."""
    checked: Future[Grade | Rejection] = Future()

    def check(graded: Future[Grade | Rejection]) -> None:
        if (error := graded.exception()) is not None:
            checked.set_exception(error)
            return
        verdict = graded.result()
        if isinstance(verdict, Grade) and any(
            verdict.observed(place)[: len(before)] != before for place, before in enumerate(shown)
        ):
            verdict = Rejection(Reason.EPISODE_MISMATCH, "the environment answers the same turns differently each time")
        checked.set_result(verdict)

    grading.add_done_callback(check)
    return checked


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
