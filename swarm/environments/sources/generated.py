"""Tasks whose questions are made from a seed: their settings, and their source.

What a question shows must be the same bytes on every machine, so images and audio are made by integer arithmetic.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from msgspec import Struct
from pydantic import JsonValue

from swarm.environments.answering import QuestionSettings, RewardSettings
from swarm.environments.config import Context
from swarm.environments.digests import Chance, check_options, digest, with_code
from swarm.environments.scoring.finding import finder
from swarm.environments.scoring.grading import exact
from swarm.environments.sources.lru import NUM_WITH_MEDIA, LruCache
from swarm.environments.sources.procedural import HeldApart, referenced, regenerate, with_last_text
from swarm.errors import Refusal
from swarm.protocols import TaskSource
from swarm.reasons import Reason
from swarm.types import HELD_OUT_STREAMS, Message, ProceduralRef, Prompt, Question, TaskRef, Text
from swarm.types.media import Media, Modality


class Made(Struct, frozen=True):
    """A question and its answer."""

    media: tuple[Media, ...]
    """What is shown or heard before the text."""
    text: str
    answer: str
    """A word or a number; upper and lower case are equal."""


class GeneratedTask(QuestionSettings):
    """A kind of task whose questions are a function of the settings and of chance, each with one right answer."""

    shows: ClassVar[frozenset[Modality]] = frozenset()
    """What its questions have besides text."""
    version: ClassVar[int] = 1
    """Changes with what `make` makes of the same arguments."""
    has_own_streams: ClassVar[bool] = False
    """Whether `make` itself sees to it that held-out streams share no question with others."""

    reward: RewardSettings = RewardSettings()

    @abstractmethod
    def make(self, chance: Chance) -> Made:
        """A question and its answer. The last parts of `chance.key` are stream and index."""

    def source(self, context: Context) -> TaskSource:
        """See `QuestionSettings`."""
        return GeneratedSource(self)

    @property
    def media(self) -> frozenset[Modality]:
        """See `TaskSettings`."""
        return self.shows

    @property
    def options(self) -> dict[str, JsonValue]:
        """What decides how a question is made: members of a run must agree on it."""
        answering = set(QuestionSettings.model_fields)
        return self.model_dump(mode="json", exclude={"kind", "name", "weight", "reward", *answering})


class GeneratedSource:
    """Implements `TaskSource` for a `GeneratedTask`."""

    def __init__(self, config: GeneratedTask) -> None:
        """Raises `TaskError`."""
        self.name = config.name
        self._config = config
        self._find = finder(config)
        self._library = f"{config.label}/{config.version}"
        rules = (*config.finds_as, *config.grades_as, *config.combines_as)
        options = digest(config.label, config.options, *rules)
        self._options_digest = with_code(options, config.library) if config.library else options
        self._apart = HeldApart(self._at, lambda seed, index: _bare(self._keep(seed, index)[1]))
        self._kept: LruCache[tuple[int, int], tuple[Question, Made]] = LruCache(NUM_WITH_MEDIA)

    @property
    def num_held_out(self) -> int | None:
        """None: questions are made without end."""
        return None

    def question(self, seed: int, index: int) -> Question:
        """Question `index` of the stream `seed`."""
        return self._at(seed, index) if self._config.has_own_streams else self._apart.question(seed, index)

    def recall(self, ref: TaskRef) -> Question:
        """Make the question behind a reference again.

        Raises `Refusal`: `unknown_task`, `options_differ`, or `question_mismatch` or `media_mismatch` when another
        version makes something else.
        """
        if not isinstance(ref, ProceduralRef) or ref.task != self.name:
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} as asked is not the task {self.name!r}")
        check_options(ref, self._options_digest)
        return regenerate(self._at, ref, f"{ref.task} {ref.index} of {ref.seed} by {ref.library}, here {self._library}")

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether its stream or its content is held out. See `TaskSource`."""
        if self._config.has_own_streams:
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

    def found(self, ref: TaskRef, completion: str) -> str | None:
        """What counts as the answer. See `Answered`."""
        return self._find(completion)

    def _at(self, seed: int, index: int) -> Question:
        """The question made of a seed and an index, whether it is held out or not."""
        return self._keep(seed, index)[0]

    def _keep(self, seed: int, index: int) -> tuple[Question, Made]:
        if (kept := self._kept.get((seed, index))) is not None:
            return kept
        made = self._config.make(Chance((self._config.label, self.name, seed, index)))
        prompt = with_last_text(_bare(made), self._config.asked)
        question = referenced(self.name, self._library, self._options_digest, seed, index, prompt)
        self._kept.put((seed, index), (question, made))
        return question, made


def _bare(made: Made) -> Prompt:
    """What is shown and asked, without the request for the answer's form."""
    return (Message("user", (*made.media, Text(made.text))),)
