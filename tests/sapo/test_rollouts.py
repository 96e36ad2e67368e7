"""Own groups beside grading and beside updates: what happens at the same time, in which order, and what is lost."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import groupby
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from swarm.errors import EngineError, Interrupted
from swarm.groups.building import Member
from swarm.protocols import Turns
from swarm.reasons import Reason
from swarm.sapo.rollouts import GradedBatch, RolloutPlan, Rollouts
from swarm.sapo.round import SapoNode
from swarm.stopwatch import Stopwatch
from swarm.types import (
    Answers,
    Completion,
    Grade,
    GradedGroup,
    PolicyId,
    Question,
    Rejection,
    RolloutGroup,
    Sampling,
    TaskRef,
    UpdateReport,
    VersionSpan,
)
from tests.example_groups import rollout_group
from tests.sapo.test_round import GROUP_SIZE, FakeEngine, FakeUpdater, FakeVerifier, Swarm

QUESTIONS = 6
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


class Flowing(FakeEngine):
    """As the one it is based on, by turns; each token says which version the updater had when it was asked for."""

    def __init__(self, updater: FakeUpdater) -> None:
        super().__init__()
        self.updater = updater

    def asked(self, batches: Collection[int]) -> None:
        """What a test does when it is asked for turns of these batches, before it answers."""

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int, turns: Turns | None = None
    ) -> Generator[tuple[int, Answers]]:
        assert turns is not None and not prompts
        while taken := turns.next_turns(wait=True):
            version = self.updater.version
            for batch, same in groupby(taken, lambda turn: turn.episode // (QUESTIONS * GROUP_SIZE)):
                self.asked([batch])
                for turn in same:
                    question, k = divmod(turn.episode, GROUP_SIZE)
                    good = question % 2 and k == 0
                    spans = (VersionSpan(version, 1),)
                    yield turn.episode, (Completion(self.good if good else self.bad, "stop", (4,), (-1.0,), spans),)


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

    plan, me = RolloutPlan(num_questions=6, group_size=4), Member("me", PolicyId("fake", "", 0), Sampling(), seed=1)
    policy, own = SimpleNamespace(version=7), SimpleNamespace(make=make)
    return Rollouts(plan, me, engine, verifier, policy, own).take_batch(0, Stopwatch())


def test_a_group_is_graded_before_the_next_one_is_finished() -> None:
    graded = threading.Event()

    class Beside(FakeVerifier):
        def begin_grading(self, ref: TaskRef, texts: Sequence[str]) -> Future[Grade | Rejection]:
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
            assert engine.begun[self.version + 1].wait(PATIENCE_S), "generation waits for the end of the update"
            return super().update(local, external)

    class Announcing(Flowing):
        begun: defaultdict[int, threading.Event]

        def asked(self, batches: Collection[int]) -> None:
            for batch in batches:
                self.begun[batch].set()

    updater = Impatient()
    engine = Announcing(updater)
    engine.begun = defaultdict(threading.Event)
    with running(engine=engine, updater=updater, max_staleness=1) as node:
        for _ in range(5):
            report = node.run_round()
        assert "wait" in report.timings and "generate" not in report.timings
    lags = [
        version - group.group.policy.version for version, (local, _) in enumerate(updater.batches) for group in local
    ]
    assert max(lags) == 1 and len(lags) == 10


@pytest.mark.parametrize("max_staleness", [1, 3])
def test_no_batch_is_begun_too_early_and_none_is_too_old(max_staleness: int) -> None:
    class Counting(Flowing):
        def asked(self, batches: Collection[int]) -> None:
            begun.extend((batch, self.updater.version) for batch in batches)

    begun: list[tuple[int, int]] = []
    updater = FakeUpdater()
    with running(engine=Counting(updater), updater=updater, max_staleness=max_staleness) as node:
        for _ in range(8):
            node.run_round()
    assert {batch for batch, _ in begun} >= set(range(8))
    assert all(version >= batch - max_staleness for batch, version in begun)
    assert "stale" not in node.ledger.snapshot()["local"]
    for version, (local, _) in enumerate(updater.batches):
        assert all(version - group.group.policy.version <= max_staleness for group in local)


def test_a_rest_begins_nothing_and_what_is_begun_is_asked_again_where_it_was() -> None:
    class Held(Flowing):
        def asked(self, batches: Collection[int]) -> None:
            begun.update(batches)
            if 0 not in batches:
                holds.set()
                assert free.wait(PATIENCE_S)

    begun: set[int] = set()
    holds, free = threading.Event(), threading.Event()
    updater, verifier = FakeUpdater(), RecordingVerifier()
    with running(engine=Held(updater), updater=updater, verifier=verifier, max_staleness=3) as node:
        node.run_round()
        assert holds.wait(PATIENCE_S)
        node.pause()
        free.set()
        node._rollouts._ahead._thread.submit(lambda: None).result(PATIENCE_S)  # the thread has nothing left to do
        assert begun == {0, 1} and verifier.starts == [0, 6]
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

    updater = Jumping()
    weights_that_never_change = FakeUpdater()
    with running(engine=Flowing(weights_that_never_change), updater=updater, max_staleness=2) as node:
        first, second = node.run_round(), node.run_round()
    assert (len(first.mix.local), len(second.mix.local)) == (2, 0)
    counts = node.ledger.snapshot()
    assert counts["local"]["stale"] == 6
    assert counts["generated"] == counts["used_local"] + sum(counts["local"].values())


def test_after_a_restart_questions_are_neither_skipped_nor_repeated_and_sampled_as_before() -> None:
    class Naming(Flowing):
        def __init__(self) -> None:
            super().__init__(FakeUpdater())
            self.names: list[tuple[int, int]] = []

        def stream(
            self,
            prompts: Sequence[str],
            num_completions: int,
            sampling: Sampling,
            seed: int,
            turns: Turns | None = None,
        ) -> Generator[tuple[int, Answers]]:
            for name, answers in super().stream(prompts, num_completions, sampling, seed, turns):
                self.names.append((seed, name))
                yield name, answers

    first, again = RecordingVerifier(), RecordingVerifier()
    before, after = Naming(), Naming()
    with running(engine=before, verifier=first, max_staleness=2) as node:
        for _ in range(4):
            node.run_round()
    with running(engine=after, verifier=again, max_staleness=2) as resumed:
        resumed.round, resumed.position = 3, 18
        resumed.run_round()
    assert again.starts[0] == 18
    assert first.starts == sorted(set(first.starts)), "each once"
    fourth = slice(18 * GROUP_SIZE, 24 * GROUP_SIZE)
    assert sorted(after.names)[: 6 * GROUP_SIZE] == sorted(before.names)[fourth], "seed and name decide what is sampled"


@pytest.mark.parametrize("error", [EngineError, Interrupted])
def test_an_error_of_the_thread_ends_the_round_that_needs_its_batch(error: type[Exception]) -> None:
    class Failing(Flowing):
        def asked(self, batches: Collection[int]) -> None:
            if 2 in batches and not mended:
                raise error("the third batch")

    mended: list[bool] = []
    with running(engine=Failing(FakeUpdater()), max_staleness=1) as node:
        node.run_round()
        node.run_round()
        with pytest.raises(error, match="the third batch"):
            node.run_round()
        assert (node.round, node.position) == (2, 12)
        mended.append(True)
        node.run_round()
        assert (node.round, node.position) == (3, 18), "nothing of the error is left"


@pytest.mark.parametrize("refused", [frozenset(), frozenset({1004})])
def test_a_batch_ahead_is_graded_as_one_in_turn_and_says_what_was_used(refused: frozenset[int]) -> None:
    class AllowedToFail(Flowing):
        def stream(
            self,
            prompts: Sequence[str],
            num_completions: int,
            sampling: Sampling,
            seed: int,
            turns: Turns | None = None,
        ) -> Generator[tuple[int, Answers]]:
            for name, answers in super().stream(prompts, num_completions, sampling, seed, turns):
                yield name, Rejection(Reason.PROMPT_TOO_LONG) if name == 3 * GROUP_SIZE + 1 else answers

    engine = AllowedToFail(FakeUpdater())
    with running(engine=engine, verifier=FakeVerifier(refused=refused), max_staleness=1) as node:
        report = node.run_round()
        assert node.ledger.snapshot()["local"]["prompt_too_long"] == 1
        assert node.ledger.snapshot()["local"].get("verifier_timeout", 0) == len(refused)
        assert 0 < report.figures["generate/slots_busy"] <= 1


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
    node = swarm.node(1, engine=Endless(), updater=updater, limit_s=0.0)
    report = node.run_round()
    assert ended == [6] and report.num_unasked == 2, "questions without an answer are not enough"
    assert (len(report.mix.local), len(report.mix.external)) == (1, 1), "of two and two"
    assert node.ledger.snapshot()["local"] == {"prompt_too_long": 3}
    assert node.position == 6, "the stream goes on as in a whole round"
