"""A generated task as a source: questions from a seed and an index, with one right answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from swarm.environments.digests import check_options, digest
from swarm.environments.generated.chance import Chance
from swarm.environments.generated.config import GeneratedTask
from swarm.environments.scoring.finding import finder
from swarm.environments.scoring.grading import exact
from swarm.environments.sources.again import made_again, referenced
from swarm.environments.sources.held_out import HeldApart
from swarm.environments.sources.last_text import with_last_text
from swarm.environments.sources.lru import NUM_WITH_MEDIA, LruCache
from swarm.errors import Refusal
from swarm.reasons import Reason
from swarm.types import HELD_OUT_STREAMS, Message, ProceduralRef, Prompt, Question, TaskRef, Text
from swarm.types.media import Media

Config = TypeVar("Config", bound=GeneratedTask)


class Made(Struct, frozen=True):
    """A question and its answer."""

    media: tuple[Media, ...]
    """What is shown or heard before the text."""
    text: str
    answer: str
    """A word or a number; upper and lower case are equal."""


class GeneratedSource(Generic[Config]):
    """Implements `TaskSource` for a function of settings and chance."""

    def __init__(
        self, config: Config, make: Callable[[Config, Chance], Made], version: int = 1, has_own_streams: bool = False
    ) -> None:
        """`version` changes with what `make` makes of the same arguments.

        `has_own_streams`: `make` itself sees to it that held-out streams share no question with others.
        """
        self.name = config.name
        self._config = config
        self._make = make
        self._has_own_streams = has_own_streams
        self._find = finder(config)
        self._library = f"{config.kind}/{version}"
        rules = (*config.finds_as, *config.grades_as, *config.combines_as)
        self._options_digest = digest(config.kind, config.options, *rules)
        self._apart = HeldApart(self._at, lambda seed, index: _bare(self._keep(seed, index)[1]))
        self._kept: LruCache[tuple[int, int], tuple[Question, Made]] = LruCache(NUM_WITH_MEDIA)

    @property
    def num_held_out(self) -> int | None:
        """None: questions are made without end."""
        return None

    def question(self, seed: int, index: int) -> Question:
        """Question `index` of the stream `seed`."""
        return self._at(seed, index) if self._has_own_streams else self._apart.question(seed, index)

    def recall(self, ref: TaskRef) -> Question:
        """Make the question behind a reference again.

        Raises `Refusal`: `unknown_task`, `options_differ`, or `question_mismatch` or `media_mismatch` when another
        version makes something else.
        """
        if not isinstance(ref, ProceduralRef) or ref.task != self.name:
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} as asked is not the task {self.name!r}")
        check_options(ref, self._options_digest)
        return made_again(self._at, ref, f"{ref.task} {ref.index} of {ref.seed} by {ref.library}, here {self._library}")

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether its stream or its content is held out. See `TaskSource`."""
        if self._has_own_streams:
            return isinstance(ref, ProceduralRef) and ref.seed >= HELD_OUT_STREAMS
        return self._apart.is_held_out(ref)

    def score(self, ref: TaskRef, completion: str) -> float:
        """Reward of one completion: whether its answer is the right one."""
        self.recall(ref)
        assert isinstance(ref, ProceduralRef)
        answer = self._find(completion)
        right = answer is not None and exact(answer, self._keep(ref.seed, ref.index)[1].answer)
        return self._config.reward.reward(float(right))

    def solution(self, ref: TaskRef) -> str:
        """The right answer. See `Answered`."""
        assert isinstance(ref, ProceduralRef)
        return self._keep(ref.seed, ref.index)[1].answer

    def found(self, completion: str) -> str | None:
        """What counts as the answer. See `Answered`."""
        return self._find(completion)

    def _at(self, seed: int, index: int) -> Question:
        """The question made of a seed and an index, whether it is held out or not."""
        return self._keep(seed, index)[0]

    def _keep(self, seed: int, index: int) -> tuple[Question, Made]:
        if (kept := self._kept.get((seed, index))) is not None:
            return kept
        made = self._make(self._config, Chance((self._config.kind, self.name, seed, index)))
        prompt = with_last_text(_bare(made), self._config.asked)
        question = referenced(self.name, self._library, self._options_digest, seed, index, prompt)
        self._kept.put((seed, index), (question, made))
        return question, made


def _bare(made: Made) -> Prompt:
    """What is shown and asked, without the request for the answer's form."""
    return (Message("user", (*made.media, Text(made.text))),)
