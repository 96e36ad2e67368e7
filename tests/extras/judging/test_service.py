"""The judge's queue, cache, budget and time limits, with a process that does as a test wants."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from contextlib import closing
from queue import Queue
from threading import Event

import pytest

from swarm.environments.judge import JudgeSettings
from swarm.errors import ConfigError, EngineCrashed
from swarm.extras.judging import service as service_module
from swarm.extras.judging.prompts import Broken, JudgeSheet, Query, Ratings, Ready, Reply
from swarm.extras.judging.reward import JudgeReward
from swarm.extras.judging.service import JudgeProcess, JudgeService
from swarm.reasons import Reason
from swarm.types import Rejection
from tests.chat_server import chat_server
from tests.extras.judging.fake import LONG_S, FakeProcess, fives, service
from tests.extras.judging.server import says

PART = JudgeReward(kind="judge", model="m", rubric="r")
Outcome = tuple[float, ...] | Rejection


class Asking:
    """Asks about groups, and waits for the outcomes."""

    def __init__(self, judge: JudgeService) -> None:
        self._judge = judge
        self._queue: Queue[tuple[str, Outcome]] = Queue()

    def ask(self, *texts: str, sender: str | None = None, part: JudgeReward = PART) -> None:
        self._judge.ask(JudgeSheet(part, "Q?", texts), lambda outcome: self._queue.put((texts[0], outcome)), sender)

    def next(self) -> tuple[str, Outcome]:
        return self._queue.get(timeout=LONG_S)

    def outcome(self, *texts: str, sender: str | None = None, part: JudgeReward = PART) -> Outcome:
        self.ask(*texts, sender=sender, part=part)
        return self.next()[1]


def reason(outcome: Outcome) -> Reason:
    assert isinstance(outcome, Rejection), outcome
    return outcome.reason


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "REST_S", (0.0, 0.0))


def test_groups_are_asked_about_once() -> None:
    with service(fives) as (judge, (process, *_)):
        asking = Asking(judge)
        assert asking.outcome("a", "b", "a") == (0.5, 0.5, 0.5)
        assert asking.outcome("b", "c") == (0.5, 0.5)
        assert asking.outcome("c", "a", sender="stranger") == (0.5, 0.5)
        assert [len(asked) for asked in process.asked] == [2, 1]
        counters = judge.counters()
        assert counters["judge_requests"] == 3 and counters["judge_tokens"] == 30 and counters["judge_cached"] == 3


def test_the_cache_is_bounded() -> None:
    with service(fives, cache_scores=2) as (judge, (process, *_)):
        asking = Asking(judge)
        for text in "abcab":
            assert asking.outcome(text) == (0.5,)
        assert len(process.asked) == 5


def test_own_groups_come_first_and_strangers_take_turns() -> None:
    hold = Event()

    def waits(queries: Sequence[Query]) -> Ratings:
        hold.wait(LONG_S)
        return fives(queries)

    with service(waits, requests_at_once=1) as (judge, _):
        asking = Asking(judge)
        asking.ask("first")
        for text, sender in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("own", None)):
            asking.ask(text, sender=sender)
        hold.set()
        order = [asking.next()[0] for _ in range(5)]
        assert order.index("own") < order.index("a1") < order.index("b1") < order.index("a2")


def test_a_reply_without_a_number_costs_its_group_alone() -> None:
    def some(queries: Sequence[Query]) -> Ratings:
        return Ratings(tuple(None if "bad" in query.prompt else 3 for query in queries), error="it said nothing")

    with service(some) as (judge, (process, *_)):
        asking = Asking(judge)
        assert asking.outcome("good") == (0.3,)
        outcome = asking.outcome("good", "bad")
        assert reason(outcome) == Reason.JUDGE_FAILED and isinstance(outcome, Rejection)
        assert outcome.detail == "it said nothing"
        assert asking.outcome("fine") == (0.3,) and not process.killed


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize(
    "reply",
    [
        Ratings((5, 5)),
        Ratings((11,)),
        Ratings((-1,)),
        Ratings((5,), tokens=-1),
        Ratings((5,), unanswered=2),
        Ready(),
        Broken("no"),
    ],
)
def test_what_no_intact_process_sends_ends_it(reply: Reply) -> None:
    with service(lambda queries: reply, fives) as (judge, processes):
        asking = Asking(judge)
        assert reason(asking.outcome("a")) == Reason.JUDGE_FAILED
        assert processes[0].killed
        assert asking.outcome("a") == (0.5,), "another process is asked"
        assert judge.counters()["judge_restarts"] == 1


def test_a_judge_that_hangs_holds_nothing_up() -> None:
    with service(lambda queries: None, time_limit_s=0.1) as (judge, (process, *_)):
        asking = Asking(judge)
        asking.ask("a")
        asking.ask("b")
        assert {reason(asking.next()[1]) for _ in range(2)} == {Reason.JUDGE_TIMEOUT}
        assert not process.killed, "it is given a little longer than the groups"


@pytest.mark.usefixtures("restless")
def test_a_judge_that_stays_late_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "GRACE_S", 0.0)
    with service(lambda queries: None, fives, time_limit_s=0.1) as (judge, processes):
        asking = Asking(judge)
        assert reason(asking.outcome("a", sender="stranger")) == Reason.JUDGE_TIMEOUT
        assert processes[0].killed and judge.counters()["judge_timeouts"] == 1
        while not isinstance(asking.outcome("b"), tuple):
            pass


def test_a_judge_that_is_down_rests_and_groups_are_left_out_at_once() -> None:
    def down(queries: Sequence[Query]) -> Ratings:
        return Ratings((None,) * len(queries), unanswered=len(queries), error="the endpoint answered 500")

    with service(down) as (judge, (process, *_)):
        asking = Asking(judge)
        assert reason(asking.outcome("a")) == Reason.JUDGE_FAILED
        for sender in (None, "stranger"):
            outcome = asking.outcome("b", sender=sender)
            assert reason(outcome) == Reason.JUDGE_FAILED and isinstance(outcome, Rejection)
            assert "the judge is down" in outcome.detail
        assert len(process.asked) == 1


def test_the_budget_leaves_groups_out() -> None:
    with service(fives, requests_per_hour=6, strangers_share=0.5, requests_per_group=4) as (judge, (process, *_)):
        asking = Asking(judge)
        assert asking.outcome("a", "b", sender="stranger") == (0.5, 0.5)
        assert reason(asking.outcome("c", "d", sender="other")) == Reason.JUDGE_BUDGET
        assert asking.outcome("a", sender="other") == (0.5,), "what is known costs nothing"
        assert asking.outcome("c", "d", "e", "f") == (0.5,) * 4
        assert reason(asking.outcome("g")) == Reason.JUDGE_BUDGET
        assert reason(asking.outcome("v", "w", "x", "y", "z")) == Reason.JUDGE_BUDGET
        assert sum(map(len, process.asked)) == 6


def test_tokens_are_a_budget_too() -> None:
    with service(fives, tokens_per_hour=20) as (judge, _):
        asking = Asking(judge)
        assert asking.outcome("a", "b") == (0.5, 0.5)
        assert reason(asking.outcome("c")) == Reason.JUDGE_BUDGET


def test_the_queue_of_strangers_is_bounded() -> None:
    hold = Event()

    def waits(queries: Sequence[Query]) -> Ratings:
        hold.wait(LONG_S)
        return fives(queries)

    with service(waits, queue_groups=2, requests_at_once=1) as (judge, (process, *_)):
        asking = Asking(judge)
        asking.ask("own")
        while not process.asked:
            pass
        for number in range(4):
            asking.ask(f"a{number}", sender="a")
        assert [reason(asking.next()[1]) for _ in range(2)] == [Reason.VERIFIER_OVERFLOW] * 2
        hold.set()
        assert {asking.next()[0] for _ in range(3)} == {"own", "a2", "a3"}


def test_every_group_has_an_outcome_when_the_judge_closes() -> None:
    with service(lambda queries: None, requests_at_once=1) as (judge, _):
        asking = Asking(judge)
        for text, sender in (("a", None), ("b", None), ("c", "stranger")):
            asking.ask(text, sender=sender)
        judge.close()
        assert [reason(asking.next()[1]) for _ in range(3)] == [Reason.JUDGE_FAILED] * 3
        assert reason(asking.outcome("late")) == Reason.JUDGE_FAILED


def test_a_process_that_cannot_be_sent_to_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "REST_S", (0.0, 0.0))

    def dead(queries: Sequence[Query]) -> Ratings:
        raise EngineCrashed("gone")

    with service(dead, fives) as (judge, _):
        asking = Asking(judge)
        assert reason(asking.outcome("a")) == Reason.JUDGE_FAILED
        assert asking.outcome("a") == (0.5,)


def no_more_processes() -> OSError:
    return BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("num_refused", [1, 2, 20])
def test_starts_that_the_system_refuses_are_tried_again(num_refused: int) -> None:
    def dead(queries: Sequence[Query]) -> Ratings:
        raise EngineCrashed("gone")

    starts = iter([FakeProcess(dead), *(no_more_processes() for _ in range(num_refused)), FakeProcess(fives)])
    judge = JudgeService(JudgeSettings(model="m"), lambda settings: started(next(starts)))
    with closing(judge):
        asking = Asking(judge)
        assert reason(asking.outcome("a")) == Reason.JUDGE_FAILED
        assert asking.outcome("a") == (0.5,)
        assert judge.counters()["judge_failures"] == num_refused + 1


def started(process: FakeProcess | OSError) -> FakeProcess:
    if isinstance(process, OSError):
        raise process
    return process


@pytest.mark.usefixtures("restless")
def test_a_judge_that_never_starts_cannot_be_set_up() -> None:
    judge = JudgeService(JudgeSettings(model="m"), lambda settings: started(no_more_processes()))
    with closing(judge), pytest.raises(ConfigError, match="cannot be started: .*temporarily unavailable"):
        judge.wait_until_ready()


class DiesAtOnce(FakeProcess):
    """Ends before it says that it is ready."""

    def receive(self) -> Reply:
        raise EngineCrashed("the process was killed by signal 9")


@pytest.mark.usefixtures("restless")
def test_a_judge_whose_processes_die_before_they_are_ready_cannot_be_set_up() -> None:
    judge = JudgeService(JudgeSettings(model="m"), lambda settings: DiesAtOnce(fives))
    with closing(judge), pytest.raises(ConfigError, match="killed by signal 9"):
        judge.wait_until_ready()


@pytest.mark.usefixtures("restless")
def test_processes_may_die_early_once_a_judge_has_been_ready() -> None:
    def dead(queries: Sequence[Query]) -> Ratings:
        raise EngineCrashed("gone")

    starts = iter([FakeProcess(dead), *(DiesAtOnce(fives) for _ in range(20)), FakeProcess(fives)])
    judge = JudgeService(JudgeSettings(model="m"), lambda settings: next(starts))
    with closing(judge):
        asking = Asking(judge)
        assert reason(asking.outcome("a")) == Reason.JUDGE_FAILED
        assert asking.outcome("b") == (0.5,)
        judge.wait_until_ready()


class Silent(FakeProcess):
    """Never says that it is ready."""

    def _say(self, reply: Reply) -> None:
        pass


def test_a_judge_that_is_not_ready_in_time_cannot_be_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "START_LIMIT_S", 0.0)
    judge = JudgeService(JudgeSettings(model="m"), lambda settings: Silent(fives))
    with closing(judge), pytest.raises(ConfigError, match="not ready after 0 s"):
        judge.wait_until_ready()


@pytest.mark.usefixtures("restless")
def test_a_real_process_that_is_killed_costs_what_it_was_asked() -> None:
    started: list[JudgeProcess] = []

    def start(settings: JudgeSettings) -> JudgeProcess:
        started.append(JudgeProcess(settings))
        return started[-1]

    with chat_server(lambda asked: says("SCORE: 4")) as server:
        judge = JudgeService(JudgeSettings(model="m", endpoint=server.url, time_limit_s=LONG_S), start)
        try:
            judge.wait_until_ready()
            asking = Asking(judge)
            assert asking.outcome("a", "b") == (0.4, 0.4)
            server.respond = lambda asked: (server.released.wait(LONG_S), says("SCORE: 4"))[1]
            asking.ask("c")
            while len(server.asked) < 3:
                pass
            os.kill(started[0].pid, signal.SIGKILL)
            assert reason(asking.next()[1]) == Reason.JUDGE_FAILED
            server.respond = lambda asked: says("SCORE: 4")
            assert asking.outcome("d") == (0.4,)
            assert len(started) == 2
        finally:
            judge.close()


def test_a_key_that_is_missing_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    settings = JudgeSettings(model="m", endpoint="https://localhost:1/v1", api_key_env="NO_SUCH_KEY")
    judge = JudgeService(settings)
    with closing(judge), pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        judge.wait_until_ready()
