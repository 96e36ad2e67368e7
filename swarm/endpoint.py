"""OpenAI-compatible servers, as judges, givers and evaluations ask them, and reward services.

Replies are untrusted: bounded in bytes and time, decoded by type. A key goes to one host, and no redirection is
followed.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message as EmailMessage
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

import msgspec
from msgspec import Struct
from pydantic import Field, model_validator

from swarm.errors import ConfigError, EndpointError
from swarm.settings import Settings

T = TypeVar("T")

MAX_RESPONSE_BYTES = 2**18
"""Most bytes of a short reply."""
PIECE_BYTES = 2**14
BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Another attempt may succeed."""
MAX_RETRY_AFTER_S = 60.0
MAX_PUBLIC_CHARS = 120
MAX_REASON_CHARS = 120


class EndpointSettings(Settings):
    """The OpenAI-compatible server that `swarm give` asks, and `swarm evaluate --endpoint`."""

    url: str | None = Field(None, max_length=2_048)
    """Its address, such as `http://127.0.0.1:8000/v1`. One on this machine is never asked through a proxy."""
    model: str | None = Field(None, min_length=1, max_length=512)
    """The model's name there."""
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable with the key, which is written nowhere and sent to no other host."""
    time_limit_s: float = Field(120.0, gt=0, le=3_600)
    """Longest wait for one reply; a completion that takes longer is given up."""
    requests_at_once: int = Field(16, ge=1, le=256)
    """Most requests in flight; as long as replies become slower, or the server is busy, there are fewer."""
    max_groups_per_min: float | None = Field(None, gt=0)
    """Most groups that `swarm give` shares in a minute; None: as many as its receivers use."""
    groups: int | None = Field(None, ge=1)
    """Groups after which `swarm give` ends; None: never."""

    @property
    def public_model(self) -> str:
        """The model's name for other members: of a path its last part."""
        name = self.model or ""
        is_path = name.startswith(("/", ".", "~")) or "\\" in name
        return (re.split(r"[/\\]", name.rstrip("/\\"))[-1] if is_path else name)[:MAX_PUBLIC_CHARS]

    @model_validator(mode="after")
    def _the_key_stays_secret(self) -> EndpointSettings:
        check_url("url", self.url, self.api_key_env)
        return self


def check_url(field: str, url: str | None, api_key_env: str | None) -> None:
    """Raises `ValueError` for what is no address of a server, or would send a key where others read it."""
    if url is None:
        if api_key_env is not None:
            raise ValueError(f"api_key_env needs {'an endpoint' if field == 'endpoint' else f'a {field}'}")
        return
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{field} must begin with http:// or https:// and name a host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"{field} must have neither user, password nor query: name a variable in api_key_env")
    if api_key_env is not None and parts.scheme != "https" and not is_here(parts.hostname):
        raise ValueError("a key may be sent to https:// or to this machine only")


def is_here(host: str) -> bool:
    """Whether a URL's host is this machine by a loopback name or address, however it is written."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(name))  # 127.1
        except (OSError, ValueError):
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


class Message(Struct, frozen=True):
    """What the model said."""

    content: str | None = None


class Choice(Struct, frozen=True):
    """One completion."""

    message: Message
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop text that ended it, which `message` lacks; only vLLM says it."""


class Usage(Struct, frozen=True):
    """Tokens, as the server counts them."""

    total_tokens: int = 0
    completion_tokens: int = 0


class ChatCompletion(Struct, frozen=True):
    """A reply to `chat/completions`."""

    choices: list[Choice]
    usage: Usage | None = None
    model: str | None = None


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


