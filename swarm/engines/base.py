"""Shared by all engines: token ids of contexts, stop criteria, and a base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence

from swarm.engines.sampling import check_sampling
from swarm.errors import Interrupted, SamplingError
from swarm.lru import LruDict
from swarm.policy.loading import Policy
from swarm.policy.media.features import joined
from swarm.policy.thinking import Prompted, Thinking
from swarm.protocols import RolloutEngine, Turns
from swarm.reasons import Reason
from swarm.types import Answers, Context, FinishReason, NextTurn, Past, Prompt, Rejection, Sampling, media_of
from swarm.types.media import Media, modality

UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
MOST_RECENT = 1024
"""Entries kept by prompt or episode: a call may last as long as the node."""


class Stops:
    """End tokens, stop tokens and stop texts of one call."""

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
        """Raises `SamplingError` for a stop token that the tokenizer lacks, and for a limit of thoughts that are not
        found or leave no room for an answer."""
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
        self._thinking = _limited(policy, sampling)
        self.thinking_limit = sampling.max_thinking_tokens if self._thinking is not None else 0
        """Tokens after which a thought is ended; 0 where there is no limit, or no thought."""

    def end_of_thought(self, ids: list[int]) -> list[int]:
        """The tokens that end a thought now; none where it goes on, or there is none. Call it after every token."""
        if self._thinking is None or len(ids) != self.thinking_limit or not self._thinking.is_open(ids):
            return []
        return self._thinking.end

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


def _limited(policy: Policy, sampling: Sampling) -> Thinking | None:
    """How the policy marks thoughts of limited length; None where there is no limit. Raises `SamplingError`."""
    limit = sampling.max_thinking_tokens
    if not limit:
        return None
    thinking = policy.thinking
    if thinking is None or not thinking.by_token:
        raise SamplingError(
            f"max_thinking_tokens is {limit}, but {policy.name} has no tokens that mark a thought: set it to 0, or "
            "name them in policy.thinking_marks"
        )
    if limit + len(thinking.end) >= sampling.max_new_tokens:
        raise SamplingError(
            f"max_thinking_tokens must leave room for an answer within max_new_tokens {sampling.max_new_tokens}, got "
            f"{limit}"
        )
    return None if thinking.prompted is Prompted.OFF else thinking


class Contexts:
    """The prompts and turns of one call."""

    def __init__(self, policy: Policy, max_new_tokens: int, room: tuple[str, int]) -> None:
        """Each grows by at most `max_new_tokens`. `room`: name and tokens of the other limit, besides the policy's."""
        self._policy = policy
        self._max_new_tokens = max_new_tokens
        self._room = room
        self._starts = LruDict[Prompt, list[int]](MOST_RECENT)
        """Ids of episodes' first prompts, which several may share."""
        self._pasts = LruDict[int, tuple[Past, list[int]]](MOST_RECENT)
        """The context of an episode's last turn and its ids, by episode."""

    def prompt(self, index: int, prompt: Context) -> list[int] | Rejection:
        """The ids of one prompt."""
        if unread := self._unreadable(prompt):
            return unread
        return self._fitting(f"prompt {index}", self._policy.encode(prompt))

    def turn(self, turn: NextTurn) -> list[int] | Rejection:
        """The ids of an episode's turn; only steps since its last turn are tokenized."""
        context = turn.context
        if unread := self._unreadable(context):
            return unread
        ids = self._continued(turn.episode, context) if isinstance(context, Past) else self._start(context)
        return self._fitting(f"turn {turn.number} of episode {turn.episode}", ids)

    def _unreadable(self, context: Context) -> Rejection | None:
        """A refusal if the policy cannot read all media of a context."""
        last = context.steps[-1:] if isinstance(context, Past) else ()
        parts = [*media_of(context.prompt if isinstance(context, Past) else context)]
        parts += [part for step in last for part in step.observation if isinstance(part, Media)]
        missing = {modality(part) for part in parts} - self._policy.modalities
        if not missing:
            return None
        return Rejection(Reason.CANNOT_PERCEIVE, f"{self._policy.name} cannot read {', '.join(sorted(missing))}")

    def _start(self, prompt: Prompt) -> list[int]:
        if prompt not in self._starts:
            self._starts[prompt] = self._policy.encode(prompt)
        return self._starts[prompt]

    def _continued(self, episode: int, past: Past) -> list[int]:
        known, ids = self._pasts.get(episode, (None, []))
        if known is None or known != Past(past.prompt, past.steps[: len(known.steps)]):
            known, ids = Past(past.prompt, ()), self._start(past.prompt)
        ids = joined([ids, self._policy.encode_steps(past.steps[len(known.steps) :])])
        self._pasts[episode] = past, ids
        return ids

    def _fitting(self, what: str, ids: list[int]) -> list[int] | Rejection:
        if not ids:
            return Rejection(Reason.PROMPT_EMPTY, f"{what} has no tokens")
        needed = len(ids) + self._max_new_tokens
        asked = f"{what} has {len(ids)} tokens and may grow by {self._max_new_tokens}"
        if needed > self._policy.max_positions:
            return Rejection(Reason.PROMPT_TOO_LONG, f"{asked}, {self._policy.name} has {self._policy.positions}")
        whose, most = self._room
        if needed > most:
            return Rejection(Reason.PROMPT_TOO_LONG, f"{asked}, {whose} has room for {most}")
        return ids


class PolicyEngine(ABC):
    """Base of a `RolloutEngine` for one policy; subclasses implement the generation."""

    def __init__(self, policy: Policy) -> None:
        """`policy` validates sampling settings."""
        self._policy = policy

    def check(self, sampling: Sampling) -> None:
        """Raises `SamplingError` for settings that do not work with this policy."""
        self._stops(sampling)

    def generate(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> list[Answers]:
        """G completions for each of P prompts, [P][G], or a `Rejection`. See `RolloutEngine`."""
        answers = dict(self.stream(prompts, num_completions, sampling, seed))
        return [answers[i] for i in range(len(prompts))]

    @abstractmethod
    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Yield each prompt's index and its G completions as soon as they are complete. See `RolloutEngine`."""

    def _stops(self, sampling: Sampling) -> Stops:
        check_sampling(sampling)
        return Stops(self._policy, sampling)


class SharedEngine(PolicyEngine):
    """A `RolloutEngine` that every rank calls with the same arguments; every rank gets all answers."""

    def __init__(self, engine: RolloutEngine, policy: Policy) -> None:
        """`engine` generates with `policy`, on this rank."""
        super().__init__(policy)
        self._engine = engine

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Yield this rank's groups as they complete, then those of the others.

        See `RolloutEngine`. Raises `Interrupted` on every rank if one was interrupted. Samples depend on the number of
        ranks. Several ranks leave `turns` to the caller: they would have to agree on what is ready.
        """
        ranks = self._policy.ranks
        if ranks.size == 1:
            yield from self._engine.stream(prompts, num_completions, sampling, seed, turns)
            return
        mine = range(ranks.rank, len(prompts), ranks.size)
        own: dict[int, Answers] = {}
        parts: list[dict[int, Answers] | None]
        with ranks.gathered():
            try:
                asked = [prompts[i] for i in mine]
                for i, answers in self._engine.stream(asked, num_completions, sampling, seed + ranks.rank):
                    own[mine[i]] = answers
                    yield mine[i], answers
            except (Interrupted, GeneratorExit):
                ranks.gather(None)  # tell the other ranks
                raise
        parts = [*ranks.gather(own)]
        for rank, part in enumerate(parts):
            if part is None:
                raise Interrupted("generation was cancelled")
            if rank != ranks.rank:
                yield from part.items()
