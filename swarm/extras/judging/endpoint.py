"""A judge behind an OpenAI-compatible server. Its replies are untrusted: bounded in bytes and time, decoded by type."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

import msgspec
from msgspec import Struct

from swarm.environments.judge import JudgeSettings, is_here
from swarm.errors import ConfigError
from swarm.extras.judging.messages import MAX_ERROR_CHARS, Query, Ratings
from swarm.extras.judging.prompts import SYSTEM, number_in

MAX_RESPONSE_BYTES = 2**18
PIECE_BYTES = 2**14
RETRY_AFTER_S = (0.2, 1.0)
"""Pauses before another attempt where the server is busy or fails."""
BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
CHARS_PER_TOKEN = 4
MAX_TOKENS = 2**32
"""Of one request; a larger count is not believed."""


class _Message(Struct, frozen=True):
    content: str | None = None


class _Choice(Struct, frozen=True):
    message: _Message


class _Usage(Struct, frozen=True):
    total_tokens: int = 0


class _Response(Struct, frozen=True):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Unanswered(Exception):
    """There was no reply of the right form."""


class _Busy(_Unanswered):
    """Another attempt may succeed."""


class _NoRedirects(HTTPRedirectHandler):
    """A redirection would take the key along."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """None: the response counts as an error."""


class _Ends:
    """Connections that end at a deadline, whatever the server does: a socket's time limit is one for each byte."""

    def __init__(self) -> None:
        self._of = threading.local()

    def arm(self, seconds: float) -> threading.Timer:
        """For this thread's next connections; the timer is to be cancelled."""
        self._of.sockets = sockets = list[socket.socket]()
        timer = threading.Timer(seconds, _hang_up, (sockets,))
        timer.daemon = True
        timer.start()
        return timer

    def close(self) -> None:
        """Forget them."""
        for each in self._of.sockets:
            each.close()

    def held(self, connection: Any) -> Any:
        """The connection, which ends with the others."""
        connect = connection._create_connection

        def connected(*args: object) -> socket.socket:
            made: socket.socket = connect(*args)
            self._of.sockets.append(made.dup())  # TLS takes the first one over
            return made

        connection._create_connection = connected
        return connection


def _hang_up(sockets: list[socket.socket]) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class _Http(HTTPHandler):
    def __init__(self, ends: _Ends) -> None:
        super().__init__()
        self._ends = ends

    def do_open(self, http_class: Any, req: Request, **options: Any) -> Any:
        return super().do_open(lambda host, **given: self._ends.held(http_class(host, **given)), req, **options)


class _Https(HTTPSHandler):
    def __init__(self, ends: _Ends) -> None:
        super().__init__()
        self._ends = ends

    def do_open(self, http_class: Any, req: Request, **options: Any) -> Any:
        return super().do_open(lambda host, **given: self._ends.held(http_class(host, **given)), req, **options)


class EndpointJudge:
    """Asks a server, several requests at once."""

    def __init__(self, settings: JudgeSettings, environment: Mapping[str, str] = os.environ) -> None:
        """Nothing is asked yet. Raises `ConfigError` when the key's variable is not set."""
        assert settings.endpoint is not None
        self._url = f"{settings.endpoint.rstrip('/')}/chat/completions"
        self._model = settings.model
        self._time_limit_s = settings.time_limit_s
        direct = [ProxyHandler({})] if is_here(urlsplit(settings.endpoint).hostname or "") else []
        self._ends = _Ends()
        self._opener = build_opener(_NoRedirects, _Http(self._ends), _Https(self._ends), *direct)
        self._headers = {"Content-Type": "application/json", **_authorization(settings, environment)}
        self._threads = ThreadPoolExecutor(settings.requests_at_once, "judge")

    def answer(self, queries: Sequence[Query]) -> Ratings:
        """The numbers in the replies; fails for none of them longer than the time limit."""
        deadline = time.monotonic() + self._time_limit_s
        ratings = list(self._threads.map(lambda query: self._one(query, deadline), queries))
        errors = [each.error for each in ratings if each.error]
        return Ratings(
            numbers=tuple(each.numbers[0] for each in ratings),
            tokens=sum(each.tokens for each in ratings),
            unanswered=sum(each.unanswered for each in ratings),
            error=errors[0][:MAX_ERROR_CHARS] if errors else "",
        )

    def _one(self, query: Query, deadline: float) -> Ratings:
        try:
            response = self._asked(query, deadline)
        except _Unanswered as error:
            return Ratings((None,), unanswered=1, error=str(error))
        text = response.choices[0].message.content or "" if response.choices else ""
        counted = response.usage.total_tokens if response.usage else 0
        tokens = counted if 0 < counted <= MAX_TOKENS else (len(query.prompt) + len(text)) // CHARS_PER_TOKEN
        number = number_in(text, query)
        return Ratings((number,), tokens, error="" if number is not None else "a reply did not end with its number")

    def _asked(self, query: Query, deadline: float) -> _Response:
        for pause in (*RETRY_AFTER_S, None):
            try:
                return self._post(query, deadline)
            except _Busy:
                if pause is None or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _post(self, query: Query, deadline: float) -> _Response:
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": query.prompt}],
            "temperature": query.temperature,
            "max_tokens": query.max_new_tokens,
        }
        request = Request(self._url, msgspec.json.encode(body), self._headers, method="POST")
        left = deadline - time.monotonic()
        if left <= 0:
            raise _Unanswered("the endpoint took too long")
        timer = self._ends.arm(left)
        try:
            with self._opener.open(request, timeout=left) as response:
                return msgspec.json.decode(_bounded(response, deadline), type=_Response)
        except HTTPError as error:
            error.close()
            kind = _Busy if error.code in BUSY else _Unanswered
            raise kind(f"the endpoint answered {error.code}") from None
        except TimeoutError:
            raise _Unanswered("the endpoint took too long") from None
        except (OSError, HTTPException) as error:  # `URLError` is an OSError
            if time.monotonic() >= deadline:
                raise _Unanswered("the endpoint took too long") from None
            raise _Busy(f"the endpoint cannot be reached: {_in_words(error)}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _Unanswered("the endpoint's response is not a chat completion") from None
        finally:
            timer.cancel()
            self._ends.close()


def _in_words(error: Exception) -> str:
    """What happened, without the name of the class around it."""
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__).lower()


def _bounded(response: IO[bytes], deadline: float) -> bytes:
    """The body, within a number of bytes and until the deadline."""
    body = b""
    while piece := response.read1(PIECE_BYTES):  # type: ignore[attr-defined]
        body += piece
        if len(body) > MAX_RESPONSE_BYTES:
            raise _Unanswered(f"the endpoint's response is longer than {MAX_RESPONSE_BYTES} bytes")
        if time.monotonic() > deadline:
            raise _Unanswered("the endpoint took too long")
    return body


def _authorization(settings: JudgeSettings, environment: Mapping[str, str]) -> dict[str, str]:
    name = settings.api_key_env
    if name is None:
        return {}
    key = environment.get(name, "").strip()
    if not key:
        raise ConfigError(f"judge.api_key_env: the environment variable {name} is not set")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"judge.api_key_env: the environment variable {name} holds no key")
    return {"Authorization": f"Bearer {key}"}
