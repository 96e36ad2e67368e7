"""A task of one's own, in Python: `examples/own_task.py` is one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random

from swarm.settings import Settings
from swarm.types.media import Media

RewardFunction = Callable[[str, str, str], float]
"""(question, completion, reference) -> reward in [0, 1]."""

Asked = str | Sequence[str | Media]
"""A question: a text, or texts, pictures, sounds and clips in their order."""


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

        `question` is its text, with the sizes of pictures, sounds and clips in their places. The completion is foreign
        text: it must not be evaluated, imported or used as a path.
        """