class Endpoint:
    """One server. Thread-safe."""

    def __init__(
        self, url: str, api_key_env: str | None, field: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Nothing is asked yet. Raises `ConfigError`, which names `field`, when the key's variable is not set."""
        self._url, self._base = url, url.rstrip("/")
        direct = [ProxyHandler({})] if is_here(urlsplit(url).hostname or "") else []
        self._ends = _Ends()
        self._opener = build_opener(_NoRedirects, _Http(self._ends), _Https(self._ends), *direct)
        self._headers = {"Content-Type": "application/json", **_authorization(api_key_env, field, environment)}

    def chat(self, body: Mapping[str, Any], deadline: float, max_bytes: int = MAX_RESPONSE_BYTES) -> ChatCompletion:
        """Ask for completions, once, until a time of `time.monotonic`. Raises `EndpointError`."""
        return self.post("/chat/completions", body, ChatCompletion, "a chat completion", deadline, max_bytes)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        kind: type[T],
        what: str,
        deadline: float,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> T:
        """Post a body, once, to the address followed by `path`; an error calls the reply `what`.

        Raises `EndpointError`.
        """
        request = Request(
            f"{self._base}{path}" if path else self._url, msgspec.json.encode(body), dict(self._headers), method="POST"
        )
        return self._opened(request, kind, what, deadline, max_bytes)

    def get(self, path: str, kind: type[T], what: str, deadline: float) -> T:
        """What is at a path below the address, which an error calls `what`. Raises `EndpointError`."""
        request = Request(f"{self._base}/{path}", headers=dict(self._headers))
        return self._opened(request, kind, what, deadline, MAX_RESPONSE_BYTES)

    def _opened(self, request: Request, kind: type[T], what: str, deadline: float, max_bytes: int) -> T:
        left = deadline - time.monotonic()
        if left <= 0:
            raise EndpointError("the endpoint took too long")
        timer = self._ends.arm(left)
        try:
            with self._opener.open(request, timeout=left) as response:
                return msgspec.json.decode(_bounded(response, deadline, max_bytes), type=kind)
        except HTTPError as error:
            error.close()
            raise EndpointError(
                f"the endpoint answered {error.code}",
                code=error.code,
                busy=error.code in BUSY,
                retry_after_s=_retry_after_s(error.headers),
            ) from None
        except TimeoutError:
            raise EndpointError("the endpoint took too long") from None
        except (OSError, HTTPException) as error:  # `URLError` is an OSError
            if time.monotonic() >= deadline:
                raise EndpointError("the endpoint took too long") from None
            reason = f"the endpoint cannot be reached: {_in_words(error)}"
            raise EndpointError(reason, busy=True, unreachable=True) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise EndpointError(f"the endpoint's response is not {what}") from None
        except ValueError as error:  # of an address, the settings' or a redirection's
            raise EndpointError(f"the endpoint has no usable address: {_in_words(error)}", unreachable=True) from None
        finally:
            timer.cancel()
            self._ends.close()


def _retry_after_s(headers: EmailMessage[str, str] | None) -> float:
    """Seconds for which a busy server asks not to be asked; 0 if it does not say."""
    text = headers.get("Retry-After", "") if headers is not None else ""
    return min(float(text), MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else 0.0


def _in_words(error: Exception) -> str:
    """What happened, in one short line, without the name of the class around it: a server may have written it."""
    reason = getattr(error, "reason", error)
    said = str(getattr(reason, "strerror", None) or reason or type(error).__name__)
    return " ".join(said.split())[:MAX_REASON_CHARS].lower()


def _bounded(response: IO[bytes], deadline: float, max_bytes: int) -> bytes:
    """The body, within a number of bytes and until the deadline."""
    body = bytearray()
    while True:
        piece = response.read1(PIECE_BYTES)  # type: ignore[attr-defined]
        if time.monotonic() > deadline:  # then the end is none of the reply's: it was hung up on
            raise EndpointError("the endpoint took too long")
        if not piece:
            return bytes(body)
        body += piece
        if len(body) > max_bytes:
            raise EndpointError(f"the endpoint's response is longer than {max_bytes} bytes")


def _authorization(name: str | None, field: str, environment: Mapping[str, str]) -> dict[str, str]:
    if name is None:
        return {}
    key = environment.get(name, "").strip()
    if not key:
        raise ConfigError(f"{field}: the environment variable {name} is not set")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{field}: the environment variable {name} holds no key")
    return {"Authorization": f"Bearer {key}"}
