from __future__ import annotations

import pytest

from swarm.environments.verification.inline import InlineVerifier
from swarm.evaluation import MAX_SAMPLE_CHARS, Evaluation, evaluate
from swarm.extras.pictures.sees import TINY_SEES_TASK
from swarm.telemetry.intervals import wilson_interval
from swarm.types import HELD_OUT_STREAMS, Question, Sampling, media_of
from swarm.types.thumbnails import thumbnails
from tests.sapo.test_round import FakeEngine, FakeVerifier


def test_wilson_interval_against_published_values() -> None:
    # Newcombe 1998, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for correct, asked, expected in [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ]:
        assert wilson_interval(correct, asked) == pytest.approx(expected, abs=5e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_accuracy_counts_graded_questions_only() -> None:
    engine, verifier = FakeEngine(), FakeVerifier(refused=frozenset({3}))
    result = evaluate(engine, verifier, Sampling(), 6, seed=0)
    assert result.tasks == {"gcd": (2, 5)}, "odd questions are answered well; number 3 could not be graded"
    assert result.accuracy == pytest.approx(0.4)
    assert Evaluation({}).accuracy is None


def test_a_row_that_a_small_data_set_repeats_is_asked_once() -> None:
    class Small(FakeVerifier):
        def draw(self, seed: int, start: int, count: int) -> list[Question]:
            return [super(Small, self).draw(seed, index % 2, 1)[0] for index in range(start, start + count)]

    assert evaluate(FakeEngine(), Small(), Sampling(), 256, seed=0).tasks == {"gcd": (1, 2)}


def test_the_first_graded_questions_are_kept_with_their_answers_shortened() -> None:
    engine, verifier = FakeEngine(good="good" * 10_000), FakeVerifier(refused=frozenset({1}))
    samples = evaluate(engine, verifier, Sampling(), 6, seed=0).samples
    assert [sample.correct for sample in samples[:3]] == [False, False, True], "questions 0, 2 and 3"
    assert samples[2].completion == ("good" * 10_000)[:MAX_SAMPLE_CHARS] and samples[0].completion == "bad"
    assert len({sample.question for sample in samples}) == len(samples) == 5


def test_a_question_is_kept_with_its_picture() -> None:
    verifier = InlineVerifier((TINY_SEES_TASK,))
    (sample,) = evaluate(FakeEngine(), verifier, Sampling(), 1, HELD_OUT_STREAMS).samples
    (question,) = verifier.draw(HELD_OUT_STREAMS, 0, 1)
    assert sample.pictures == thumbnails(media_of(question.prompt), 1) != ()
    assert sample.question.startswith("[image 32 x 32]\n")
