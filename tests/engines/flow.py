"""Questions that flow into an engine's call, without a verifier."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from swarm.groups.episodes import FinishedGroup
from swarm.groups.flow import Flow
from swarm.protocols import RolloutEngine
from swarm.types import Actions, Completion, Grade, Prompt, Question, Rejection, Sampling, TaskRef
from tests.example_groups import reference

Results = dict[int, tuple[Completion, ...]]


class Lenient:
    """All answers are right."""

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        graded: Future[Grade | Rejection] = Future()
        graded.set_result(Grade("", (1.0,) * len(texts)))
        return graded


class Flowing:
    """Questions by number, each prompt as often as it takes."""

    def __init__(
        self, engine: RolloutEngine, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, slots: int
    ) -> None:
        self.asked = 0
        self.allowed = len(prompts)
        self._prompts = prompts
        verifier = Lenient()
        self.flow = Flow(engine.stream, verifier, self._more, num_completions, sampling, 3, slots)  # type: ignore[arg-type]

    def results(self) -> Results:
        """Of all that is left."""
        return dict(answered(number, played) for number, played in self.flow.play())

    def _more(self) -> tuple[int, Question] | None:
        if self.asked == self.allowed:
            return None
        self.asked += 1
        return self.asked - 1, Question(reference(self.asked - 1), self._prompts[self.asked - 1])


def answered(number: int, played: FinishedGroup | Rejection) -> tuple[int, tuple[Completion, ...]]:
    assert isinstance(played, FinishedGroup), played
    return number, played.completions


def tokens(results: Results) -> dict[int, list[tuple[int, ...]]]:
    """What does not depend on rounding."""
    return {number: [completion.token_ids for completion in group] for number, group in sorted(results.items())}
