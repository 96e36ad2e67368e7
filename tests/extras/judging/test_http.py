"""Rewards over HTTP, from real servers on this machine: what is sent and believed, and what a hostile one can do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from pydantic import ValidationError

from swarm.endpoint import MAX_RESPONSE_BYTES
from swarm.environments.config import TASK_LIST, TaskConfig
from swarm.environments.judge import RewardServiceSettings, lacking_raters, unjudged, with_raters
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError
from swarm.extras.judging import endpoint
from swarm.extras.judging.endpoint import RewardService
from swarm.extras.judging.prompts import Rated, RatedSheet, Ratings
from swarm.extras.judging.reward import HttpReward
from swarm.protocols import TaskVerifier
from swarm.reasons import Reason
from swarm.types import Grade, Rejection
from tests.chat_server import Asked, ChatServer, chat_server

ASKED = [Rated("armo", "gcd", "Q?", text) for text in ("a", "bb", "ccc", "dddd", "eeeee")]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RETRY_AFTER_S", (0.0, 0.0))


def by_length(asked: Asked) -> tuple[int, bytes]:
    """An example of a service: the longer, the better."""
    rewards = [
        len(completion) / 10 for _, completion in zip(asked.body["prompts"], asked.body["completions"], strict=True)
    ]
    return 200, json.dumps({"rewards": rewards}).encode()


def address(server: ChatServer) -> str:
    return server.url.removesuffix("/v1") + "/rewards"


def service(url: str, environment: dict[str, str] | None = None, **changes: object) -> RewardService:
    values = {"url": url, "time_limit_s": 10.0, **changes}
    return RewardService(RewardServiceSettings.model_validate(values), environment or {})


def answered(respond: Callable[[Asked], tuple[int, bytes]], **changes: object) -> Ratings:
    with chat_server(respond) as server:
        return service(address(server), **changes).answer(ASKED)


def tasks(**changes: object) -> tuple[TaskConfig, ...]:
    rewards = [{"kind": "answer"}, {"kind": "http", "name": "length", "model": "armo", **changes}]
    return TASK_LIST.validate_python([{"kind": "reasoning_gym", "name": "gcd", "rewards": rewards}])


@contextmanager
def verifier(url: str, **changes: object) -> Iterator[TaskVerifier]:
    """As a node makes it: the service is asked from a process."""
    settings = RewardServiceSettings.model_validate({"url": url, **changes})
    with closing(with_raters(InlineVerifier(tasks()), tasks(), (settings,))) as made:
        yield made


def test_a_request_has_a_batch_of_completions_and_its_rewards_come_back_in_order() -> None:
    with chat_server(by_length) as server:
        found = service(address(server), {"KEY": "s3cret"}, api_key_env="KEY", batch=2).answer(ASKED)
        assert found == Ratings((0.1, 0.2, 0.3, 0.4, 0.5))
        bodies = sorted((asked.body for asked in server.asked), key=lambda body: body["completions"])
    assert bodies[0] == {"model": "armo", "task": "gcd", "prompts": ["Q?", "Q?"], "completions": ["a", "bb"]}
    assert [len(body["completions"]) for body in bodies] == [2, 2, 1]
    assert {asked.headers["Authorization"] for asked in server.asked} == {"Bearer s3cret"}
    assert {asked.path for asked in server.asked} == {"/rewards"}


@pytest.mark.parametrize("path", ["/rewards", "/rewards/"])
def test_the_address_is_asked_as_it_is_written(path: str) -> None:
    with chat_server(by_length) as server:
        service(address(server).removesuffix("/rewards") + path).answer(ASKED)
    assert {asked.path for asked in server.asked} == {path}


def test_a_request_is_about_one_task_and_model() -> None:
    mixed = [*ASKED[:1], Rated("other", "gcd", "Q?", "bb"), *ASKED[2:3], Rated("armo", "lcm", "Q?", "dddd")]
    with chat_server(by_length) as server:
        assert service(address(server)).answer(mixed).numbers == (0.1, 0.2, 0.3, 0.4)
        asked = {(each.body["model"], each.body["task"], *each.body["completions"]) for each in server.asked}
    assert asked == {("armo", "gcd", "a", "ccc"), ("other", "gcd", "bb"), ("armo", "lcm", "dddd")}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"<html>", "not a list of rewards"),
        (b"[1, 2, 3, 4, 5]", "not a list of rewards"),
        (b'{"rewards": ["1", 2, 3, 4, 5]}', "not a list of rewards"),
        (b'{"rewards": [NaN, 2, 3, 4, 5]}', "not a list of rewards"),
        (b'{"rewards": [null, 2, 3, 4, 5]}', "not a list of rewards"),
        (b'{"rewards": [1e999, 2, 3, 4, 5]}', "not"),
        (b"[" * 100_000, "not a list of rewards"),
        (b'{"rewards": [1, 2, 3, 4]}', "4 rewards for 5 completions"),
        (b'{"rewards": [1, 2, 3, 4, 5, 6]}', "6 rewards for 5 completions"),
        (b'{"rewards": []}', "0 rewards for 5 completions"),
        (b" " * (MAX_RESPONSE_BYTES + 1), "longer than"),
    ],
)
def test_a_reply_that_is_not_one_finite_number_for_each_completion_counts_for_none(content: bytes, error: str) -> None:
    found = answered(lambda asked: (200, content))
    assert found.numbers == (None,) * 5 and found.unanswered == 5 and error in found.error


def test_a_bad_batch_costs_no_other() -> None:
    def some(asked: Asked) -> tuple[int, bytes]:
        return (200, b"?") if "ccc" in asked.body["completions"] else by_length(asked)

    found = answered(some, batch=2)
    assert found.numbers == (0.1, 0.2, None, None, 0.5) and found.unanswered == 2


def test_a_busy_service_is_asked_again_and_one_that_refuses_is_not() -> None:
    with chat_server(lambda asked: (503, b"")) as server:
        assert service(address(server)).answer(ASKED).error == "the endpoint answered 503" and len(server.asked) == 3

        def recovers(asked: Asked) -> tuple[int, bytes]:
            return (429, b"") if len(server.asked) < 5 else by_length(asked)

        server.respond = recovers
        assert service(address(server)).answer(ASKED[:1]).numbers == (0.1,)
        server.respond, before = lambda asked: (401, b"secret detail"), len(server.asked)
        assert service(address(server)).answer(ASKED).error == "the endpoint answered 401"
        assert len(server.asked) == before + 1


def test_the_key_is_not_taken_to_another_host() -> None:
    with chat_server(by_length) as other:
        for code in (301, 302, 303, 307, 308):
            with chat_server(lambda asked, code=code: (code, address(other).encode())) as server:
                found = service(address(server), {"KEY": "s3cret"}, api_key_env="KEY").answer(ASKED)
                assert found.unanswered == 5 and str(code) in found.error
        assert other.asked == []


def test_a_reply_byte_by_byte_has_no_more_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with suppress(OSError), server.accept()[0] as connection:
                connection.recv(2**16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.02)

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        asked = service(f"http://127.0.0.1:{server.getsockname()[1]}/rewards", time_limit_s=0.5)
        assert asked.answer(ASKED).unanswered == 5 and time.monotonic() - began < 30


def test_rewards_are_mapped_onto_0_to_1_and_clipped() -> None:
    part = HttpReward(kind="http", model="armo", worst=-10, best=10)
    sheet = RatedSheet(part, "gcd", "Q?", ["a", "b", "a", "c"])
    numbers = dict(zip(sheet.queries, (-5.0, 1e300, -1e300), strict=True))
    assert sheet.rewards(numbers) == (0.25, 1.0, 0.25, 0.0)
    turned = RatedSheet(part.model_copy(update={"worst": 10, "best": 0}), "gcd", "Q?", ["a"])
    assert turned.rewards(dict.fromkeys(turned.queries, 4.0)) == (0.6,)
    with pytest.raises(ValidationError, match="best must differ from worst"):
        HttpReward(kind="http", model="armo", worst=1, best=1)


def test_half_characters_and_long_texts_can_be_sent() -> None:
    part = HttpReward(kind="http", model="armo", max_chars=10)
    (query,) = RatedSheet(part, "gcd", "\ud800?", ["x" * 1000]).queries
    assert "990 characters are left out" in query.completion and "\ud800" not in query.prompt
    with chat_server(by_length) as server:
        assert service(address(server)).answer([query]).unanswered == 0


def test_own_and_others_groups_get_the_service_s_reward_by_its_name() -> None:
    with chat_server(by_length) as server, verifier(address(server)) as made:
        ref = made.draw(0, 0, 1, "gcd")[0].ref
        grade = made.begin_grading(ref, ["<think>no</think>x", "four"]).result(60)
        assert isinstance(grade, Grade) and grade.parts == {"answer": (0.0, 0.0), "length": (0.1, 0.4)}
        assert grade.rewards == pytest.approx((0.05, 0.2))
        made.submit("key", ref, ["x", "four"], "stranger")
        while not (found := made.collect()):
            pass
        assert isinstance(found[0][1], Grade) and found[0][1].rewards == pytest.approx((0.05, 0.2))
        assert len(server.asked) == 1, "the second time is known"
        assert made.counters()["reward_service_requests"] == 2
        (plain,) = unjudged(made).grade([(ref, ["x"])])
        assert isinstance(plain, Grade) and plain.parts.keys() == {"answer"}


def test_a_service_that_is_away_leaves_groups_out_and_says_so() -> None:
    with verifier("http://127.0.0.1:9/rewards") as made:
        ref = made.draw(0, 0, 1, "gcd")[0].ref
        verdict = made.begin_grading(ref, ["x", "y"]).result(60)
        assert isinstance(verdict, Rejection) and verdict.reason == Reason.JUDGE_FAILED
        assert verdict.detail == "the endpoint cannot be reached: connection refused"
        verdict = made.begin_grading(ref, ["x", "y"]).result(60)
        assert isinstance(verdict, Rejection) and "the reward service is down; it is asked again in" in verdict.detail


def test_others_groups_can_be_left_out_and_the_budget_is_in_completions() -> None:
    with chat_server(by_length) as server, verifier(address(server), strangers="skip", completions_per_hour=3) as made:
        ref = made.draw(0, 0, 1, "gcd")[0].ref
        made.submit("key", ref, ["x"], "stranger")
        assert made.collect()[0][1].reason == Reason.JUDGE_SKIPPED  # type: ignore[union-attr]
        assert isinstance(made.begin_grading(ref, ["x", "y"]).result(60), Grade)
        verdict = made.begin_grading(ref, ["v", "w"]).result(60)
        assert isinstance(verdict, Rejection) and verdict.reason == Reason.JUDGE_BUDGET


def test_a_node_without_a_service_or_its_key_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = (RewardServiceSettings(),)
    assert lacking_raters(tasks(), nobody) == {"gcd": "its rewards need a service, armo: set reward_service.url"}
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="the reward service cannot be set up.*NO_SUCH_KEY is not set"):
        with_raters(
            InlineVerifier(tasks()),
            tasks(),
            (RewardServiceSettings(url="https://host/rewards", api_key_env="NO_SUCH_KEY"),),
        )
    with pytest.raises(ValidationError, match="a key may be sent to https:// or to this machine only"):
        RewardServiceSettings(url="http://example.org/rewards", api_key_env="KEY")
