"""Own groups beside grading and beside updates: what happens at the same time, in which order, and what is lost."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from swarm.errors import EngineError, Interrupted
from swarm.reasons import Reason
from swarm.sapo.rollouts import GradedBatch, Rollouts
from swarm.sapo.round import SapoNode
from swarm.stopwatch import Stopwatch
from swarm.types import (
    Answers,
    Completion,
    Grade,
    GradedGroup,
    Question,
    Rejection,
    RolloutGroup,
    Sampling,
    TaskRef,
    UpdateReport,
    VersionSpan,
)
from tests.example_groups import rollout_group
from tests.sapo.test_round import FakeEngine, FakeUpdater, FakeVerifier, Swarm

PATIENCE_S = 60.0
"""Waited for only by a test that is about to fail."""


class RecordingVerifier(FakeVerifier):
    """Remembers where each batch began."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[int] = []

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        self.starts.append(start)
        return super().draw(seed, start, count)


class Versioned(FakeEngine):
    """Says which policy version sampled: the updater's at the time each batch is begun."""

    def __init__(self, updater: FakeUpdater) -> None:
        super().__init__()
        self.updater = updater

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
    ) -> Generator[tuple[int, Answers]]:
        version = self.updater.version
        for index, answers in super().stream(prompts, num_completions, sampling, seed):
            assert not isinstance(answers, Rejection)
            yield (
                index,
                tuple(Completion(c.text, "stop", c.token_ids, c.logprobs, (VersionSpan(version, 1),)) for c in answers),
            )


@contextmanager
def running(**parts: object) -> Iterator[SapoNode]:
    node = Swarm().node(1, **parts)
    try:
        yield node
    finally:
        node.close()


def first_batch(engine: FakeEngine, verifier: FakeVerifier) -> GradedBatch:
    """Of six questions, at version 7."""

    def make(
        question: TaskRef, completions: Sequence[Completion], rewards: Sequence[float], version: int
    ) -> RolloutGroup:
        group = rollout_group(question=question, completions=tuple(completions), rewards=tuple(rewards))
        return replace(group, policy=replace(group.policy, version=version))

    return Rollouts(engine, verifier, make, lambda: 7, 1, 6, 4, Sampling(), 0).take(0, Stopwatch())


def test_a_group_is_graded_before_the_next_one_is_finished() -> None:
    graded = threading.Event()

    class Beside(FakeVerifier):
        def begin(self, ref: TaskRef, texts: Sequence[str]) -> Future[Grade | Rejection]:
            verdict: Future[Grade | Rejection] = Future()

            def work() -> None:
                verdict.set_result(self.grade([(ref, texts)])[0])
                graded.set()

            threading.Thread(target=work).start()
            return verdict

    class Waiting(FakeEngine):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            for index, answers in super().stream(prompts, num_completions, sampling, seed):
                yield index, answers
                assert graded.wait(PATIENCE_S), "grading waits for the end of generation"
                graded.clear()

    batch = first_batch(Waiting(), Beside())
    assert [graded.rewards[0] for graded in batch.groups] == [0.0, 1.0] * 3


def test_groups_keep_the_order_of_their_questions_and_what_failed_is_counted() -> None:
    class Backwards(FakeEngine):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            for index, answers in reversed(list(super().stream(prompts, num_completions, sampling, seed))):
                yield index, Rejection(Reason.PROMPT_TOO_LONG) if index == 3 else answers

    verifier = FakeVerifier(refused=frozenset({1001}))
    batch = first_batch(Backwards(), verifier)
    assert [graded.group.question.index for graded in batch.groups] == [1000, 1002, 1004, 1005]
    assert [graded.group.policy.version for graded in batch.groups] == [7] * 4
    assert batch.failed == {"prompt_too_long": 1, "verifier_timeout": 1} and batch.problem == ""


def test_why_no_question_of_a_batch_has_a_group_is_said() -> None:
    class Short(FakeEngine):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            for index, _ in super().stream(prompts, num_completions, sampling, seed):
                yield index, Rejection(Reason.PROMPT_TOO_LONG, "it has 30 tokens, the model 24 positions")

    batch = first_batch(Short(), FakeVerifier())
    assert not batch.groups and batch.failed == {"prompt_too_long": 6}
    assert batch.problem.startswith("prompt_too_long: it has 30 tokens, the model 24 positions; ask shorter questions")


