"""A verifier whose questions are rows, and an engine whose answers say which question and completion they are."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future

from swarm.reasons import Reason
from swarm.types import Answers, Completion, DatasetRef, Grade, Question, Rejection, Sampling, TaskRef


class Rows:
    """Tasks with so many rows; row 3 cannot be graded. Completion j of row r is right if j < r."""

    def __init__(self, **sizes: int | None) -> None:
        self.sizes = sizes
        self.drawn: list[tuple[str, int]] = []
        self.closed = False

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        self.drawn += [(task, index) for index in range(start, start + count)]
        return [self._question(task, index) for index in range(start, start + count)]

    def num_held_out(self, task: str) -> int | None:
        return self.sizes[task]

    def begin_grading(self, ref: TaskRef, texts: Sequence[str]) -> Future[Grade | Rejection]:
        graded: Future[Grade | Rejection] = Future()
        graded.set_result(self._grade(ref, texts))
        return graded

    def close(self) -> None:
        self.closed = True

    def _question(self, task: str, index: int) -> Question:
        # Row 1 is malformed: row 2 stands in for it, and has its own turn as well.
        row = 2 if index == 1 else index
        return Question(DatasetRef(task, "local", "", "", row, ""), f"{task} {row}")

    def _grade(self, ref: TaskRef, texts: Sequence[str]) -> Grade | Rejection:
        assert isinstance(ref, DatasetRef)
        if ref.row == 3:
            return Rejection(Reason.VERIFIER_TIMEOUT)
        return Grade("", tuple(float(int(text) < ref.row) for text in texts))


class Numbering:
    """Completion j is the text j, of j + 1 tokens; there is no room for the prompts in `refused`."""

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        self.refused = refused
        self.calls: list[tuple[tuple[str, ...], int, Sampling, int]] = []

    def generate(self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        self.calls.append((tuple(prompts), num_completions, sampling, seed))
        return [answers for _, answers in self.stream(prompts, num_completions, sampling, seed)]

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
    ) -> Generator[tuple[int, Answers]]:
        for index, prompt in enumerate(prompts):
            if prompt in self.refused:
                yield index, Rejection(Reason.PROMPT_TOO_LONG)
            else:
                yield (
                    index,
                    tuple(
                        Completion(str(j), "length" if j == 0 else "stop", tuple(range(j + 1)))
                        for j in range(num_completions)
                    ),
                )
