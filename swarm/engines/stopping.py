"""Detects the end of a completion and its reason."""

from __future__ import annotations

from swarm.errors import SamplingError
from swarm.policy.loading import Policy
from swarm.types import FinishReason, Sampling

UNDECODABLE = "\N{REPLACEMENT CHARACTER}"


class Stops:
    """End tokens, stop tokens and stop texts of one call."""

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
        """Raises `SamplingError` for a stop token that the tokenizer lacks."""
        self._policy = policy
        self._texts = sampling.stop
        self._limit = sampling.max_new_tokens
        vocabulary = policy.tokenizer.get_vocab() if sampling.stop_tokens else {}
        for name in sampling.stop_tokens:
            if name not in vocabulary:
                raise SamplingError(f"stop_tokens: the tokenizer of {policy.name} has no token {name!r}")
        self.token_ids = policy.stop_ids | {vocabulary[name] for name in sampling.stop_tokens}
        """Every token that ends a completion."""
        self._tokens = frozenset(vocabulary[name] for name in sampling.stop_tokens)
        self._last_characters = {text[-1] for text in self._texts}
        self._suspicious: dict[int, bool] = {}

    def reason(self, ids: list[int]) -> FinishReason | None:
        """Why a completion ends with the last of `ids`; None when it continues. Call it after every token."""
        token = ids[-1]
        if token in self._policy.stop_ids:
            return "stop"
        if token in self._tokens or (self._texts and self._completes_text(ids)):
            return "stop_sequence"
        return "length" if len(ids) >= self._limit else None

    def _completes_text(self, ids: list[int]) -> bool:
        """Decode only after tokens that can end a stop text: decoding every time would cost as much as sampling."""
        if ids[-1] not in self._suspicious:
            # Twice, because a tokenizer may drop the space before the first token of a text.
            text = self._policy.decode(ids[-1:] * 2)
            # A single token may be part of a character, or show nothing: then decode the whole text.
            unclear = not text.strip() or UNDECODABLE in text
            self._suspicious[ids[-1]] = unclear or any(character in text for character in self._last_characters)
        if not self._suspicious[ids[-1]]:
            return False
        text = self._policy.decode(ids)
        return any(stop in text for stop in self._texts)
