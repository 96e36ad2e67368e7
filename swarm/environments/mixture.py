"""A run's tasks as one stream of questions, and the replay of episodes.

A replay of the policy's turns in an environment is the only source of observations and returns, of any group.

    begin ──▶ step(turn 1) ──▶ observation ──▶ step(turn 2) ──▶ ... ──▶ end with the return, or the next turn can follow

The limits are here, not in the environments: an episode is over after `max_turns`, and an observation is cut off. Time
and memory are limited by the process (`verification/`).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from swarm.environments.config import Context, Failures, TaskConfig
from swarm.environments.digests import draw
from swarm.environments.rewards import Combination, Parts
from swarm.environments.verification.messages import MAX_SHOWN_CHARS
from swarm.errors import Refusal, TaskError
from swarm.protocols import Answered, Episode, EpisodeSource, Source, TaskSource
from swarm.reasons import Reason
from swarm.types import (
    Actions,
    Grade,
    Observation,
    Part,
    Question,
    Rejection,
    StepReward,
    TaskRef,
    Terminal,
    by_turn,
    earned,
)
from swarm.types.media import Media
from swarm.types.thoughts import answer_of

MAX_OBSERVATION_CHARS = 8_192
_RESOLUTION = 2**53
MAX_SETUP_S = 300.0
"""For all tasks that somebody else has chosen."""
MB = 10**6


class Bounds(Struct, frozen=True):
    """What the tasks that somebody else has chosen may take together."""

    used: Callable[[], int] = lambda: 0
    """Bytes of memory that tasks take now."""
    max_bytes: int = 2**63
    max_seconds: float = MAX_SETUP_S

    def check(self, began: float) -> None:
        """Raises `TaskError` if the tasks since `began` have taken too much."""
        if (used := self.used()) > self.max_bytes:
            raise TaskError(
                f"the run's tasks up to this one take {used // MB} MB of memory, at most {self.max_bytes // MB} "
                "(verification.tasks_bytes)"
            )
        if (seconds := time.monotonic() - began) > self.max_seconds:
            raise TaskError(f"it took {seconds:.0f} s to set up the run's tasks up to this one")


def build(config: TaskConfig, counts: Failures) -> Source:
    """The source of a task without stored rows. Raises `TaskError`."""
    return config.build(Context(counts))


class Replay(Struct, frozen=True):
    """What became of an episode."""

    observations: tuple[Observation, ...]
    """What the environment answered to each turn except one that ended the episode."""
    reward: float
    """What all turns earned, at most 1."""


class OneTurn:
    """A question of a `TaskSource` as an episode: its score ends it."""

    def __init__(self, source: TaskSource, ref: TaskRef) -> None:
        """`recall` of `source` accepts `ref`."""
        self._source = source
        self._ref = ref

    def step(self, action: str) -> Terminal:
        """The end. See `Episode`."""
        return Terminal(self._source.score(self._ref, action))


def replay(episode: Episode, actions: Actions, max_turns: int) -> Replay:
    """Replay all `actions` in a new episode, which sees of each turn what follows its thought.

    Raises `Refusal` with `episode_mismatch` when one follows the end.
    """
    turns = by_turn(actions)
    observations: list[Observation] = []
    reward = 0.0
    for number, action in enumerate(turns, start=1):
        answer = episode.step(answer_of(action))
        reward = min(1.0, reward + (answer.reward if isinstance(answer, Terminal) else earned(answer)))
        if isinstance(answer, Terminal) or number == max_turns:
            if number < len(turns):
                raise Refusal(Reason.EPISODE_MISMATCH, f"the episode ends with turn {number}, got {len(turns)}")
            return Replay(tuple(observations), reward)
        observations.append(tuple(_within(answer, MAX_OBSERVATION_CHARS)))
    return Replay(tuple(observations), reward)


def _within(observation: Observation, num_chars: int) -> Iterator[Part]:
    """The parts of an observation, its texts up to so many characters in all."""
    for part in observation:
        if isinstance(part, StepReward | Media):
            yield part
            continue
        yield replace(part, text=part.text[:num_chars])
        num_chars = max(0, num_chars - len(part.text))


class TaskMixture:
    """Sources of all tasks, and a weighted choice among them that depends on (seed, index) alone."""

    def __init__(
        self,
        configs: Sequence[TaskConfig],
        lenient: bool = False,
        make: Callable[[TaskConfig, Failures], Source] = build,
        bounds: Bounds | None = None,
    ) -> None:
        """Set up every source and import its library.

        Raises `TaskError` when there is none, none can be asked here, two share a name, or one cannot be set up; with
        `lenient`, the latter is left out and listed in `skipped`, as long as another remains, and so is one for which
        the `bounds` leave no room.
        """
        if not configs:
            raise TaskError("a run needs at least one task, got none")
        self.skipped: dict[str, str] = {}
        """Why each omitted task could not be set up, by name."""
        self.counts = Failures()
        """`question_failures`: times that a task could not make its question; and the sources' counts."""
        self.sources: dict[str, Source] = {}
        self._combinations: dict[str, Combination] = {}
        within = bounds if lenient and bounds is not None else Bounds(max_seconds=math.inf)
        began = time.monotonic()
        for config in configs:
            if config.name in self.sources:
                raise TaskError(f"two tasks are named {config.name!r}; give one another `name`")
            try:
                combination = Combination(config.rewards) if config.rewards else None
                within.check(began)
                self.sources[config.name] = make(config, self.counts)
                within.check(began)
                if combination is not None:
                    self._combinations[config.name] = combination
            except TaskError as error:
                if not lenient:
                    raise
                self.sources.pop(config.name, None)
                self.skipped[config.name] = str(error)
        if not self.sources:
            raise TaskError(f"none of the tasks can be set up here: {'; '.join(self.skipped.values())}")
        asked = [config for config in configs if config.name in self.sources and config.is_asked]
        if not asked:
            raise TaskError(
                f"only peers that this node trusts have the tools of {', '.join(self.sources)}: list a task with a "
                "tool of your own, or one without"
            )
        self._names = tuple(config.name for config in asked)
        self._bounds = tuple(accumulate(config.weight for config in asked))

    def question(self, seed: int, index: int, skip: int = 0, task: str = "") -> Question:
        """Question `index` of the stream `seed`, of the mixture or of one `task`.

        If a task of the mixture fails to make its question, the next in the list takes over; `skip` starts that many
        tasks later. Raises `TaskError` when all of them fail, or the one that was asked for.
        """
        if task and task not in self._names:
            raise TaskError(f"task {task} cannot be asked here: only peers that this node trusts have its tool")
        failures = []
        for name in ((task,) if task else self._in_turn(seed, index))[skip:]:
            try:
                return self.sources[name].question(seed, index)
            except TaskError as error:
                self.counts.note("question_failures", name, f"it could not make a question: {error}")
                failures.append(str(error))
        raise TaskError(
            f"no task could make question {index} of stream {seed}: {'; '.join(failures) or 'every task was skipped'}"
        )

    def recall(self, ref: TaskRef) -> Question:
        """The question behind a reference. Raises `Refusal`, with `unknown_task` for a task not listed here."""
        return self._source(ref).recall(ref)

    def grade(self, ref: TaskRef, texts: Sequence[Actions]) -> Grade | Rejection:
        """Grade one group by replaying its episodes; a refused reference or episode is a result, not an error."""
        try:
            question = self.recall(ref)
            # Equal episodes end alike; short games have many.
            found = {text: replay(self._begin(ref), text, question.max_turns) for text in dict.fromkeys(texts)}
        except Refusal as refusal:
            return Rejection(refusal.reason, refusal.detail)
        replays = [found[text] for text in texts]
        observations = tuple(self._credited(ref.task, each.observations) for each in replays)
        rewards, parts = self._combined(ref.task, texts, tuple(each.reward for each in replays))
        expected, answers = self._answers(ref, texts)
        return Grade(
            question.prompt,
            rewards,
            observations=observations if any(observations) else (),
            held_out=self._source(ref).is_held_out(ref),
            parts=parts,
            expected=expected,
            found=answers,
        )

    def _answers(self, ref: TaskRef, texts: Sequence[Actions]) -> tuple[str, tuple[str, ...]]:
        """The right answer and [G] those found, cut for people; empty for a task without."""
        source = self._source(ref)
        if not isinstance(source, Answered):
            return "", ()
        answers = (source.found(ref, answer_of(by_turn(text)[-1])) or "" for text in texts)
        return source.solution(ref)[:MAX_SHOWN_CHARS], tuple(answer[:MAX_SHOWN_CHARS] for answer in answers)

    def num_held_out(self, task: str) -> int | None:
        """Questions of a task's held-out streams before one repeats; None when there is no end."""
        return self.sources[task].num_held_out

    def _combined(
        self, task: str, texts: Sequence[Actions], answers: tuple[float, ...]
    ) -> tuple[tuple[float, ...], Parts]:
        """[G] rewards and their parts, of the task's own rewards."""
        if task not in self._combinations:
            return answers, {}
        return self._combinations[task].rewards(texts, answers)

    def _credited(self, task: str, observations: tuple[Observation, ...]) -> tuple[Observation, ...]:
        """Observations whose parts of a return are parts of the reward."""
        return self._combinations[task].credited(observations) if task in self._combinations else observations

    def _in_turn(self, seed: int, index: int) -> tuple[str, ...]:
        """The task that a stream asks at an index, then those that take over for it."""
        point = draw(_RESOLUTION, "mixture", seed, index) / _RESOLUTION * self._bounds[-1]
        first = min(bisect_right(self._bounds, point), len(self._names) - 1)
        return self._names[first:] + self._names[:first]

    def _begin(self, ref: TaskRef) -> Episode:
        source = self._source(ref)
        return source.begin(ref) if isinstance(source, EpisodeSource) else OneTurn(source, ref)

    def _source(self, ref: TaskRef) -> Source:
        if ref.task not in self.sources:
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} is not among {', '.join(self.sources)}")
        return self.sources[ref.task]
