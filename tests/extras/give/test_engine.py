"""The endpoint as an engine: what servers do, well and badly."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from pydantic import ValidationError

from swarm.endpoint import Endpoint, EndpointSettings
from swarm.errors import ConfigError, EndpointError, Interrupted
from swarm.extras.give import engine as module
from swarm.extras.give.engine import EndpointEngine, ids_of, text_of
from swarm.extras.give.pace import Pace
from swarm.reasons import Reason
from swarm.types import Message, Past, Rejection, Sampling, Step, Text
from tests.chat_server import MODEL, Asked, chat_server
from tests.extras.give.server import completions, solver

SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_new_tokens=32)
QUESTION = "Calculate 2 + 3."


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.extras.give.pace.MAX_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "GRACE_S", 0.0)


def engine(url: str, notes: list[str] | None = None, **changes: Any) -> EndpointEngine:
    settings = {"url": url, "model": MODEL, "time_limit_s": 10.0}
    settings |= {name: changes.pop(name) for name in list(changes) if name in EndpointSettings.model_fields}
    note = (lambda text, level: notes.append(text)) if notes is not None else (lambda text, level: None)
    return EndpointEngine(EndpointSettings.model_validate(settings), note=note, **changes)


def test_a_question_is_one_request_with_what_the_run_asks_for() -> None:
    with chat_server(solver(1.0)) as server:
        asked = engine(server.url, system_prompt="Be brief.")
        (answers,) = asked.generate([QUESTION], 4, SAMPLING, 0)
        assert [each.text for each in answers] == ["<answer>5</answer>"] * 4
        assert {each.finish_reason for each in answers} == {"stop"} and asked.num_tokens > 0
        (request,) = server.asked
    assert request.body == {
        "model": MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 32,
        "n": 4,
    }
    assert "Authorization" not in request.headers


def test_a_server_without_n_is_asked_one_by_one_from_then_on() -> None:
    with chat_server(solver(1.0, supports_n=False)) as server:
        asked = engine(server.url)
        assert [len(each) for each in asked.generate([QUESTION, QUESTION], 4, SAMPLING, 0)] == [4, 4]
        assert sum(request.n > 1 for request in server.asked) <= 2, "only until it is known"
        num_before = len(server.asked)
        asked.generate([QUESTION], 3, SAMPLING, 0)
        assert [request.n for request in server.asked[num_before:]] == [1, 1, 1]


def test_a_server_that_refuses_n_is_asked_one_by_one() -> None:
    def picky(request: Asked) -> tuple[int, bytes]:
        return (400, b"{}") if "n" in request.body else completions("one")

    with chat_server(picky) as server:
        (answers,) = engine(server.url).generate([QUESTION], 3, SAMPLING, 0)
    assert [each.text for each in answers] == ["one"] * 3


def test_an_episode_goes_on_with_what_was_said() -> None:
    assert [text_of(ids_of(text)) for text in ("", "abcd", "é🎉\0", "five!")] == ["", "abcd", "é🎉\0", "five!"]
    past = Past((Message("system", "Play."), Message("user", "Hi")), (Step(ids_of("hello"), (Text("again"),)),))
    with chat_server(lambda asked: completions("bye")) as server:
        engine(server.url, system_prompt="unused").generate([past], 1, SAMPLING, 0)
        (request,) = server.asked
    assert [(each["role"], each["content"]) for each in request.body["messages"]] == [
        ("system", "Play."),
        ("user", "Hi"),
        ("assistant", "hello"),
        ("user", "again"),
    ]


def test_endings_and_lengths_are_those_of_completions() -> None:
    def respond(request: Asked) -> tuple[int, bytes]:
        _, cut = completions("x" * 50, finish="length")
        _, filtered = completions("no", finish="content_filter")
        choices = [*json.loads(cut)["choices"], *json.loads(filtered)["choices"], *json.loads(cut)["choices"]]
        choices[2] |= {"finish_reason": "stop", "stop_reason": "END", "message": {"content": "till "}}
        return 200, json.dumps({"choices": choices[: request.n]}).encode()

    with chat_server(respond) as server:
        (answers,) = engine(server.url, max_chars=20).generate([QUESTION], 3, SAMPLING, 0)
    assert len(answers) == 3
    found = {(each.text, each.finish_reason) for each in answers}
    assert ("x" * 20, "length") in found and ("till END", "stop_sequence") in found, "stop texts remain"
    assert not any(text == "no" for text, _ in found), "what a filter cut is no completion"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<html>hello</html>", "not a chat completion"),
        (b"", "not a chat completion"),
        (b"[" * 100_000, "not a chat completion"),
        (b'{"choices": NaN}', "not a chat completion"),
        (b'{"choices": []}', "no usable completion"),
        (b'{"choices": [{"message": {"content": 7}}]}', "not a chat completion"),
        (b"x" * 400_000, "longer than"),
    ],
)
def test_garbage_costs_its_question_alone_and_is_said_once_for_each(content: bytes, says: str) -> None:
    def respond(request: Asked) -> tuple[int, bytes]:
        return (200, content) if request.prompt == "bad" else completions(*["good"] * request.n)

    notes: list[str] = []
    with chat_server(respond) as server:
        bad, good = engine(server.url, notes).generate(["bad", "good"], 2, SAMPLING, 0)
    assert isinstance(bad, Rejection) and bad.reason == Reason.UNANSWERED and says in bad.detail
    assert [each.text for each in good] == ["good", "good"]
    assert len(notes) == 1 and "a question is left out" in notes[0]


def test_a_busy_server_is_asked_again_and_less_at_once() -> None:
    def respond(request: Asked) -> tuple[int, bytes]:
        return (429, b"") if len(server.asked) % 3 else completions(*["yes"] * request.n)

    with chat_server(respond) as server:
        answers = engine(server.url).generate([QUESTION] * 6, 2, SAMPLING, 0)
        assert [[each.text for each in found] for found in answers] == [["yes", "yes"]] * 6
        assert server.most_at_once <= 4


def test_an_endpoint_that_goes_away_is_awaited_and_said_so_once() -> None:
    notes: list[str] = []
    with chat_server(solver(1.0)) as server:
        broken = threading.Event()
        server.respond = lambda request: (503, b"") if not broken.is_set() else solver(1.0)(request)
        threading.Timer(0.3, broken.set).start()
        (answers,) = engine(server.url, notes).generate([QUESTION], 2, SAMPLING, 0)
    assert len(answers) == 2
    assert len(notes) == 2 and "asking again until it answers" in notes[0] and notes[1] == "the endpoint answers again"


def test_patience_ends_where_there_is_an_end() -> None:
    with pytest.raises(EndpointError, match="connection refused, for 0.05 s now"):
        engine("http://127.0.0.1:9/v1", patience_s=0.05).generate([QUESTION], 1, SAMPLING, 0)


def test_a_model_that_never_ends_costs_its_question_and_holds_nothing() -> None:
    notes: list[str] = []

    def respond(request: Asked) -> tuple[int, bytes]:
        if request.prompt == "endless":
            server.released.wait(60)
        return completions(*["ok"] * request.n)

    with chat_server(respond) as server:
        began = time.monotonic()
        endless, good = engine(server.url, notes, time_limit_s=0.3).generate(["endless", "good"], 1, SAMPLING, 0)
        assert time.monotonic() - began < 30
    assert isinstance(endless, Rejection) and "took too long" in endless.detail
    assert [each.text for each in good] == ["ok"]
    assert "a model that never ends is cut off there" in notes[0]


def test_a_reply_that_never_ends_took_too_long_and_is_not_called_malformed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.recv(2**16)
                    connection.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"choices": [')
                    threading.Timer(10, connection.close).start()

        threading.Thread(target=trickle, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        (found,) = engine(url, time_limit_s=0.2).generate([QUESTION], 1, SAMPLING, 0)
    assert isinstance(found, Rejection) and "took too long" in found.detail


def test_ctrl_c_does_not_wait_for_a_reply() -> None:
    stop = threading.Event()

    def respond(request: Asked) -> tuple[int, bytes]:
        stop.set()
        server.released.wait(60)
        return completions("late")

    with chat_server(respond) as server, pytest.raises(Interrupted):
        engine(server.url, cancelled=stop.is_set).generate([QUESTION], 1, SAMPLING, 0)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ((401, b"secret"), "wants a key: name its environment variable in --endpoint.api_key_env"),
        ((404, b"{}"), f"has no model {MODEL}; it has other-7b, other-9b"),
        ((200, b"<html>"), "is http://127.0.0.1:[0-9]+/v1 an OpenAI-compatible address"),
        ((200, b'{"choices": []}'), "answers without a completion"),
        ((307, b"http://127.0.0.1:9/v1"), "the endpoint answered 307"),
    ],
)
def test_the_first_word_says_what_is_wrong_and_what_to_do(script: tuple[int, bytes], says: str) -> None:
    with chat_server(lambda asked: script, models=("other-7b", "other-9b")) as server:
        with pytest.raises(EndpointError, match=says) as caught:
            engine(server.url).probe()
        assert len(str(caught.value).splitlines()) == 1 and "secret" not in str(caught.value)


def test_nothing_at_the_address_and_no_address() -> None:
    with pytest.raises(EndpointError, match="connection refused: start the server, or correct --endpoint"):
        engine("http://127.0.0.1:9/v1").probe()
    with pytest.raises(ConfigError, match="name the server and its model"):
        EndpointEngine(EndpointSettings())
    with pytest.raises(ValidationError, match="url must begin with http:// or https://"):
        EndpointSettings(url="localhost:8000")


def test_a_server_may_call_its_model_otherwise() -> None:
    with chat_server(lambda asked: completions("OK", model="other-9b")) as server:
        assert engine(server.url).probe() == "other-9b"


@pytest.mark.parametrize("answer", [b"302 Found\r\nLocation: http://[::1", b"x" * 10_000], ids=["address", "long"])
def test_what_is_no_http_is_an_error_of_one_short_line(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection = listening.accept()[0]
            with connection:
                connection.recv(2**16)
                connection.sendall(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with pytest.raises(EndpointError) as failed:
            Endpoint(url, None, "endpoint").chat({}, time.monotonic() + 30.0)
        thread.join()
    assert str(failed.value).isprintable() and len(str(failed.value)) < 200


@pytest.mark.parametrize("url", ["http://a..b/v1", f"http://{'a' * 70}.example/v1", "http://127.0.0.1:9/\u00e4"])
def test_an_address_that_no_request_can_have_is_a_mistake_in_one_sentence(url: str) -> None:
    with pytest.raises(EndpointError, match="no usable address"):
        Endpoint(url, None, "endpoint").get("models", dict, "a list", time.monotonic() + 30.0)


def test_a_key_goes_to_its_host_alone_and_is_named_when_refused() -> None:
    with (
        chat_server(lambda asked: completions("no")) as other,
        chat_server(lambda asked: (307, f"{other.url}/chat/completions".encode())) as server,
    ):
        asked = engine(server.url, api_key_env="KEY", environment={"KEY": "s3cret"})
        with pytest.raises(EndpointError, match="307"):
            asked.probe()
        assert server.asked[0].headers["Authorization"] == "Bearer s3cret" and other.asked == []
        server.respond = lambda asked: (403, b"")
        with pytest.raises(EndpointError, match="the key in KEY is not accepted"):
            asked.generate([QUESTION], 1, SAMPLING, 0)
    with pytest.raises(ConfigError, match="endpoint.api_key_env: the environment variable KEY is not set"):
        engine("http://127.0.0.1:9/v1", api_key_env="KEY", environment={})


def test_answers_that_are_mostly_empty_are_said() -> None:
    notes: list[str] = []
    with chat_server(lambda asked: completions(*[""] * asked.n, finish="length")) as server:
        engine(server.url, notes).generate([QUESTION] * 4, 8, SAMPLING, 0)
    assert len(notes) == 1 and "are empty: if it thinks before it answers" in notes[0]


@pytest.mark.parametrize(
    ("model", "public"),
    [("qwen3:8b", "qwen3:8b"), ("org/name", "org/name"), ("/home/me/a.gguf", "a.gguf"), ("C:\\me\\b.gguf", "b.gguf")],
)
def test_a_path_stays_here(model: str, public: str) -> None:
    assert EndpointSettings(url="http://127.0.0.1/v1", model=model).public_model == public


def test_the_pace_follows_the_server() -> None:
    pace = Pace(16)
    for _ in range(400):
        pace.reply(1.0, 10)
    assert pace.limit == 16, "as fast as the fastest"
    for _ in range(200):
        pace.reply(20.0, 10)
    assert pace.limit < 8, "slow replies"
    pace = Pace(16)
    for _ in range(50):  # it queues: twice as many requests take twice as long
        pace.reply(1.0 * pace.limit, 10)
    assert pace.limit <= 6, "a short queue"
    before = pace.limit
    pace.setback(now=100.0, retry_after_s=7.0)
    assert pace.limit <= before and pace.resumes_at == 107.0
    pace.setback(now=100.1)
    assert pace.resumes_at == 107.0, "replies of one moment are one setback"
