"""A suite asks every question once, slice by slice, and counts what it could not."""

from __future__ import annotations

import pytest

from swarm.environments.sources.dataset import DatasetTask
from swarm.errors import Interrupted
from swarm.suites.asking import SuiteRun
from swarm.suites.config import Suite
from swarm.types import Sampling

from .doubles import Numbering, Rows

GREEDY = Sampling(top_k=1)


def _suite(*names: str, questions: int | None = None, k: int = 2) -> Suite:
    tasks = tuple(DatasetTask(kind="dataset", name=name, path="rows.jsonl") for name in names)
    return Suite("rows", tasks, questions, k, 0.99, None, GREEDY)


def _all(run: SuiteRun) -> SuiteRun:
    while not run.done:
        run.step()
    return run


def test_a_whole_split_asks_each_row_once_and_says_what_it_left_out() -> None:
    engine, verifier = Numbering(refused=frozenset({"sums 4"})), Rows(sums=6)
    run = _all(SuiteRun(_suite("sums"), engine, verifier, 7, slice_sequences=4))
    assert verifier.drawn == [("sums", index) for index in range(6)]
    asked = [prompt for prompts, *_ in engine.calls for prompt in prompts]
    assert asked == ["sums 0", "sums 2", "sums 3", "sums 4", "sums 5"], "two of a slice of four completions each"
    assert {(k, sampling) for _, k, sampling, _ in engine.calls} == {(2, GREEDY)}
    assert len({seed for *_, seed in engine.calls}) == len(engine.calls), "slices sample differently"
    scores = run.scores()
    assert (scores.num_questions, scores.num_ungraded, scores.num_unanswered) == (4, 1, 1)
    assert (scores.num_cut_off, scores.num_tokens) == (3, 9)
    # Rows 0, 2 and 5 have 0, 2 and 2 of 2 right; row 4 got no answer.
    assert scores.figures["avg@2"].value == scores.figures["pass@2"].value == 0.5


def test_tasks_count_by_their_questions_and_have_figures_of_their_own() -> None:
    run = _all(SuiteRun(_suite("a", "b", questions=3), Numbering(), Rows(a=1, b=None), 7, slice_sequences=64))
    assert run.num_questions == 1 + 3, "no more than there are"
    by_task = run.scores_by_task()
    assert by_task["a"].figures["avg@2"].value == 0.0, "row 0"
    assert by_task["b"].figures["avg@2"].value == 0.5, "rows 0 and 2: row 1 is malformed"
    assert run.scores().figures["avg@2"].value == pytest.approx(1 / 3)
    assert run.scores().num_questions == 3


def test_the_same_stream_asks_and_samples_the_same_again() -> None:
    calls = []
    for stream in (7, 7, 8):
        engine = Numbering()
        _all(SuiteRun(_suite("a", questions=3), engine, Rows(a=9), stream, slice_sequences=2))
        calls.append(engine.calls)
    assert calls[0] == calls[1] != calls[2]


def test_an_interrupted_slice_counts_nothing() -> None:
    class Stopping(Numbering):
        def generate(self, *arguments: object) -> list:
            if self.calls:
                raise Interrupted("generation was cancelled")
            return super().generate(*arguments)

    run = SuiteRun(_suite("a"), Stopping(), Rows(a=9), 7, slice_sequences=6)
    run.step()
    before = run.scores()
    with pytest.raises(Interrupted):
        run.step()
    assert run.scores() == before and run.num_drawn == 3 and not run.done
