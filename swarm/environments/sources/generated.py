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
from swarm.environments.digests import Chance, digest, with_code
from swarm.environments.scoring.grading import exact
from swarm.environments.sources.lru import NUM_WITH_MEDIA, LruCache
from swarm.environments.sources.procedural import ProceduralSource, referenced, with_last_text
from swarm.protocols import TaskSource
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


class GeneratedSource(ProceduralSource):
    """Implements `TaskSource` for a `GeneratedTask`."""

    def __init__(self, config: GeneratedTask) -> None:
        """Raises `TaskError`."""
        self._config = config
        self._kept: LruCache[tuple[int, int], tuple[Question, Made]] = LruCache(NUM_WITH_MEDIA)
        rules = (*config.finds_as, *config.grades_as, *config.combines_as)
        options = digest(config.label, config.options, *rules)
        library = f"{config.label}/{config.version}"
        super().__init__(
            config, config.reward, library, with_code(options, config.library) if config.library else options
        )

    def question(self, seed: int, index: int) -> Question:
        """Question `index` of the stream `seed`."""
        return self._at(seed, index) if self._config.has_own_streams else super().question(seed, index)

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether its stream or its content is held out. See `TaskSource`."""
        if self._config.has_own_streams:
            return isinstance(ref, ProceduralRef) and ref.seed >= HELD_OUT_STREAMS
        return super().is_held_out(ref)

    def _at(self, seed: int, index: int) -> Question:
        return self._keep(seed, index)[0]

    def _bare(self, seed: int, index: int) -> Prompt:
        return _bare(self._keep(seed, index)[1])

    def _solution(self, seed: int, index: int) -> str:
        return self._keep(seed, index)[1].answer

    def _score(self, answer: str, seed: int, index: int) -> float:
        return float(exact(answer, self._solution(seed, index)))

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
