"""Environments as tasks of a run: their settings, and their episodes by reference."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, JsonValue

from swarm.environments.config import Context, Failures, TaskSettings
from swarm.environments.digests import check_options, digest, question_hash, with_code
from swarm.environments.scoring.answer_guard import is_safe_option
from swarm.environments.sources.dataset import is_hub_id
from swarm.environments.sources.lru import NUM_WITH_MEDIA, LruCache
from swarm.environments.sources.procedural import regenerate
from swarm.errors import Refusal, TaskError
from swarm.protocols import Environment, Episode
from swarm.reasons import Reason
from swarm.types import (
    HELD_OUT_STREAMS,
    MAX_TURNS,
    EpisodeRef,
    Observation,
    Question,
    StepReward,
    TaskRef,
    Terminal,
    as_prompt,
    media_of,
)
from swarm.types.media import Modality, media_digest

REMEMBERED = 1_024
"""Starts; each is asked for again with every turn that is replayed."""


def _plain(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name, value in settings.items():
        if not (is_safe_option(value) or (isinstance(value, str) and is_hub_id(value))):
            raise ValueError(f"{name} must be plain words, numbers or OWNER/NAME on the hub, got {value!r:.200}")
    return settings


LibrarySettings = Annotated[dict[str, JsonValue], AfterValidator(_plain)]
"""What another library's code is given: neither code nor paths."""


class EnvironmentTask(TaskSettings):
    """A kind of task on an environment: episodes of several turns."""

    shows: ClassVar[frozenset[Modality]] = frozenset()
    """What its observations have besides text."""

    max_turns: int = Field(8, ge=1, le=MAX_TURNS)
    """Turns of the policy after which an episode is over."""

    @abstractmethod
    def environments(self, context: Context) -> Callable[[], Environment]:
        """Makes the task's environments, one per episode. Raises `TaskError`."""

    def build(self, context: Context) -> EnvironmentSource:
        """See `TaskSettings`."""
        return EnvironmentSource(self, self.environments(context), context.counts, self.library)

    @property
    def media(self) -> frozenset[Modality]:
        """See `TaskSettings`."""
        return self.shows

    @property
    def options(self) -> dict[str, JsonValue]:
        """All that decides how an episode goes and is rewarded: members of a run must agree on it.

        Rewards are left out if there are none, as before there could be any. Code is not named by its
        location, which differs between members.
        """
        left_out = {"kind", "name", "weight", self.code_field, *(() if self.rewards else ("rewards",))}
        return self.model_dump(mode="json", exclude=left_out)


class EnvironmentSource:
    """Starts of episodes, made and found again by reference, as `TaskSource` does with questions."""

    def __init__(
        self, config: EnvironmentTask, make: Callable[[], Environment], counts: Failures, library: str = ""
    ) -> None:
        """`make` returns an environment with the options of `config`; `counts` gets its failures.

        `library` names foreign code that runs the episodes, and its version: members need the same.
        """
        self.name = config.name
        self._kind = config.label
        self._max_turns = config.max_turns
        options = digest(config.label, config.options)
        self._options_digest = with_code(options, digest("library", library)) if library else options
        self._make = make
        self._counts = counts
        self._questions: LruCache[tuple[int, int], Question] = LruCache(NUM_WITH_MEDIA if config.shows else REMEMBERED)

    @property
    def num_held_out(self) -> int | None:
        """None: episodes start without end."""
        return None

    def question(self, seed: int, index: int) -> Question:
        """The start of episode `index` of the stream `seed`. Raises `TaskError` when the environment fails."""
        if known := self._questions.get((seed, index)):
            return known
        _, start = self._reset(seed, index)
        prompt = as_prompt(start)
        ref = EpisodeRef(
            task=self.name,
            environment=self._kind,
            options_digest=self._options_digest,
            seed=seed,
            index=index,
            question_hash=question_hash(prompt),
            media=media_digest(media_of(prompt)),
        )
        question = Question(ref, prompt, self._max_turns)
        self._questions.put((seed, index), question)
        return question

    def recall(self, ref: TaskRef) -> Question:
        """The start behind a reference.

        Raises `Refusal`: `unknown_task`, `options_differ`, `other_task`, or `question_mismatch` or `media_mismatch`
        when the environment here begins with something else.
        """
        if not isinstance(ref, EpisodeRef) or (ref.task, ref.environment) != (self.name, self._kind):
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} as asked is not the task {self.name!r} of {self._kind}")
        check_options(ref, self._options_digest)
        return regenerate(self.question, ref, f"{ref.task}: the episode begins with another text here")

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether it is of a held-out stream. See `TaskSource`."""
        return isinstance(ref, EpisodeRef) and ref.seed >= HELD_OUT_STREAMS

    def begin(self, ref: TaskRef) -> Episode:
        """The episode behind a reference that `recall` accepts. Raises `Refusal`."""
        assert isinstance(ref, EpisodeRef)
        try:
            environment, _ = self._reset(ref.seed, ref.index)
        except TaskError as error:
            raise Refusal(Reason.QUESTION_MISMATCH, str(error)) from error
        return _Guarded(environment, self.name, self._counts)

    def _reset(self, seed: int, index: int) -> tuple[Environment, Observation]:
        try:
            environment = self._make()
            return environment, environment.reset(seed, index)
        except Exception as error:  # an environment may be anybody's code
            raise TaskError(f"{self.name} cannot start episode {index} of stream {seed}: {error!r}") from error


class _Guarded:
    """An environment whose failures end the episode without a further reward: a scorer's failure means a wrong answer,
    too."""

    def __init__(self, environment: Environment, name: str, counts: Failures) -> None:
        self._environment = environment
        self._name = name
        self._counts = counts

    def step(self, action: str) -> Observation | Terminal:
        """The environment's answer. See `Episode`."""
        try:
            answer = self._environment.step(action)
            parts = (answer,) if isinstance(answer, Terminal) else answer
            rewards = [part for part in parts if isinstance(part, StepReward | Terminal)]
            if any(not 0 <= each.reward <= 1 for each in rewards):
                raise ValueError(f"a turn adds a reward in [0, 1], got {rewards}")
            return answer
        except Exception as error:  # an environment may be anybody's code, and reads foreign text
            self._counts.note("environment_failures", self._name, f"its environment raised {error!r}")
            return Terminal(0.0)
