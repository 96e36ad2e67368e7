"""How completions are sampled, and what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, zip_longest
from typing import Annotated, Literal

from msgspec import Meta, Struct

from swarm.types.bounds import (
    MAX_RESULT_CHARS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TURNS,
    Count,
    Fraction,
    LogProb,
    Name,
    Positive,
    complete,
)
from swarm.types.calls import MAX_CALLS
from swarm.types.questions import Actions, Observation, observation_text
from swarm.types.thoughts import parts_of


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How completions were sampled. The wire carries only values that differ from the defaults."""

    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] = 1.0
    top_p: Fraction = 1.0
    """Keep the most likely tokens whose probabilities sum to this; 1: all."""
    max_new_tokens: Count = 256
    top_k: Count = 0
    """Keep the k most likely tokens; 0: all."""
    min_p: Fraction = 0.0
    """Keep tokens whose probability is at least this fraction of the most likely token's; 0: all."""
    stop: Annotated[tuple[Name, ...], Meta(max_length=MAX_STOPS)] = ()
    """Texts that end a completion and remain in it."""
    stop_tokens: Annotated[tuple[Name, ...], Meta(max_length=MAX_STOPS)] = ()
    """Names of tokens that end a completion, besides the policy's own end tokens."""
    max_thinking_tokens: Count = 0
    """Tokens after which the engine ends a thought; 0: it never does."""

    @property
    def is_filtered(self) -> bool:
        """Whether tokens are drawn from less than the whole distribution."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def distribution(self) -> tuple[float, float, int, float]:
        """All that decides from which distribution a token is drawn."""
        return self.temperature, self.top_p, self.top_k, self.min_p


class VersionSpan(Struct, frozen=True):
    """Adjacent tokens of a completion that the same policy version sampled."""

    version: Count
    num_tokens: Positive


def merged(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """The spans with neighbours of one version as one."""
    return tuple(
        VersionSpan(version, sum(span.num_tokens for span in same))
        for version, same in groupby(spans, lambda span: span.version)
    )


FinishReason = Literal["stop", "stop_sequence", "length"]
"""`stop`: the policy's own end token; `stop_sequence`: a stop text or token of `Sampling`; `length`: cut off."""


class Turn(Struct, frozen=True, omit_defaults=True):
    """The part of a completion's text and tokens that belongs to one of the policy's turns."""

    num_chars: Count
    num_tokens: Count
    """0 without token ids."""
    finish_reason: FinishReason
    forced: Count | None = None
    """See `Completion`; an index within the turn."""


class Completion(Struct, frozen=True, omit_defaults=True):
    """One answer, the same from every engine and on the wire: all that the policy said in an episode, and nothing else.

    The swarm shares `text`; ids and log-probabilities serve peers with the same tokenizer. Texts and tokens of several
    turns follow each other; what the environment answered is recomputed where it is needed.
    """

    text: str
    finish_reason: FinishReason
    """How the last turn ended."""
    token_ids: tuple[Count, ...] = ()
    logprobs: tuple[LogProb, ...] = ()
    """[T] log-probabilities of `token_ids` under the distribution they were sampled from."""
    versions: tuple[VersionSpan, ...] = ()
    """The policy version that sampled each of the T tokens, in order; weights may change within a completion."""
    routing: bytes = b""
    """The experts that routed the prompt and the completion except its last token, as `swarm/policy/experts.py` stores
    them; never shared."""
    turns: Annotated[tuple[Turn, ...], Meta(max_length=MAX_TURNS)] = ()
    """Empty: a single turn."""
    observed: Name = ""
    """Digest of the observations between the turns, as `swarm/groups/episodes.py` computes it; empty for a single
    turn."""
    told: Annotated[
        tuple[Annotated[str, Meta(max_length=MAX_RESULT_CHARS)], ...], Meta(max_length=MAX_TURNS * MAX_CALLS)
    ] = ()
    """Texts of the `ToolResult` parts of an episode that no receiver can replay, in order. Empty in all others."""
    forced: Count | None = None
    """Tokens before the end of the thought that the engine inserted (`Sampling.max_thinking_tokens`); None where it
    inserted none. The text has its mark; ids, log-probabilities and versions have only what was sampled."""

    def by_turn(self) -> tuple[Completion, ...]:
        """Text, finish reason, ids and log-probabilities of each turn."""
        if not self.turns:
            return (self,)
        parts = []
        chars = tokens = 0
        for turn in self.turns:
            text = slice(chars, chars := chars + turn.num_chars)
            ids = slice(tokens, tokens := tokens + turn.num_tokens)
            parts.append(
                Completion(
                    self.text[text], turn.finish_reason, self.token_ids[ids], self.logprobs[ids], forced=turn.forced
                )
            )
        return tuple(parts)

    @property
    def actions(self) -> Actions:
        """The actions that the environment receives."""
        return tuple(turn.text for turn in self.by_turn()) if self.turns else self.text


Speaker = Literal["thought", "policy", "environment"]
"""`thought`: the policy, before its answer."""


def dialogue(completion: Completion, observations: Sequence[Observation]) -> list[tuple[Speaker, str]]:
    """What was said in turns, by whom. What the environment answered to the last turn, if anything, nobody reads."""
    found: list[tuple[Speaker, str]] = []
    turns = completion.by_turn()
    for turn, shown in zip_longest(turns, observations[: len(turns) - 1]):
        thought, answer = parts_of(turn.text)
        found += [] if thought is None else [("thought", thought)]
        found += [] if answer is None else [("policy", answer)]
        found += [] if shown is None else [("environment", observation_text(shown))]
    return found


class Sample(Struct, frozen=True):
    """A held-out question with a node's own answer, shortened, for people."""

    question: str
    completion: str
    correct: bool
    pictures: tuple[bytes, ...] = ()
    """Small PNGs of the question's first pictures and clips."""
    expected: str = ""
    """See `Grade`."""
    found: str | None = None
    """What counted as the answer; empty where there was none, None where none was looked for."""


complete(globals())
