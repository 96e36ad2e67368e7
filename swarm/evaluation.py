"""Accuracy on held-out questions."""

from __future__ import annotations

from msgspec import Struct

from swarm.protocols import RolloutEngine, Verifier
from swarm.types import Rejection, Sampling

CORRECT = 0.99
"""Least reward that counts as a correct answer, also for tasks with partial credit."""


class Evaluation(Struct, frozen=True):
    """(correct, asked) by task, without questions that could not be graded."""

    tasks: dict[str, tuple[int, int]]

    @property
    def num_correct(self) -> int:
        """Correct answers over all tasks."""
        return sum(correct for correct, _ in self.tasks.values())

    @property
    def num_questions(self) -> int:
        """Questions asked and graded over all tasks."""
        return sum(asked for _, asked in self.tasks.values())

    @property
    def accuracy(self) -> float | None:
        """Fraction of all questions answered correctly; None when there were none."""
        return self.num_correct / self.num_questions if self.num_questions else None


def evaluate(
    engine: RolloutEngine, verifier: Verifier, sampling: Sampling, num_questions: int, seed: int
) -> Evaluation:
    """Ask the first `num_questions` of the held-out stream `seed` once each.

    Questions and samples depend on `seed` alone, so that evaluations do not change training.
    """
    questions = verifier.draw(seed, 0, num_questions)
    answers = engine.generate([question.prompt for question in questions], 1, sampling, seed)
    jobs = [
        (question.ref, [] if isinstance(answer, Rejection) else [completion.text for completion in answer])
        for question, answer in zip(questions, answers, strict=True)
    ]
    counts: dict[str, tuple[int, int]] = {}
    for question, verdict in zip(questions, verifier.grade(jobs), strict=True):
        if isinstance(verdict, Rejection):
            continue
        correct, asked = counts.get(question.ref.task, (0, 0))
        # A prompt that leaves no room for a completion counts as a wrong answer.
        counts[question.ref.task] = (correct + any(reward >= CORRECT for reward in verdict.rewards), asked + 1)
    return Evaluation(dict(sorted(counts.items())))
