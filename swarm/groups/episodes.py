"""Runs episodes between engine and verifier, and compares others' episodes with their replay.

    questions ──▶ engine: a turn each ──▶ verifier: replay so far ──▶ over? ──▶ completions of all turns, and a grade
                      ▲                                                │
                      └───────── past and observation ◀────────────────┘

Each episode takes its next turn as soon as its environment has answered, while the engine continues the others. An
engine that takes no turns while it generates is called in rounds: all episodes that continue take a turn in one call.
Either way it continues the tokens of their past exactly. A question with a single turn is over after the first call,
and its grade comes while others are still answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import closing
from hashlib import blake2b
from itertools import chain, count
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
    Part,
    Past,
    PendingCall,
    Question,
    Rejection,
    RolloutGroup,
    Sampling,
    Step,
    ToolResult,
    Turn,
    merged,
)


class Stream(Protocol):
    """See `RolloutEngine.stream`."""

    def __call__(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Answer prompts, and turns if it can."""


def by_generate(engine: RolloutEngine) -> Stream:
    """Its `generate`, in turn with updates; its own `stream` may use another process, with older weights."""

    def stream(
        prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int, turns: Turns | None = None
    ) -> Generator[tuple[int, Answers]]:
        yield from enumerate(engine.generate(prompts, num_completions, sampling, seed) if prompts else ())

    return stream


class FinishedGroup(Struct, frozen=True):
    """One question with all its episodes."""

    completions: tuple[Completion, ...]
    """[G]"""
    grading: Future[Grade | Rejection]
    """The grade of all turns; a refusal if the verifier gave up before the end."""


def run_episodes(
    stream: Stream,
    verifier: Verifier,
    questions: Sequence[Question],
    num_completions: int,
    sampling: Sampling,
    seed: int,
) -> Generator[tuple[int, FinishedGroup | Rejection]]:
    """Play G episodes of each question; yields its index and its episodes, or why the engine did not finish them.

    An episode whose past leaves no room for a turn ends its whole group: no receiver could see why it stops. Raises
    what engine and verifier raise.
    """
    single = [index for index, question in enumerate(questions) if question.max_turns == 1]
    prompts = [questions[index].prompt for index in single]
    runner = EpisodeRunner(verifier, num_completions)
    several = [(index, question) for index, question in enumerate(questions) if question.max_turns > 1]
    for slot, (index, question) in enumerate(several):
        runner.add(index, question, len(prompts) + slot * num_completions)
    turns = (runner,) if several else ()
    with closing(stream(prompts, num_completions, sampling, seed, *turns)) as finished:
        for name, answers in finished:
            if name >= len(prompts):
                runner.answer(name, answers)
                yield from runner.over()
            elif isinstance(answers, Rejection):
                yield single[name], answers
            else:
                texts = [completion.text for completion in answers]
                yield single[name], FinishedGroup(answers, verifier.begin_grading(questions[single[name]].ref, texts))
    for number in count(1):
        left = runner.all_that_follow()
        yield from runner.over()
        if not left:
            return
        turn_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        with closing(stream([turn.context for turn in left], 1, sampling, turn_seed)) as finished:
            for slot, answers in finished:
                runner.answer(left[slot].episode, answers)
                yield from runner.over()


