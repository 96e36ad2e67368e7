"""The judge behind an OpenAI-compatible server, asked over HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from queue import Queue

import pytest
from pydantic import ValidationError

from swarm.endpoint import MAX_RESPONSE_BYTES
from swarm.environments.judge import JudgeSettings
from swarm.errors import ConfigError
from swarm.extras.judging import endpoint
from swarm.extras.judging.endpoint import EndpointJudge
from swarm.extras.judging.prompts import SYSTEM, Query, Ratings
from tests.chat_server import Asked, chat_server
from tests.extras.judging.server import says

QUERIES = [Query(f"answer {number}", "SCORE", 10, 64, 0.0) for number in range(5)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RETRY_AFTER_S", (0.0, 0.0))


def judge(address: str, environment: dict[str, str] | None = None, **changes: object) -> EndpointJudge:
    values = {"model": "wise", "endpoint": address, "requests_at_once": 3, "time_limit_s": 10.0, **changes}
    return EndpointJudge(JudgeSettings.model_validate(values), environment or {})


def answered(respond: object, **changes: object) -> Ratings:
    with chat_server(respond) as server:  # type: ignore[arg-type]
        return judge(server.url, **changes).answer(QUERIES)


def test_each_query_is_a_chat_completion_and_its_number_comes_back_in_order() -> None:
    with chat_server(lambda asked: says(f"Well.\nSCORE: {asked.prompt[-1]}")) as server:
        told = judge(server.url + "/", {"KEY": "s3cret\n"}, api_key_env="KEY").answer(QUERIES)
        assert told == Ratings((0, 1, 2, 3, 4), tokens=150)
        assert len(server.asked) == 5
        first = min(server.asked, key=lambda asked: asked.prompt)
    assert first.path == "/v1/chat/completions" and first.headers["Authorization"] == "Bearer s3cret"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "answer 0"}]
    assert first.body == {"model": "wise", "messages": messages, "temperature": 0.0, "max_tokens": 64}


PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "0.0.0.0"])
def test_a_judge_on_this_machine_is_asked_without_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server(lambda asked: says("SCORE: 9")) as proxy, chat_server(lambda asked: says("SCORE: 1")) as server:
        for name in PROXIES:
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        address = server.url.replace("127.0.0.1", host)
        told = judge(address, {"KEY": "s3cret"}, api_key_env="KEY").answer(QUERIES[:1])
        assert told.numbers == (1,) and not proxy.asked and len(server.asked) == 1


def test_a_proxy_leads_to_other_machines_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server(lambda asked: says("SCORE: 9")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        assert judge("http://judge.example/v1").answer(QUERIES[:1]).numbers == (9,)
        assert "Authorization" not in proxy.asked[0].headers
        with pytest.raises(ValidationError, match="a key may be sent to https:// or to this machine only"):
            judge("http://judge.example/v1", {"KEY": "s3cret"}, api_key_env="KEY")


def test_a_server_that_cannot_be_reached_is_told_with_the_reason() -> None:
    told = judge("http://127.0.0.1:9/v1").answer(QUERIES[:1])
    assert told.error == "the endpoint cannot be reached: connection refused"


def test_without_a_key_none_is_sent_and_one_that_is_missing_is_an_error() -> None:
    with chat_server(lambda asked: says("SCORE: 1")) as server:
        judge(server.url, {"OPENAI_API_KEY": "not asked for"}).answer(QUERIES[:1])
        assert "Authorization" not in server.asked[0].headers
        with pytest.raises(ConfigError, match="KEY is not set"):
            judge(server.url, {}, api_key_env="KEY")
        with pytest.raises(ConfigError, match="KEY holds no key") as caught:
            judge(server.url, {"KEY": "a\r\nX-Other: b"}, api_key_env="KEY")
        assert "X-Other" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "not a chat completion"),
        (b"<html>", "not a chat completion"),
        (b"\xff\xfe", "not a chat completion"),
        (b'{"choices": 3}', "not a chat completion"),
        (b'{"choices": [{"message": {"content": 7}}]}', "not a chat completion"),
        (b'{"usage": {"total_tokens": "x"}, "choices": []}', "not a chat completion"),
        (b"[" * 100_000, "not a chat completion"),
        (b"x" * (MAX_RESPONSE_BYTES + 1), "longer than"),
    ],
)
def test_garbage_is_no_reply(content: bytes, error: str) -> None:
    told = answered(lambda asked: (200, content))
    assert told.numbers == (None,) * 5 and told.unanswered == 5 and error in told.error


@pytest.mark.parametrize("content", [b'{"choices": []}', b'{"choices": [{"message": {"content": null}}]}'])
def test_a_reply_without_text_is_no_number(content: bytes) -> None:
    told = answered(lambda asked: (200, content))
    assert told.numbers == (None,) * 5 and told.unanswered == 0 and "did not end with its number" in told.error


def test_a_reply_of_another_form_costs_only_its_own_query() -> None:
    told = answered(lambda asked: says("10 points!" if asked.prompt == "answer 3" else "SCORE: 5"))
    assert told.numbers == (5, 5, 5, None, 5) and told.unanswered == 0


def test_an_endpoint_that_fails_is_asked_three_times() -> None:
    with chat_server(lambda asked: (500, b"")) as server:
        told = judge(server.url).answer(QUERIES[:2])
        assert told == Ratings((None, None), unanswered=2, error="the endpoint answered 500")
        assert len(server.asked) == 6

        def recovers(asked: Asked) -> tuple[int, bytes]:
            return (429, b"") if len(server.asked) < 9 else says("SCORE: 2")

        server.respond = recovers
        assert judge(server.url).answer(QUERIES[:1]).numbers == (2,)


def test_a_request_that_is_refused_is_not_repeated() -> None:
    with chat_server(lambda asked: (401, b"secret detail")) as server:
        told = judge(server.url).answer(QUERIES[:1])
        assert told.error == "the endpoint answered 401" and len(server.asked) == 1


def test_the_key_is_not_taken_to_another_address() -> None:
    with chat_server(lambda asked: says("SCORE: 9")) as other:
        address = f"{other.url}/chat/completions".encode()
        for code in (301, 302, 303, 307, 308):
            with chat_server(lambda asked, code=code: (code, address)) as server:
                told = judge(server.url, {"KEY": "s3cret"}, api_key_env="KEY").answer(QUERIES[:1])
                assert told.numbers == (None,) and str(code) in told.error
        assert other.asked == []


def test_an_endpoint_that_is_not_there_or_hangs_ends_with_the_time_limit() -> None:
    assert "cannot be reached" in judge("http://127.0.0.1:1/v1").answer(QUERIES[:1]).error
    with chat_server(lambda asked: says("SCORE: 1")) as server:

        def hangs(asked: Asked) -> tuple[int, bytes]:
            server.released.wait(60)
            return says("SCORE: 1")

        server.respond = hangs
        began = time.monotonic()
        told = judge(server.url, time_limit_s=0.3).answer(QUERIES)
        assert told.unanswered == 5 and "took too long" in told.error
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
    ],
    ids=["header", "interim responses", "length of a chunk", "body"],
)
def test_a_reply_byte_by_byte_has_no_more_time(begin: bytes, repeated: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with suppress(OSError), server.accept()[0] as connection:
                connection.recv(2**16)
                connection.sendall(begin)
                while True:
                    connection.sendall(repeated)
                    time.sleep(0.02)

        threading.Thread(target=drip, daemon=True).start()
        found = Queue[Ratings]()
        asked = judge(f"http://127.0.0.1:{server.getsockname()[1]}/v1", time_limit_s=0.5)
        threading.Thread(target=lambda: found.put(asked.answer(QUERIES[:1])), daemon=True).start()
        assert found.get(timeout=60).unanswered == 1


@pytest.mark.parametrize("counted", [-1, 0, 2**32 + 1, 10**400])
def test_tokens_that_are_not_counted_or_absurd_are_estimated(counted: int) -> None:
    body = {"choices": [{"message": {"content": "SCORE: 1"}}], "usage": {"total_tokens": counted}}
    assert answered(lambda asked: (200, json.dumps(body).encode())).tokens == 5 * ((8 + 8) // 4)


def test_tokens_that_are_not_counted_are_estimated() -> None:
    body = json.dumps({"choices": [{"message": {"content": "SCORE: 1"}}]}).encode()
    assert answered(lambda asked: (200, body)).tokens == 5 * ((8 + 8) // 4)


@pytest.mark.parametrize(
    "values",
    [
        {"endpoint": "ftp://host/v1"},
        {"endpoint": "localhost:8000"},
        {"endpoint": "https://user:password@host/v1"},
        {"endpoint": "https://host/v1?key=secret"},
        {"endpoint": "http://example.org/v1", "api_key_env": "KEY"},
        {"api_key_env": "KEY"},
        {"endpoint": "https://host/v1", "api_key_env": "sk-123"},
    ],
)
def test_settings_that_would_reveal_a_key_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        JudgeSettings.model_validate({"model": "m", **values})
