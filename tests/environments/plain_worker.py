"""Verification workers whose tasks need no library: started in a fifth of the time, for tests of the pool alone."""

from __future__ import annotations

import re
from collections import Counter

import swarm.environments.verification.worker as worker
from swarm.environments.config import TaskConfig
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.verification.messages import Setup
from swarm.types import ProceduralRef, Question, TaskRef

PLAIN = ReasoningGymTask(name="plain")
HANGING = ReasoningGymTask(name="hanging", weight=1e-12)
"""Hardly ever drawn; scoring one of its completions takes for ever and holds the interpreter."""
POISON = ProceduralRef("hanging", "none", "", 0, 0, "")


class PlainSource:
    """Implements `TaskSource`: whoever repeats the question's number is right."""

    num_held_out: int | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    def question(self, seed: int, index: int) -> Question:
        return self.recall(ProceduralRef(self.name, "none", "", seed, index, ""))

    def recall(self, ref: TaskRef) -> Question:
        assert isinstance(ref, ProceduralRef)
        return Question(ref, f"Say {ref.index}.")

    def is_held_out(self, ref: TaskRef) -> bool:
        return False

    def score(self, ref: TaskRef, completion: str) -> float:
        assert isinstance(ref, ProceduralRef)
        if self.name == HANGING.name:
            re.match(r"(a+)+$", "a" * 60 + "!")
        return float(completion == str(ref.index))


def be_plain() -> None:
    """Make this process's worker such a one."""
    worker._import_libraries = lambda configs: None
    worker._source = _source


def _source(setup: Setup, config: TaskConfig, counts: Counter[str]) -> PlainSource:
    return PlainSource(config.name)


if __name__ == "__main__":
    be_plain()
    worker.main()