class EpisodeRunner:
    """The open episodes of some questions, between engine and verifier: the `Turns` of an engine's call."""

    def __init__(self, verifier: Verifier, num_completions: int) -> None:
        """No questions yet; each has G episodes."""
        self._verifier = verifier
        self._num_completions = num_completions
        self._episodes: dict[int, tuple[_Episodes, int]] = {}
        """Those that are not over, by name: the group and the slot in it."""
        self._continuing: set[int] = set()
        self._ready: list[NextTurn] = []
        self._replays: dict[int, Future[Grade | Rejection]] = {}
        self._over: deque[tuple[int, FinishedGroup | Rejection]] = deque()

    @property
    def num_episodes(self) -> int:
        """Those that are not over. See `Turns`."""
        return len(self._episodes)

    @property
    def num_awaited(self) -> int:
        """Episodes whose environment has not answered yet, as far as `next_turns` has seen."""
        return len(self._replays)

    @property
    def continuing(self) -> Collection[int]:
        """Episodes that may take another turn after the one taken last. See `Turns`."""
        return self._continuing

    def add(self, index: int, question: Question, first: int) -> None:
        """Play a question, which is called `index`; its episode k is called `first` + k. All first turns are ready."""
        group = _Episodes(index, question, self._num_completions)
        for slot in range(self._num_completions):
            self._episodes[first + slot] = group, slot
            self._make_ready(NextTurn(first + slot, 1, question.prompt))

    def drop(self, indices: Collection[int]) -> None:
        """Play these questions no longer, and say nothing of them."""
        for group in {group.index: group for group, _ in self._episodes.values() if group.index in indices}.values():
            self._remove(group)

    def ask_again(self, turns: Iterable[NextTurn]) -> None:
        """Turns that were taken and will not be answered are ready again, before all others."""
        others, self._ready = self._ready, []
        for turn in turns:
            if turn.episode in self._episodes:
                self._make_ready(turn)
        self._ready += others

    def next_turns(self, wait: bool) -> list[NextTurn]:
        """The turns that are ready. See `Turns`."""
        self._settle()
        while wait and not self._ready and self._replays:
            futures.wait(self._replays.values(), return_when=futures.FIRST_COMPLETED)
            self._settle()
        ready, self._ready = self._ready, []
        for turn in ready:
            group, _ = self._episodes[turn.episode]
            if turn.number == group.question.max_turns:
                self._continuing.discard(turn.episode)
        return ready

    def all_that_follow(self) -> list[NextTurn]:
        """All turns that follow those that were answered, in the same order whoever finishes first."""
        futures.wait(self._replays.values())
        return sorted(self.next_turns(wait=False), key=lambda turn: turn.episode)

    def answer(self, name: int, answers: Answers) -> None:
        """Add an episode's next turn, and have it replayed unless it is the last."""
        if name not in self._episodes:  # its group has ended without it
            return
        group, slot = self._episodes[name]
        if isinstance(answers, Rejection):
            self._end(group, answers)
            return
        group.turns[slot].append(answers[0])
        if group.refusal is None and len(group.turns[slot]) < group.question.max_turns:
            self._replays[name] = self._verifier.replay(group.question.ref, group.actions(slot))
        else:
            self._end_episode(name)

    def over(self) -> Iterator[tuple[int, FinishedGroup | Rejection]]:
        """The groups that have ended since the last call, by question index; none is lost with the iterator."""
        while self._over:
            yield self._over.popleft()

    def _make_ready(self, turn: NextTurn) -> None:
        self._continuing.add(turn.episode)
        self._ready.append(turn)

    def _settle(self) -> None:
        """Read the replays that are complete."""
        for name, replay in tuple(self._replays.items()):
            if replay.done():
                del self._replays[name]
                if name in self._episodes:
                    self._replayed(name, replay)

    def _replayed(self, name: int, replay: Future[Grade | Rejection]) -> None:
        group, slot = self._episodes[name]
        verdict = replay.result()
        if isinstance(verdict, Rejection):
            self._refuse(group, replay)
        elif len(shown := verdict.observed(0)) == len(group.turns[slot]) and group.refusal is None:
            group.shown[slot] = shown
            self._ready.append(NextTurn(name, len(shown) + 1, group.past(slot)))
            return
        self._end_episode(name)

    def _refuse(self, group: _Episodes, refusal: Future[Grade | Rejection]) -> None:
        """No episode of a group continues; turns that the engine has begun are awaited."""
        group.refusal = refusal
        stopped = [turn.episode for turn in self._ready if self._episodes[turn.episode][0] is group]
        self._ready = [turn for turn in self._ready if turn.episode not in stopped]
        for name in stopped:
            self._end_episode(name)

    def _end_episode(self, name: int) -> None:
        group, slot = self._episodes[name]
        self._continuing.discard(name)
        group.open.discard(slot)
        if not group.open:
            self._end(group, group.played(self._verifier))

    def _end(self, group: _Episodes, outcome: FinishedGroup | Rejection) -> None:
        self._over.append((group.index, outcome))
        self._remove(group)

    def _remove(self, group: _Episodes) -> None:
        names = {name for name, (other, _) in self._episodes.items() if other is group}
        self._ready = [turn for turn in self._ready if turn.episode not in names]
        self._continuing -= names
        for name in names:
            del self._episodes[name]


