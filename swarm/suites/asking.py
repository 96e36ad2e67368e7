"""Asks the questions of a suite, slice by slice, so that the caller can do other things in between, or stop.

draw ──▶ play k each ──▶ grade ──▶ rewards by question     a slice is as many completions as decode together
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import comb

import numpy as np
from msgspec import Struct

from swarm.groups.episodes import FinishedGroup, by_generate, run_episodes
from swarm.protocols import RolloutEngine, TaskVerifier
from swarm.suites.config import Suite
from swarm.telemetry.intervals import bootstrap_mean, wilson_interval
from swarm.telemetry.records import SuiteScores
from swarm.types import Estimate, Rejection, TaskRef


class _Answered(Struct, frozen=True):
    """A graded question."""

    rewards: tuple[float, ...]
    """[k]"""
    unanswered: bool = False
    num_cut_off: int = 0
    num_tokens: int = 0


class _Part(Struct):
    """One task of a suite, as far as it has been asked."""

    task: str
    num_planned: int
    num_drawn: int = 0
    asked: set[TaskRef] = set()
    answered: list[_Answered] = []
    num_ungraded: int = 0

    @property
    def done(self) -> bool:
        return self.num_drawn == self.num_planned


class SuiteRun:
    """One evaluation of a suite. A verifier of the suite's tasks asks nothing else."""

    def __init__(
        self, suite: Suite, engine: RolloutEngine, verifier: TaskVerifier, stream: int, slice_sequences: int
    ) -> None:
        """`stream`: the seed of held-out questions; `slice_sequences`: completions of a slice, at least one question's.

        Raises `TaskError` when the tasks cannot be set up.
        """
        self._suite = suite
        self._engine = engine
        self._verifier = verifier
        self._stream = stream
        self._slice_questions = max(1, slice_sequences // suite.k)
        self._parts = [_Part(task.name, self._num_questions(task.name)) for task in suite.tasks]

    @property
    def num_questions(self) -> int:
        """Questions to ask."""
        return sum(part.num_planned for part in self._parts)

    @property
    def num_drawn(self) -> int:
        """Questions drawn so far."""
        return sum(part.num_drawn for part in self._parts)

    @property
    def done(self) -> bool:
        """Whether all questions have been asked."""
        return all(part.done for part in self._parts)

    def step(self) -> None:
        """Ask the next slice; nothing of a slice that fails is counted. Raises what engine and verifier raise."""
        part = next(part for part in self._parts if not part.done)
        start, count = part.num_drawn, min(self._slice_questions, part.num_planned - part.num_drawn)
        # A malformed row is replaced by another one, which has its own turn as well: every row counts once.
        drawn = {question.ref: question for question in self._verifier.draw(self._stream, start, count, part.task)}
        questions = [question for ref, question in drawn.items() if ref not in part.asked]
        if questions:
            seed = self._seed(part.task, start)
            stream = by_generate(self._engine)
            games = dict(run_episodes(stream, self._verifier, questions, self._suite.k, self._suite.sampling, seed))
            for index in range(len(questions)):
                self._count(part, games[index])
        part.asked.update(drawn)
        part.num_drawn += count

    def scores(self) -> SuiteScores:
        """The suite's figures over all questions graded so far, whatever their task."""
        return self._scores(self._parts)

    def scores_by_task(self) -> dict[str, SuiteScores]:
        """The same for each task."""
        return {part.task: self._scores([part]) for part in self._parts}

    def _num_questions(self, task: str) -> int:
        limits = (self._suite.questions, self._verifier.num_held_out(task))
        return min(limit for limit in limits if limit is not None)

    def _seed(self, task: str, start: int) -> int:
        name = int.from_bytes(hashlib.blake2b(task.encode(), digest_size=8).digest(), "big")
        return int(np.random.SeedSequence([self._stream, name, start]).generate_state(1)[0])

    def _count(self, part: _Part, played: FinishedGroup | Rejection) -> None:
        if isinstance(played, Rejection):  # no room for a completion counts as wrong
            part.answered.append(_Answered((0.0,) * self._suite.k, unanswered=True))
            return
        verdict = played.grading.result()
        if isinstance(verdict, Rejection):
            part.num_ungraded += 1
            return
        cut_off = sum(completion.finish_reason == "length" for completion in played.completions)
        num_tokens = sum(len(completion.token_ids) for completion in played.completions)
        part.answered.append(_Answered(verdict.answers, False, cut_off, num_tokens))

    def _scores(self, parts: Sequence[_Part]) -> SuiteScores:
        answered = [each for part in parts for each in part.answered]
        return SuiteScores(
            num_questions=len(answered),
            num_ungraded=sum(part.num_ungraded for part in parts),
            num_unanswered=sum(each.unanswered for each in answered),
            num_cut_off=sum(each.num_cut_off for each in answered),
            num_tokens=sum(each.num_tokens for each in answered),
            figures=suite_figures([each.rewards for each in answered], self._suite.k, self._suite.pass_from),
        )


def pass_at(k: int, num_samples: int, num_correct: int) -> float:
    """The probability that at least one of k completions is right, estimated without bias from n samples of which c
    are right: 1 - C(n - c, k) / C(n, k).

    Raises `ValueError` unless 1 <= k <= n and 0 <= c <= n. Source: arXiv:2107.03374, eq. 1.
    """
    if not (1 <= k <= num_samples and 0 <= num_correct <= num_samples):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got k {k}, n {num_samples}, c {num_correct}")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def ks(k: int) -> list[int]:
    """The powers of two below `k`, and `k`: where pass@k is given."""
    return [*(2**power for power in range(k.bit_length()) if 2**power < k), k]


def mean_over_questions(values: Sequence[float]) -> Estimate | None:
    """The mean of one value in [0, 1] for each question, [Q]; None without questions.

    Its 95% interval is Wilson's where every value is 0 or 1, otherwise a bootstrap over the questions: completions of
    one question are not independent. A single question that is neither right nor wrong leaves everything open.
    """
    if not values:
        return None
    mean = sum(values) / len(values)
    if all(value in (0.0, 1.0) for value in values):
        interval = wilson_interval(round(sum(values)), len(values))
    else:
        interval = bootstrap_mean(values) or (0.0, 1.0)
    return Estimate(mean, *interval)


def suite_figures(rewards: Sequence[Sequence[float]], k: int, pass_from: float) -> dict[str, Estimate]:
    """avg@k, and pass@j for each j of `ks`, by name; from rewards [Q, k] in [0, 1]. Empty without questions.

    avg@k is the mean reward, which is the accuracy unless tasks give partial credit; pass@j counts rewards of
    at least `pass_from`.
    """
    right = [sum(reward >= pass_from for reward in each) for each in rewards]
    found = {f"avg@{k}": mean_over_questions([sum(each) / k for each in rewards])}
    for j in ks(k):
        found[f"pass@{j}"] = mean_over_questions([pass_at(j, k, num_right) for num_right in right])
    return {name: estimate for name, estimate in found.items() if estimate is not None}
