"""A judge behind an OpenAI-compatible server, and a reward service: asked over HTTP."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TypeVar

from msgspec import Struct

from swarm.endpoint import Endpoint
from swarm.environments.judge import JudgeSettings, RewardServiceSettings
from swarm.errors import EndpointError
from swarm.extras.judging.prompts import MAX_ERROR_CHARS, SYSTEM, Query, Rated, Ratings, number_in

RETRY_AFTER_S = (0.2, 1.0)
"""Pauses before another attempt where the server is busy or fails."""
CHARS_PER_TOKEN = 4
MAX_TOKENS = 2**32
"""Most tokens of one request; a larger count is not believed."""

T = TypeVar("T")


def patiently(ask: Callable[[], T], deadline: float) -> T:
    """What `ask` returns, asked again after a pause where the server is busy. Raises `EndpointError`."""
    for pause in (*RETRY_AFTER_S, None):
        try:
            return ask()
        except EndpointError as error:
            if not error.busy or pause is None or time.monotonic() + max(pause, error.retry_after_s) > deadline:
                raise
            time.sleep(max(pause, error.retry_after_s))
    raise AssertionError("the last attempt returns or raises")


class EndpointJudge:
    """Asks a server, several requests at once."""

    def __init__(self, settings: JudgeSettings, environment: Mapping[str, str] = os.environ) -> None:
        """Nothing is asked yet. Raises `ConfigError` when the key's variable is not set."""
        assert settings.endpoint is not None
        self._endpoint = Endpoint(settings.endpoint, settings.api_key_env, "judge.api_key_env", environment)
        self._model = settings.model
        self._time_limit_s = settings.time_limit_s
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
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": query.prompt}],
            "temperature": query.temperature,
            "max_tokens": query.max_new_tokens,
        }
        try:
            response = patiently(lambda: self._endpoint.chat(body, deadline), deadline)
        except EndpointError as error:
            return Ratings((None,), unanswered=1, error=str(error))
        text = response.choices[0].message.content or "" if response.choices else ""
        counted = response.usage.total_tokens if response.usage else 0
        tokens = counted if 0 < counted <= MAX_TOKENS else (len(query.prompt) + len(text)) // CHARS_PER_TOKEN
        number = number_in(text, query)
        return Ratings((number,), tokens, error="" if number is not None else "a reply did not end with its number")


class Rewards(Struct, frozen=True):
    """What a reward service replies."""

    rewards: list[float]


class RewardService:
    """Asks a service, several batches at once."""

    def __init__(self, settings: RewardServiceSettings, environment: Mapping[str, str] = os.environ) -> None:
        """Nothing is asked yet. Raises `ConfigError` when the key's variable is not set."""
        assert settings.url is not None
        field = "reward_service.api_key_env"
        self._endpoint = Endpoint(settings.url, settings.api_key_env, field, environment)
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.requests_at_once, "rewards")

    def answer(self, queries: Sequence[Rated]) -> Ratings:
        """What the service gives for each completion; fails for none of them longer than the time limit.

        A request is about completions of one task and model. Its reply counts as a whole or not at all.
        """
        deadline = time.monotonic() + self._settings.time_limit_s
        places = sorted(range(len(queries)), key=lambda k: (queries[k].model, queries[k].task))
        batches = [
            same[first : first + self._settings.batch]
            for _, found in groupby(places, lambda k: (queries[k].model, queries[k].task))
            for same in [list(found)]
            for first in range(0, len(same), self._settings.batch)
        ]
        numbers: list[float | None] = [None] * len(queries)
        error = ""
        replies = self._threads.map(lambda batch: self._one([queries[k] for k in batch], deadline), batches)
        for batch, found in zip(batches, replies, strict=True):
            if isinstance(found, EndpointError):
                error = error or str(found)[:MAX_ERROR_CHARS]
                continue
            for place, number in zip(batch, found, strict=True):
                numbers[place] = number
        return Ratings(tuple(numbers), unanswered=numbers.count(None), error=error)

    def _one(self, batch: Sequence[Rated], deadline: float) -> list[float] | EndpointError:
        body = {
            "model": batch[0].model,
            "task": batch[0].task,
            "prompts": [each.prompt for each in batch],
            "completions": [each.completion for each in batch],
        }
        try:
            found = patiently(lambda: self._endpoint.post("", body, Rewards, "a list of rewards", deadline), deadline)
        except EndpointError as error:
            return error
        if len(found.rewards) != len(batch):
            return EndpointError(f"the service gave {len(found.rewards)} rewards for {len(batch)} completions")
        if not all(map(math.isfinite, found.rewards)):
            return EndpointError("the service gave a reward that is not finite")
        return found.rewards