class _Episodes:
    """The G episodes of one question."""

    def __init__(self, index: int, question: Question, num_completions: int) -> None:
        """Nothing is said yet. `index` is that of the question."""
        self.index = index
        self.question = question
        self.turns: list[list[Completion]] = [[] for _ in range(num_completions)]
        self.shown: list[tuple[Observation, ...]] = [()] * num_completions
        """Observations before each turn after the first."""
        self.open = set(range(num_completions))
        """The episodes that are not over."""
        self.refusal: Future[Grade | Rejection] | None = None
        """The verifier's, for one of the episodes."""

    def past(self, slot: int) -> Past:
        """What an episode's next turn continues."""
        pairs = zip(self.turns[slot], self.shown[slot], strict=True)
        return Past(self.question.prompt, tuple(Step(turn.token_ids, shown, turn.forced) for turn, shown in pairs))

    def actions(self, slot: int) -> Actions:
        """The actions that the environment receives."""
        turns = self.turns[slot]
        return turns[0].text if len(turns) == 1 else tuple(turn.text for turn in turns)

    def played(self, verifier: Verifier) -> FinishedGroup:
        """The episodes as they are, replayed together: for their grade, and because observations must be the same
        each time."""
        completions = tuple(joined(turns, shown) for turns, shown in zip(self.turns, self.shown, strict=True))
        if self.refusal is not None:
            return FinishedGroup(completions, self.refusal)
        grading = verifier.begin_grading(self.question.ref, [self.actions(slot) for slot in range(len(self.turns))])
        return FinishedGroup(completions, _checked(grading, self.shown))


def _checked(grading: Future[Grade | Rejection], shown: Sequence[Sequence[Observation]]) -> Future[Grade | Rejection]:
    """A grade whose observations begin with those that were `shown` to the policy, or a refusal."""
    checked: Future[Grade | Rejection] = Future()

    def check(graded: Future[Grade | Rejection]) -> None:
        if (error := graded.exception()) is not None:
            checked.set_exception(error)
            return
        verdict = graded.result()
        if isinstance(verdict, Grade) and any(
            verdict.observed(slot)[: len(before)] != before for slot, before in enumerate(shown)
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
        versions=merged([span for turn in turns for span in turn.versions]),
        routing=turns[-1].routing,  # the last turn's prompt is everything before it
        turns=tuple(Turn(len(turn.text), len(turn.token_ids), turn.finish_reason, turn.forced) for turn in turns),
        observed=digest(observations),
        told=tuple(part.text for shown in observations for part in shown if isinstance(part, ToolResult)),
    )


def digest(observations: Sequence[Observation]) -> str:
    """Names the observations between an episode's turns, as `Completion.observed` carries it; empty for none."""
    return blake2b(msgspec.msgpack.encode(observations), digest_size=16).hexdigest() if observations else ""


def has_own_calls(grade: Grade) -> bool:
    """Whether observations are left to a tool that only the episodes' author has."""
    return any(isinstance(part, PendingCall) for shown in grade.observations for each in shown for part in each)


def as_told(group: RolloutGroup, grade: Grade) -> Grade:
    """The grade with what the author says that its tool answered, where it says so."""
    observations = tuple(
        _answered(grade.observed(index), completion.told) for index, completion in enumerate(group.completions)
    )
    return replace(grade, observations=observations)


def _answered(observations: Sequence[Observation], told: Sequence[str]) -> tuple[Observation, ...]:
    left = iter(told)

    def answered(part: Part) -> Part:
        if not isinstance(part, PendingCall):
            return part
        text = next(left, None)
        return part if text is None else ToolResult(text, part.tool)

    return tuple(tuple(map(answered, shown)) for shown in observations)


def is_whole(group: RolloutGroup, grade: Grade) -> bool:
    """Whether every episode ends with its last turn, and its author saw the observations of the grade.

    An author can thus neither leave turns out nor add or exchange any, nor name another start.
    """
    return not has_own_calls(grade) and all(
        len(shown) < len(completion.by_turn()) and digest(shown) == completion.observed
        for completion, shown in ((c, grade.observed(index)) for index, c in enumerate(group.completions))
    )
