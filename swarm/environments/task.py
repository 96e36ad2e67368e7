"""Custom tasks in Python: the class that users extend, the settings that name it, and its source.

`examples/own_task.py` is one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, cast

from pydantic import Field, JsonValue, ValidationError

from swarm.environments.answering import QuestionSettings, RewardSettings
from swarm.environments.code import code_digest, load
from swarm.environments.config import Context, Failures, Target
from swarm.environments.digests import digest, with_code
from swarm.environments.sources.lru import NUM_WITH_MEDIA, LruCache
from swarm.environments.sources.procedural import ProceduralSource
from swarm.errors import TaskError
from swarm.protocols import TaskSource
from swarm.settings import Settings, problems
from swarm.types import Prompt, Shown, Text, as_prompt, as_text
from swarm.types.media import Media, Modality, media_problem, modality

LIBRARY = "python"
NUM_ITEMS = 512
"""Questions that a source keeps."""

RewardFunction = Callable[[str, str, str], float]
"""(question, completion, reference) -> reward in [0, 1]."""

Asked = str | Sequence[str | Media]
"""A question: a text, or texts, images, audio and video in their order."""


class Task(Settings, ABC):
    """Makes questions and rewards answers; its fields are the task's `options`.

    Both methods run in the verification workers: without network, without files but Python's, within limits of time
    and memory. Every node that shares the task calls them: what they return must depend on their arguments and the
    options alone.
    """

    @abstractmethod
    def question(self, random: Random) -> tuple[Asked, str]:
        """A question and its reference answer, made with this source of randomness and no other.

        The setting `modalities` of the task lists what a question has besides text.
        """

    @abstractmethod
    def reward(self, question: str, completion: str, reference: str) -> float:
        """Reward in [0, 1] of a completion, or of the answer in it if the task has a rule `find`.

        `question` is its text, with the sizes of images, audio and video where these are. The completion is foreign
        text: it must not be evaluated, imported or used as a path.
        """


class PythonTask(QuestionSettings):
    """A custom task: a subclass of `swarm.environments.task.Task`. Every member needs the same code."""

    code_field = "target"
    reads_whole = True

    kind: Literal["python"]
    target: Target
    """`mypackage.mymodule:Name`, `path/to/file.py:Name`, or the name under which an installed package offers it: that
    of an entry point of the group `swarm.environments`."""
    options: dict[str, JsonValue] = {}
    """Values for the fields of the class."""
    modalities: tuple[Modality, ...] = Field((), max_length=3)
    """What its questions have besides text: `image`, `audio` and `video`. A question with anything else is refused, so
    that it is known from the settings alone which policies can read the task."""
    reward: RewardSettings = RewardSettings(threshold=None)

    @property
    def media(self) -> frozenset[Modality]:
        """See `TaskSettings`."""
        return frozenset(self.modalities)

    @property
    def scored_by_code(self) -> bool:
        """See `FindSettings`."""
        return True

    def source(self, context: Context) -> TaskSource:
        """See `QuestionSettings`."""
        return PythonSource(self, counts=context.counts)


class CustomReward:
    """A user's reward function, on untrusted completions."""

    def __init__(self, function: RewardFunction, name: str, counts: Failures) -> None:
        """`name` is the task's; `counts` gets `scorer_failures`."""
        self._function = function
        self._name = name
        self._counts = counts

    def __call__(self, question: str, completion: str, reference: str) -> float:
        """The function's reward, cut to [0, 1]; 0 if it fails or returns no finite number."""
        try:
            reward = float(self._function(question, completion, reference))
        except Exception as error:  # the user's own code
            text = f"its reward function raised {error!r}; such completions get reward 0"
            self._counts.note("scorer_failures", self._name, text)
            return 0.0
        return min(1.0, max(0.0, reward)) if math.isfinite(reward) else 0.0


def load_reward(target: str, name: str, counts: Failures) -> CustomReward:
    """The function that a data set's `scorer` names. Raises `TaskError`."""
    function = load(target)
    if not callable(function) or isinstance(function, type):
        raise TaskError(
            f"task {name!r}: {target} must be a function (question, completion, reference) -> reward, got {function!r}"
        )
    return CustomReward(cast(RewardFunction, function), name, counts)


class PythonSource(ProceduralSource):
    """Implements `TaskSource` for a subclass of `Task`."""

    def __init__(self, config: PythonTask, *, counts: Failures | None = None) -> None:
        """Load the class and validate the options. Raises `TaskError`."""
        self.counts = Failures() if counts is None else counts
        """`scorer_failures`: completions whose reward failed; they got reward 0."""
        self._config = config
        self._task = _make(config)
        self._custom = CustomReward(self._task.reward, config.name, self.counts)
        self._items: LruCache[tuple[int, int], tuple[Prompt, str]] = LruCache(
            NUM_WITH_MEDIA if config.modalities else NUM_ITEMS
        )
        options = digest(config.options, *config.finds_as, *config.grades_as, *config.combines_as)
        super().__init__(config, config.reward, LIBRARY, with_code(options, code_digest(config.target)))

    def _bare(self, seed: int, index: int) -> Prompt:
        return self._made(seed, index)[0]

    def _solution(self, seed: int, index: int) -> str:
        return self._made(seed, index)[1]

    def _score(self, answer: str, seed: int, index: int) -> float:
        question, reference = self._made(seed, index)
        return self._custom(as_text(question), answer, reference)

    def _made(self, seed: int, index: int) -> tuple[Prompt, str]:
        """A question and its reference. Raises `TaskError`."""
        if (kept := self._items.get((seed, index))) is not None:
            return kept
        try:
            made: object = self._task.question(Random(digest("python", self.name, seed, index)))
        except Exception as error:  # the user's own code
            raise TaskError(f"task {self.name!r}: question {index} of {seed}: {error!r}") from error
        match made:
            case (str() | list() | tuple() as asked, str(reference)):
                prompt = _prompt(asked, self._config)
                self._items.put((seed, index), (prompt, reference))
                return prompt, reference
        raise TaskError(f"task {self.name!r}: question() must return a question and its reference, got {made!r:.200}")


def _prompt(asked: str | list[object] | tuple[object, ...], config: PythonTask) -> Prompt:
    """A custom question as a prompt. Raises `TaskError` for one that cannot be asked."""
    where = f"task {config.name!r}: question()"
    parts = (asked,) if isinstance(asked, str) else asked
    shown: list[Shown] = []
    for part in parts:
        if not isinstance(part, str | Media):
            raise TaskError(f"{where} must return text, or a list of texts and media, got {part!r:.200}")
        if isinstance(part, Media) and modality(part) not in config.modalities:
            raise TaskError(f"{where} made {part}: list {modality(part)!r} in the task's `modalities`")
        shown.append(Text(part) if isinstance(part, str) else part)
    observation = tuple(shown)
    if problem := media_problem([part for part in observation if isinstance(part, Media)]):
        raise TaskError(f"{where} made {problem}")
    if not (prompt := as_prompt(observation)) or (isinstance(prompt, str) and not prompt.strip()):
        raise TaskError(f"{where} must return a question with text, got {asked!r:.200}")
    return prompt


def _make(config: PythonTask) -> Task:
    found = load(config.target)
    where = f"task {config.name!r}: {config.target}"
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise TaskError(f"{where} must be a subclass of swarm.environments.task.Task, got {found!r}")
    try:
        return found.model_validate(config.options)
    except ValidationError as error:
        raise TaskError(f"{where}: options: {problems(error)}") from error
    except TypeError as error:  # an abstract method is missing
        raise TaskError(f"{where}: {error}") from error
