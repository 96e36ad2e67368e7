"""Accuracy on held-out questions."""

from __future__ import annotations

from msgspec import Struct

from swarm.groups.episodes import FinishedGroup, by_generate, run_episodes
from swarm.protocols import RolloutEngine, Verifier
from swarm.types import Completion, Rejection, Sample, Sampling, as_text, media_of
from swarm.types.thoughts import parts_of
from swarm.types.thumbnails import thumbnails

CORRECT = 0.99
"""Least reward that counts as a correct answer, also for tasks with partial credit."""


NUM_SAMPLES = 12
"""Kept of an evaluation, so that some of them differ before and after."""
MAX_SAMPLE_CHARS = 400
"""Longest question or completion in a sample."""
MAX_SAMPLE_PICTURES = 2
"""Most pictures of a sample's question."""


class Evaluation(Struct, frozen=True):
    """(correct, asked) by task, without questions that could not be graded."""

    tasks: dict[str, tuple[int, int]]
    samples: tuple[Sample, ...] = ()
    """The first questions with their answers."""

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
    """Ask the first `num_questions` of the held-out stream `seed` once each; an episode counts as a question.

    A small data set has fewer: a row that the stream repeats is asked once. Questions and samples depend on `seed`
    alone, so that evaluations do not change training.
    """
    questions = list({question.ref: question for question in verifier.draw(seed, 0, num_questions)}.values())
    games = dict(run_episodes(by_generate(engine), verifier, questions, 1, sampling, seed))
    counts: dict[str, tuple[int, int]] = {}
    samples: list[Sample] = []
    for index, question in enumerate(questions):
        played = games[index]
        # A prompt that leaves no room for a completion counts as a wrong answer.
        right, text, expected, found = False, "", "", None
        if isinstance(played, FinishedGroup):
            verdict = played.grading.result()
            if isinstance(verdict, Rejection):
                continue
            right = verdict.answers[0] >= CORRECT
            expected, found = verdict.expected, verdict.found[0] if verdict.found else None
            text = " / ".join(map(_spoken, played.completions[0].by_turn()))
        correct, asked = counts.get(question.ref.task, (0, 0))
        counts[question.ref.task] = (correct + right, asked + 1)
        if len(samples) < NUM_SAMPLES:
            seen = thumbnails(media_of(question.prompt), MAX_SAMPLE_PICTURES)
            asked_text = as_text(question.prompt)[:MAX_SAMPLE_CHARS]
            samples.append(Sample(asked_text, text[:MAX_SAMPLE_CHARS], right, seen, expected, found))
    return Evaluation(dict(sorted(counts.items())), tuple(samples))


def _spoken(turn: Completion) -> str:
    """The answer in a turn; all of one whose thought has no end."""
    answer = parts_of(turn.text).answer
    return turn.text if answer is None else answer.strip()
