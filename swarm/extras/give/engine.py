"""An OpenAI-compatible server as an engine: completions are text, without token ids or log-probabilities.

    prompts, turns ──▶ requests, n completions each where the server can ──▶ a thread a request ──▶ answers as they come
                          ▲ again, after a pause                              │
                          └────────────── busy, gone, too few ◀───────────────┘

Nothing that a server does ends a stream but what a person must mend: a wrong key, a model that is gone.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from swarm.endpoint import ChatCompletion, Choice, Endpoint, EndpointSettings
from swarm.errors import ConfigError, EndpointError, Interrupted
from swarm.extras.give.pace import Pace
from swarm.protocols import Turns
from swarm.reasons import Reason
from swarm.sanitize import clean
from swarm.types import (
    Answers,
    Completion,
    Context,
    FinishReason,
    Message,
    NextTurn,
    Past,
    Rejection,
    Sampling,
    in_words,
    observation_text,
)

PROBE_S = 15.0
PROBE = "Say OK."
MOST_LISTED = 8
MAX_SHOWN_CHARS = 80
LOOK_EVERY_S = 0.1
GRACE_S = 5.0
"""A reply that does not keep to its time limit is given up after this."""
MOST_STUCK = 64
"""Requests that were given up and whose threads have not ended; no more begin beyond it."""
MAX_ATTEMPTS = 3
MAX_BYTES_PER_TOKEN = 64
BASE_BYTES = 2**18
MAX_BYTES = 2**26
EMPTY_SHARE = 0.5
ENOUGH = 16
"""Completions before most of them being empty is said."""
ID_BYTES = 16
"""Length of an id of four characters."""
FILTERS = ("top_p", "top_k", "min_p")
WRONG_KEY = (401, 403)


class _Models(Struct, frozen=True):
    data: list[_Model]


class _Model(Struct, frozen=True):
    id: str


class _Request(Struct, eq=False):
    """One question, or one turn of some episodes of it."""

    names: tuple[int, ...]
    """What the stream's caller calls it: one name with `wanted` completions, or as many names."""
    messages: list[dict[str, str]]
    wanted: int
    """Completions of each name: all of one question, or one of each turn."""
    got: list[Completion]
    in_flight: int = 0
    failures: int = 0
    over: bool = False

    @property
    def num_left(self) -> int:
        return len(self.names) * self.wanted - len(self.got) - self.in_flight


class _Sent(Struct, frozen=True):
    request: _Request
    num: int
    """n of it."""
    began: float


def ids_of(text: str) -> tuple[int, ...]:
    """Stand-ins for token ids, one for each four characters: they say about how long a text is, and an episode's past
    consists of ids. They never leave this process."""
    encoded = text.encode("utf-32-le", "surrogatepass")
    return tuple(
        int.from_bytes(encoded[at : at + ID_BYTES] + b"\1", "little") for at in range(0, len(encoded), ID_BYTES)
    )


def text_of(ids: Sequence[int]) -> str:
    """The inverse of `ids_of`."""
    parts = (each.to_bytes(ID_BYTES + 1, "little").rstrip(b"\0")[:-1] for each in ids)
    return b"".join(parts).decode("utf-32-le", "surrogatepass")


def conversation(context: Context, system_prompt: str | None) -> list[dict[str, str]]:
    """The messages so far, as a server is asked them."""
    past = context if isinstance(context, Past) else Past(context, ())
    first = (Message("user", past.prompt),) if isinstance(past.prompt, str) else past.prompt
    messages = [{"role": message.role, "content": message.text} for message in in_words(first)]
    if system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    for step in past.steps:
        messages.append({"role": "assistant", "content": text_of(step.token_ids)})
        messages.append({"role": "user", "content": observation_text(step.observation)})
    return messages


def _answers(request: _Request, rejection: Rejection | None) -> Iterator[tuple[int, Answers]]:
    for place, name in enumerate(request.names):
        own = tuple(request.got[place * request.wanted : (place + 1) * request.wanted])
        yield name, own if rejection is None else rejection


