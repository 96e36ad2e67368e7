"""An environment as a task of a run: its episodes by reference."""

from __future__ import annotations

from collections.abc import Callable

from swarm.environments.config import EnvironmentTask
from swarm.environments.digests import digest, question_hash
from swarm.errors import Refusal
from swarm.protocols import Environment, Episode
from swarm.reasons import Reason
from swarm.types import EpisodeRef, Question, TaskRef, observation_text


class EnvironmentSource:
    """Starts of episodes, made and found again by reference, as `TaskSource` does with questions."""

    def __init__(self, config: EnvironmentTask, make: Callable[[], Environment]) -> None:
        """`make` returns an environment with the options of `config`."""
        self.name = config.name
        self._kind = config.kind
        self._max_turns = config.max_turns
        self._options_digest = digest(config.kind, config.options)
        self._make = make

    @property
    def num_held_out(self) -> int | None:
        """None: episodes start without end."""
        return None

    def question(self, seed: int, index: int) -> Question:
        """The start of episode `index` of the stream `seed`."""
        prompt = observation_text(self._make().reset(seed, index))
        ref = EpisodeRef(
            task=self.name,
            environment=self._kind,
            options_digest=self._options_digest,
            seed=seed,
            index=index,
            question_hash=question_hash(prompt),
        )
        return Question(ref, prompt, self._max_turns)

    def recall(self, ref: TaskRef) -> Question:
        """The start behind a reference.

        Raises `Refusal`: `unknown_task`, `options_differ`, or `question_mismatch` when the environment here begins with
        another text.
        """
        if not isinstance(ref, EpisodeRef) or (ref.task, ref.environment) != (self.name, self._kind):
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} as asked is not the task {self.name!r} of {self._kind}")
        if ref.options_digest != self._options_digest:
            raise Refusal(Reason.OPTIONS_DIFFER, f"{ref.task}: {ref.options_digest}, here {self._options_digest}")
        question = self.question(ref.seed, ref.index)
        if question.ref != ref:
            raise Refusal(Reason.QUESTION_MISMATCH, f"{ref.task}: the episode begins with another text here")
        return question

    def begin(self, ref: TaskRef) -> Episode:
        """The episode behind a reference that `recall` accepts."""
        assert isinstance(ref, EpisodeRef)
        environment = self._make()
        environment.reset(ref.seed, ref.index)
        return environment
