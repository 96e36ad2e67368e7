"""A judge that is a local transformers model, with the project's own engine."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.environments.judge import JudgeSettings
from swarm.errors import SwarmError
from swarm.extras.judging.prompts import MAX_ERROR_CHARS, SYSTEM, Query, Ratings, number_in
from swarm.policy.config import PolicySettings
from swarm.policy.loading import load_policy
from swarm.types import Rejection, Sampling


class LocalJudge:
    """Answers all queries of a call together."""

    def __init__(self, settings: JudgeSettings) -> None:
        """Load the model. Raises `PolicyError`, `ConfigError`, `EngineError`."""
        assert settings.model is not None
        self._policy = load_policy(PolicySettings(model=settings.model, device=settings.device, system_prompt=SYSTEM))
        self._engine = TransformersEngine(
            self._policy, GenerationSettings(max_batch_sequences=settings.requests_at_once)
        )
        special = {str(token) for token in self._policy.tokenizer.all_special_tokens}
        self._special = sorted((token for token in special if len(token) > 1), key=len, reverse=True)

    def answer(self, queries: Sequence[Query]) -> Ratings:
        """The numbers in the replies."""
        numbers: dict[Query, int | None] = {}
        tokens = unanswered = 0
        error = ""
        for settings in dict.fromkeys((query.temperature, query.max_new_tokens) for query in queries):
            same = [query for query in queries if (query.temperature, query.max_new_tokens) == settings]
            temperature, max_new_tokens = settings
            greedy = temperature == 0
            sampling = Sampling(temperature or 1.0, top_k=1 if greedy else 0, max_new_tokens=max_new_tokens)
            prompts = [self._plain(query.prompt) for query in same]
            tokens += sum(len(self._policy.encode_prompt(prompt)) for prompt in prompts)
            try:
                replies = self._engine.generate(prompts, 1, sampling, seed=0)
            except SwarmError as problem:
                unanswered, error = unanswered + len(same), str(problem)
                continue
            for query, reply in zip(same, replies, strict=True):
                if isinstance(reply, Rejection):
                    error = f"{reply.reason}: {reply.detail}"
                    continue
                tokens += len(reply[0].token_ids)
                numbers[query] = number_in(reply[0].text, query)
        missing = any(numbers.get(query) is None for query in queries)
        return Ratings(
            numbers=tuple(numbers.get(query) for query in queries),
            tokens=tokens,
            unanswered=unanswered,
            error=(error or "a reply did not end with its number")[:MAX_ERROR_CHARS] if missing else "",
        )

    def _plain(self, prompt: str) -> str:
        """The prompt without special tokens of this model, which the chat template's own tokens must not meet."""
        for token in self._special:
            prompt = prompt.replace(token, f"{token[0]} {token[1:]}")
        return prompt