class EndpointEngine:
    """`RolloutEngine` over a server. One stream at a time; `close` abandons what is in flight."""

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        system_prompt: str | None = None,
        max_chars: int = 2**20,
        patience_s: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        note: Callable[[str, str], None] = lambda text, level: None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Nothing is asked yet. Longer texts are cut at `max_chars`. A server that is gone or busy is awaited for
        `patience_s`, by default for ever. `note` takes lines for people, with their level. Raises `ConfigError`.
        """
        if settings.url is None or settings.model is None:
            raise ConfigError("name the server and its model: --endpoint http://127.0.0.1:8000/v1 --model NAME")
        self._endpoint = Endpoint(settings.url, settings.api_key_env, "endpoint.api_key_env", environment)
        self._url = settings.url
        self._model = settings.model
        self._key = settings.api_key_env
        self._time_limit_s = settings.time_limit_s
        self._system_prompt = system_prompt
        self._max_chars = max_chars
        self._patience_s = patience_s
        self._cancelled = cancelled
        self._note = note
        self._pace = Pace(settings.requests_at_once)
        self._one_by_one = False
        """Whether the server gives one completion a request, whatever `n` asks for."""
        self._num_stuck = 0
        self._away_since: float | None = None
        self._num_completions = self._num_empty = 0
        self.num_tokens = 0
        """Tokens of all completions, as the server counts them, else a fourth of the characters."""

    @property
    def requests_at_once(self) -> int:
        """Requests in flight at the present pace."""
        return self._pace.limit

    def use(self, note: Callable[[str, str], None]) -> None:
        """Put lines for people there from now on."""
        self._note = note

    def probe(self) -> str:
        """Ask for one token; the model's name as the server reports it. Raises `EndpointError`, and says what to do."""
        deadline = time.monotonic() + min(PROBE_S, self._time_limit_s)
        # A server loads a model at the first question, which takes a while: its list comes at once.
        listed = self._listed(deadline)
        try:
            reply = self._endpoint.chat(
                {"model": self._model, "messages": [{"role": "user", "content": PROBE}], "max_tokens": 1},
                time.monotonic() + self._time_limit_s,
            )
        except EndpointError as error:
            raise self._explained(error, listed) from None
        if not reply.choices:
            raise EndpointError(
                f"{self._url} answers without a completion (no choices): is {self._model} a chat model?"
            )
        return reply.model or self._model

    def check(self, sampling: Sampling) -> None:
        """Every sampling can be asked for."""

    def generate(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> list[Answers]:
        """See `RolloutEngine`; the server draws, whatever the seed."""
        answers = dict(self.stream(prompts, num_completions, sampling, seed))
        return [answers[index] for index in range(len(prompts))]

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """See `RolloutEngine`. Raises `EndpointError` for what a person must mend, `Interrupted`."""
        waiting = deque(
            _Request((index,), conversation(prompt, self._system_prompt), num_completions, [])
            for index, prompt in enumerate(prompts)
        )
        in_flight: dict[int, _Sent] = {}
        replies: queue.SimpleQueue[tuple[int, ChatCompletion | EndpointError]] = queue.SimpleQueue()
        number = 0
        while True:
            if self._cancelled():
                raise Interrupted("stopped while the endpoint was asked")
            if turns is not None and len(waiting) + len(in_flight) < self._pace.limit + 1:
                waiting += self._requests(turns.next_turns(wait=not (waiting or in_flight)))
            if not (waiting or in_flight):
                return
            now = time.monotonic()
            while waiting and len(in_flight) < self._pace.limit and now >= self._pace.resumes_at:
                if (request := waiting[0]).over or request.num_left <= 0:
                    waiting.popleft()
                    continue
                sent = _Sent(request, 1 if self._one_by_one else request.num_left, now)
                request.in_flight += sent.num
                in_flight[number] = sent
                self._send(number, sent, sampling, replies)
                number += 1
            for key, reply in self._received(replies, in_flight):
                sent = in_flight.pop(key)
                request = sent.request
                request.in_flight -= sent.num
                if request.over:
                    continue
                if isinstance(reply, EndpointError):
                    rejection = self._failed(request, sent, reply)
                else:
                    rejection = self._replied(request, sent, reply, sampling)
                if rejection is not None or request.num_left + request.in_flight <= 0:
                    request.over = True
                    yield from _answers(request, rejection)
                elif request not in waiting:
                    waiting.appendleft(request)

    def close(self) -> None:
        """Nothing is held: threads end with their requests."""

    def _requests(self, ready: Sequence[NextTurn]) -> list[_Request]:
        """A request for each turn; one for all first turns of a question."""
        names: dict[int, list[int]] = {}
        contexts: dict[int, Context] = {}
        for turn in ready:
            names.setdefault(id(turn.context), []).append(turn.episode)
            contexts[id(turn.context)] = turn.context
        return [
            _Request(tuple(episodes), conversation(contexts[key], self._system_prompt), 1, [])
            for key, episodes in names.items()
        ]

    def _send(
        self,
        number: int,
        sent: _Sent,
        sampling: Sampling,
        replies: queue.SimpleQueue[tuple[int, ChatCompletion | EndpointError]],
    ) -> None:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": sent.request.messages,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
        }
        if sent.num > 1:
            body["n"] = sent.num
        body |= {name: value for name in FILTERS if (value := getattr(sampling, name)) not in (0, 1)}
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        most = min(MAX_BYTES, BASE_BYTES + MAX_BYTES_PER_TOKEN * sent.num * sampling.max_new_tokens)
        deadline = sent.began + self._time_limit_s

        def ask() -> None:
            try:
                replies.put((number, self._endpoint.chat(body, deadline, most)))
            except EndpointError as error:
                replies.put((number, error))

        # A thread that a server holds must not hold the process: no pool, which would wait for it at the end.
        threading.Thread(target=ask, name="endpoint", daemon=True).start()

    def _received(
        self, replies: queue.SimpleQueue[tuple[int, ChatCompletion | EndpointError]], in_flight: Mapping[int, _Sent]
    ) -> list[tuple[int, ChatCompletion | EndpointError]]:
        """Replies to requests in flight, after a moment perhaps none; those long overdue have failed."""
        found: list[tuple[int, ChatCompletion | EndpointError]] = []
        try:
            reply = replies.get(timeout=LOOK_EVERY_S)
            while True:
                if reply[0] in in_flight:
                    found.append(reply)
                else:
                    self._num_stuck -= 1
                reply = replies.get_nowait()
        except queue.Empty:
            pass
        here = {number for number, _ in found}
        overdue_at = time.monotonic() - self._time_limit_s - GRACE_S
        overdue = [number for number, sent in in_flight.items() if number not in here and sent.began < overdue_at]
        self._num_stuck += len(overdue)
        if self._num_stuck > MOST_STUCK:
            raise EndpointError(f"{self._url} holds {self._num_stuck} requests without an end: restart the server")
        return [*found, *((number, EndpointError("the endpoint took too long")) for number in overdue)]

    def _failed(self, request: _Request, sent: _Sent, error: EndpointError) -> Rejection | None:
        """What becomes of a question; None: it is asked again. Raises `EndpointError` for what a person must mend."""
        now = time.monotonic()
        if error.busy:
            self._pace.setback(now, error.retry_after_s)
            if error.code is None or error.code != 429:
                self._is_away(error, now)
            return None
        if error.code in WRONG_KEY or error.code == 404:
            raise self._explained(error, None)
        if sent.num > 1:  # it may refuse `n`, or several completions may take too long
            self._one_by_one = True
        request.failures += 1
        if request.failures < MAX_ATTEMPTS:
            return None
        self._note(f"a question is left out: {error} ({self._remedy(error)})", "warning")
        return Rejection(Reason.UNANSWERED, str(error))

    def _is_away(self, error: EndpointError, now: float) -> None:
        """Say so once; give up when patience ends."""
        if self._away_since is None:
            self._away_since = now
            self._note(f"{error}; asking again until it answers: {self._url}", "warning")
        elif self._patience_s is not None and now - self._away_since > self._patience_s:
            raise EndpointError(f"{error}, for {self._patience_s:g} s now: {self._url}", busy=True)

    def _replied(self, request: _Request, sent: _Sent, reply: ChatCompletion, sampling: Sampling) -> Rejection | None:
        """Keep the completions of a reply."""
        if self._away_since is not None:
            self._away_since = None
            self._note("the endpoint answers again", "info")
        usable = [found for choice in reply.choices[: sent.num] if (found := self._completion(choice)) is not None]
        request.got += usable
        chars = sum(len(each.text) for each in usable)
        counted = reply.usage.completion_tokens if reply.usage else 0
        tokens = counted if counted > 0 else chars // 4 + 1
        self.num_tokens += tokens
        self._pace.reply(time.monotonic() - sent.began, tokens / max(1, len(usable)))
        if len(usable) < sent.num:
            if usable:
                self._one_by_one = self._one_by_one or len(reply.choices) == 1
            else:
                return self._failed(request, sent, EndpointError("the endpoint's reply has no usable completion"))
        self._look_for_empty(usable, sampling)
        return None

    def _completion(self, choice: Choice) -> Completion | None:
        """None for one that was cut by something else than its end or length."""
        text, reason = choice.message.content or "", choice.finish_reason
        if reason not in ("stop", "length", None, "eos"):
            return None
        finish: FinishReason = "length" if reason == "length" else "stop"
        if isinstance(choice.stop_reason, str) and finish == "stop":
            text, finish = text + choice.stop_reason, "stop_sequence"  # stop texts remain in a completion
        if len(text) > self._max_chars:
            text, finish = text[: self._max_chars], "length"
        return Completion(text, finish, ids_of(text))

    def _look_for_empty(self, completions: Sequence[Completion], sampling: Sampling) -> None:
        """Say once that most are empty."""
        if self._num_completions >= ENOUGH:
            return
        self._num_completions += len(completions)
        self._num_empty += sum(not each.text.strip() for each in completions)
        if self._num_completions >= ENOUGH and self._num_empty > EMPTY_SHARE * self._num_completions:
            self._note(
                f"most answers of {self._model} are empty: if it thinks before it answers, turn that off at the server "
                f"or raise generation.max_new_tokens, now {sampling.max_new_tokens}",
                "warning",
            )

    def _listed(self, deadline: float) -> list[str] | None:
        """Names of the server's models; None if it lists none. Raises `EndpointError` if it cannot be reached."""
        try:
            return [each.id for each in self._endpoint.get("models", _Models, "a list of models", deadline).data]
        except EndpointError as error:
            if error.unreachable or error.code in WRONG_KEY:
                raise self._explained(error, None) from None
            return None

    def _explained(self, error: EndpointError, listed: Sequence[str] | None) -> EndpointError:
        """An error with what to do."""
        return EndpointError(f"{error}: {self._remedy(error, listed)}", code=error.code)

    def _remedy(self, error: EndpointError, listed: Sequence[str] | None = None) -> str:
        if error.unreachable:
            return f"start the server, or correct --endpoint {self._url}"
        if error.code in WRONG_KEY:
            return (
                f"the key in {self._key} is not accepted by {self._url}"
                if self._key
                else f"{self._url} wants a key: name its environment variable in --endpoint.api_key_env"
            )
        if error.code == 404:
            if listed is None:
                return f"{self._url} knows no model {self._model}, or has another path: most end in /v1"
            names = ", ".join(clean(name, MAX_SHOWN_CHARS) for name in listed[:MOST_LISTED]) or "none"
            more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
            return f"{self._url} has no model {self._model}; it has {names}{more}"
        if error.code == 400:
            return f"the server refuses the question: is {self._model} a chat model with room for it?"
        if "too long" in str(error):
            return (
                "lower generation.max_new_tokens, or raise endpoint.time_limit_s, now "
                f"{self._time_limit_s:g}: a model that never ends is cut off there"
            )
        return f"is {self._url} an OpenAI-compatible address? Most end in /v1"
