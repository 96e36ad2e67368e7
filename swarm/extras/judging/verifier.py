"""A verifier whose grades have the rewards of a judge, or of a reward service, as well.

draw, grade ──▶ the other verifier ──▶ task with one? ──no──▶ grade
                                             │ yes
                                             ▼
                                    asked, in its own time ──▶ grade with all named rewards, or why there is none
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from msgspec.structs import replace

from swarm.environments.config import TaskConfig
from swarm.environments.judge import RaterSettings, rated_part
from swarm.environments.rewards import weighted_mean
from swarm.errors import ConfigError
from swarm.extras.judging.prompts import JudgeSheet, RatedSheet
from swarm.extras.judging.reward import HttpReward
from swarm.extras.judging.service import JudgeService
from swarm.protocols import TaskVerifier
from swarm.reasons import Reason
from swarm.types import Actions, Grade, Question, Rejection, TaskRef, as_text, by_turn
from swarm.types.thoughts import answer_of

Verdict = Grade | Rejection


def open_raters(
    verifier: TaskVerifier, tasks: Sequence[TaskConfig], raters: Sequence[RaterSettings]
) -> JudgingVerifier:
    """The verifier with these raters, at least one. Raises `ConfigError` if one cannot be set up; `verifier` stays open
    then."""
    opened: list[JudgeService] = []
    try:
        for settings in raters:
            opened.append(JudgeService(settings))
            opened[-1].wait_until_ready()
    except ConfigError:
        for judge in opened:
            judge.close()
        raise
    for settings, judge in zip(raters, opened, strict=True):
        verifier = JudgingVerifier(verifier, tasks, settings, judge)
    assert isinstance(verifier, JudgingVerifier)
    return verifier


class JudgingVerifier:
    """Implements `TaskVerifier` on top of another, which grades everything but the judge's part."""

    def __init__(
        self, without_rater: TaskVerifier, tasks: Sequence[TaskConfig], settings: RaterSettings, judge: JudgeService
    ) -> None:
        """Takes over `without_rater` and `judge`, which `close` closes."""
        self.without_rater = without_rater
        """Grades without the judge or service."""
        self._judge = judge
        self._skips_strangers = settings.strangers == "skip"
        parts = {config.name: rated_part(config, settings.rater) for config in tasks}
        self._judged = {config.name: (config, parts[config.name]) for config in tasks if parts[config.name] is not None}
        self._lock = threading.Lock()
        self._texts: dict[str, tuple[TaskRef, Sequence[Actions], str]] = {}
        """(reference, texts, sender) of others' groups that `without_rater` is grading, by key; main thread only."""
        self._done: list[tuple[str, Verdict]] = []

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        """Questions `start .. start + count - 1` of stream `seed`: of one task, or of the weighted mixture of all."""
        return self.without_rater.draw(seed, start, count, task)

    def num_held_out(self, task: str) -> int | None:
        """Questions of a task's held-out streams before one repeats; None when there is no end."""
        return self.without_rater.num_held_out(task)

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[Actions]]]) -> list[Verdict]:
        """Grade groups and wait: one result per job, in order."""
        pending = [self.begin_grading(ref, texts) for ref, texts in jobs]
        return [verdict.result() for verdict in pending]

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Verdict]:
        """Grade one of this node's own groups without waiting."""
        grading = self.without_rater.begin_grading(ref, texts)
        if ref.task not in self._judged:
            return grading
        verdict: Future[Verdict] = Future()

        def go_on(graded: Future[Verdict]) -> None:
            try:
                self._add(ref, texts, graded.result(), None, verdict.set_result)
            except Exception as error:  # raised where it is waited for: errors of callbacks are lost
                verdict.set_exception(error)

        grading.add_done_callback(go_on)
        return verdict

    def replay(self, ref: TaskRef, actions: Actions) -> Future[Verdict]:
        """An own episode so far; the judge is asked when it is over, with its group."""
        return self.without_rater.replay(ref, actions)

    def submit(self, key: str, ref: TaskRef, texts: Sequence[Actions], sender: str = "") -> None:
        """Queue another's group for grading; never blocks."""
        if ref.task in self._judged:
            if self._skips_strangers:
                self._finish(key, Rejection(Reason.JUDGE_SKIPPED))
                return
            self._texts[key] = (ref, texts, sender)
        self.without_rater.submit(key, ref, texts, sender)

    def collect(self) -> list[tuple[str, Verdict]]:
        """Results since the last call, by key."""
        for key, verdict in self.without_rater.collect():
            if (kept := self._texts.pop(key, None)) is None:
                self._finish(key, verdict)
            else:
                ref, texts, sender = kept
                self._add(ref, texts, verdict, sender, partial(self._finish, key))
        with self._lock:
            done, self._done = self._done, []
            return done

    def counters(self) -> dict[str, int]:
        """Cumulative counts of both."""
        return {**self.without_rater.counters(), **self._judge.counters()}

    def close(self) -> None:
        """Stop both."""
        self._judge.close()
        self.without_rater.close()

    def _add(
        self,
        ref: TaskRef,
        texts: Sequence[Actions],
        verdict: Verdict,
        sender: str | None,
        finish: Callable[[Verdict], None],
    ) -> None:
        """Add the judge's rewards to a grade. `sender`: None for an own group."""
        if isinstance(verdict, Rejection) or (sender is not None and verdict.held_out):
            finish(verdict)  # a group that is refused costs nothing
            return
        config, part = self._judged[ref.task]
        completions = ["\n\n".join(map(answer_of, by_turn(actions))) for actions in texts]

        def combine(judged: tuple[float, ...] | Rejection) -> None:
            if isinstance(judged, Rejection):
                finish(replace(judged, seconds=verdict.seconds))
                return
            parts = {**verdict.parts, part.name: judged}
            rewards = weighted_mean(config.rewards, parts, len(judged))
            finish(replace(verdict, rewards=rewards, parts=parts))

        question = as_text(verdict.prompt)
        rated = isinstance(part, HttpReward)
        sheet = RatedSheet(part, ref.task, question, completions) if rated else JudgeSheet(part, question, completions)
        self._judge.ask(sheet, combine, sender)

    def _finish(self, key: str, verdict: Verdict) -> None:
        with self._lock:
            self._done.append((key, verdict))