def test_the_next_groups_are_generated_while_an_update_runs() -> None:
    class Impatient(FakeUpdater):
        def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
            assert begun.wait(PATIENCE_S), "generation waits for the end of the update"
            begun.clear()
            return super().update(local, external)

    class Announcing(Versioned):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            if self.seeds:
                begun.set()
            yield from super().stream(prompts, num_completions, sampling, seed)

    begun = threading.Event()
    updater = Impatient()
    with running(engine=Announcing(updater), updater=updater, max_staleness=1) as node:
        for _ in range(5):
            report = node.run_round()
        assert "wait" in report.timings and "generate" not in report.timings
    lags = [
        version - group.group.policy.version for version, (local, _) in enumerate(updater.batches) for group in local
    ]
    assert max(lags) == 1 and len(lags) == 10


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_no_batch_is_begun_too_early_and_none_is_too_old(max_staleness: int) -> None:
    class Counting(Versioned):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            begun.append(node.round)
            yield from super().stream(prompts, num_completions, sampling, seed)

    begun: list[int] = []
    updater = FakeUpdater()
    with running(engine=Counting(updater), updater=updater, max_staleness=max_staleness) as node:
        for _ in range(8):
            node.run_round()
    assert all(finished >= batch - max_staleness for batch, finished in enumerate(begun))
    assert "stale" not in node.ledger.snapshot()["local"]
    for version, (local, _) in enumerate(updater.batches):
        assert all(version - group.group.policy.version <= max_staleness for group in local)


def test_a_rest_gives_up_batches_that_have_not_begun_and_no_question_is_lost() -> None:
    class Held(Versioned):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            begun.append(seed)
            assert len(begun) == 1 or free.wait(PATIENCE_S)
            yield from super().stream(prompts, num_completions, sampling, seed)

    begun: list[int] = []
    free = threading.Event()
    updater, verifier = FakeUpdater(), RecordingVerifier()
    with running(engine=Held(updater), updater=updater, verifier=verifier, max_staleness=3) as node:
        node.run_round()
        node.rest()
        assert len(node._rollouts._ahead) <= 1, "what has begun is finished"
        free.set()
        for _ in range(4):
            node.run_round()
        assert verifier.starts[:5] == [0, 6, 12, 18, 24]


def test_groups_beyond_the_bound_are_counted_and_never_trained_on() -> None:
    class Jumping(FakeUpdater):
        """As a node that installs another's weights: several versions at once."""

        def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
            report = super().update(local, external)
            self.version += 4
            return report

    class Fixed(Versioned):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            self.updater = FakeUpdater()  # weights that never change
            yield from super().stream(prompts, num_completions, sampling, seed)

    updater = Jumping()
    with running(engine=Fixed(updater), updater=updater, max_staleness=2) as node:
        first, second = node.run_round(), node.run_round()
    assert (len(first.mix.local), len(second.mix.local)) == (2, 0)
    counts = node.ledger.snapshot()
    assert counts["local"]["stale"] == 6
    assert counts["generated"] == counts["used_local"] + sum(counts["local"].values())


def test_after_a_restart_questions_are_neither_skipped_nor_repeated() -> None:
    first, again = RecordingVerifier(), RecordingVerifier()
    with running(verifier=first, max_staleness=2) as node:
        for _ in range(3):
            node.run_round()
        position = node.position
    assert position == 18
    with running(verifier=again, max_staleness=2) as resumed:
        resumed.round, resumed.position = 3, position
        resumed.run_round()
    assert again.starts[0] == 18
    assert first.starts == sorted(set(first.starts)), "each once"


@pytest.mark.parametrize("error", [EngineError, Interrupted])
def test_an_error_of_the_thread_ends_the_round_that_needs_its_batch(error: type[Exception]) -> None:
    class Failing(FakeEngine):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            if len(self.seeds) == 2:
                raise error("the third batch")
            yield from super().stream(prompts, num_completions, sampling, seed)

    with running(engine=Failing(), max_staleness=1) as node:
        node.run_round()
        node.run_round()
        with pytest.raises(error, match="the third batch"):
            node.run_round()
        assert (node.round, node.position) == (2, 12)


def test_a_round_goes_on_with_what_is_finished_when_its_time_is_over() -> None:
    ended: list[int] = []

    class Endless(FakeEngine):
        def stream(
            self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
        ) -> Generator[tuple[int, Answers]]:
            try:
                for index, answers in super().stream(prompts, num_completions, sampling, seed):
                    yield index, Rejection(Reason.PROMPT_TOO_LONG) if index < 3 else answers
            finally:
                ended.append(len(prompts))

    swarm, updater = Swarm(), FakeUpdater()
    swarm.node(2).run_round()
    node = swarm.node(1, engine=Endless(), updater=updater, max_generation_s=0.0)
    report = node.run_round()
    assert ended == [6] and report.num_unasked == 2, "questions without an answer are not enough"
    assert (len(report.mix.local), len(report.mix.external)) == (1, 1), "of two and two"
    assert node.ledger.snapshot()["local"] == {"prompt_too_long": 3}
    assert node.position == 6, "the stream goes on as in a whole round"
