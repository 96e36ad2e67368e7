"""A judge behind an OpenAI-compatible server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from swarm.endpoint import ChatCompletion, Endpoint
from swarm.environments.judge import JudgeSettings
from swarm.errors import EndpointError
from swarm.extras.judging.prompts import MAX_ERROR_CHARS, SYSTEM, Query, Ratings, number_in

RETRY_AFTER_S = (0.2, 1.0)
"""Pauses before another attempt where the server is busy or fails."""
CHARS_PER_TOKEN = 4
MAX_TOKENS = 2**32
"""Of one request; a larger count is not believed."""


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
        try:
            response = self._asked(query, deadline)
        except EndpointError as error:
            return Ratings((None,), unanswered=1, error=str(error))
        text = response.choices[0].message.content or "" if response.choices else ""
        counted = response.usage.total_tokens if response.usage else 0
        tokens = counted if 0 < counted <= MAX_TOKENS else (len(query.prompt) + len(text)) // CHARS_PER_TOKEN
        number = number_in(text, query)
        return Ratings((number,), tokens, error="" if number is not None else "a reply did not end with its number")

    def _asked(self, query: Query, deadline: float) -> ChatCompletion:
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": query.prompt}],
            "temperature": query.temperature,
            "max_tokens": query.max_new_tokens,
        }
        for pause in (*RETRY_AFTER_S, None):
            try:
                return self._endpoint.chat(body, deadline)
            except EndpointError as error:
                if not error.busy or pause is None or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")
