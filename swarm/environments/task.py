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
from swarm.environments.digests import check_options, digest, with_code
from swarm.environments.scoring.finding import finder
from swarm.environments.sources.lru import NUM_WITH_MEDIA, LruCache
from swarm.environments.sources.procedural import HeldApart, referenced, regenerate, with_last_text
from swarm.errors import Refusal, TaskError
from swarm.protocols import TaskSource
from swarm.reasons import Reason
from swarm.settings import Settings, problems
from swarm.types import ProceduralRef, Prompt, Question, Shown, TaskRef, Text, as_prompt, as_text
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


class PythonSource:
    """Implements `TaskSource` for a subclass of `Task`."""

    def __init__(self, config: PythonTask, *, counts: Failures | None = None) -> None:
        """Load the class and validate the options. Raises `TaskError`."""
        self.name = config.name
        self.counts = Failures() if counts is None else counts
        """`scorer_failures`: completions whose reward failed; they got reward 0."""
        self._config = config
        self._task = _make(config)
        self._reward = CustomReward(self._task.reward, config.name, self.counts)
        self._find = finder(config)
        self._items: LruCache[tuple[int, int], tuple[Prompt, str]] = LruCache(
            NUM_WITH_MEDIA if config.modalities else NUM_ITEMS
        )
        self._apart = HeldApart(self._at, lambda seed, index: self._made(seed, index)[0])
        options = digest(config.options, *config.finds_as, *config.grades_as, *config.combines_as)
        self._options_digest = with_code(options, code_digest(config.target))

    @property
    def num_held_out(self) -> int | None:
        """None: questions are made without end."""
        return None

    def question(self, seed: int, index: int) -> Question:
        """Question `index` of the stream `seed`. Raises `TaskError` when the task fails to make it."""
        return self._apart.question(seed, index)

    def recall(self, ref: TaskRef) -> Question:
        """Make the question behind a reference again.

        Raises `Refusal`: `unknown_task`, `other_task`, `options_differ`, or `question_mismatch` when the same code
        makes another question here.
        """
        if not isinstance(ref, ProceduralRef) or ref.task != self.name:
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} as asked is not the Python task {self.name!r}")
        check_options(ref, self._options_digest)
        return regenerate(self._at, ref, f"{ref.task} {ref.index} of {ref.seed}")

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether its stream or its text is held out. See `TaskSource`."""
        return self._apart.is_held_out(ref)

    def score(self, ref: TaskRef, completion: str) -> float:
        """Reward of one completion."""
        self.recall(ref)
        assert isinstance(ref, ProceduralRef)
        question, reference = self._made(ref.seed, ref.index)
        answer = self._find(completion)
        score = 0.0 if answer is None else self._reward(as_text(question), answer, reference)
        return self._config.reward.reward(score)

    def solution(self, ref: TaskRef) -> str:
        """The right answer. See `Answered`."""
        assert isinstance(ref, ProceduralRef)
        return self._made(ref.seed, ref.index)[1]

    def found(self, ref: TaskRef, completion: str) -> str | None:
        """What counts as the answer. See `Answered`."""
        return self._find(completion)

    def _at(self, seed: int, index: int) -> Question:
        """The question made of a seed and an index, whichever kind its text is of."""
        prompt = with_last_text(self._made(seed, index)[0], self._config.asked)
        return referenced(self.name, LIBRARY, self._options_digest, seed, index, prompt)

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
