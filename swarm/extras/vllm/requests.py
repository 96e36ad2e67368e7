"""Pending requests of one call of the engine to vLLM, with features of media from the policy's own encoder.

vLLM's encoders resize images with other libraries and compute in another order, and each family would need its own
translation of the processor's output; features need none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import count

import torch
from msgspec import Struct
from msgspec.structs import replace

from swarm.engines.base import Contexts, Stops
from swarm.engines.sampling import completion_seed
from swarm.errors import EngineError
from swarm.extras.vllm.messages import Add, Features, Placed, Reads, Sampled, Unanswered, Wanted
from swarm.policy.loading import Policy
from swarm.policy.media.features import TokenIds, joined, runs
from swarm.reasons import Reason
from swarm.types import Answers, Completion, Context, NextTurn, Rejection, Sampling, merged

SEEDS = 2**63
"""vLLM's seeds are below this."""


def reads_of(policy: Policy) -> Reads | None:
    """The policy's modalities for vLLM; None for text only."""
    if policy.media is None:
        return None
    return Reads(policy.media.reader.kinds, policy.media.has_layers)


def features(policy: Policy, call: int, number: int) -> Features:
    """The features of a medium, computed now unless the policy has them already."""
    assert policy.media is not None
    medium = policy.media.reader[number]
    with policy.compute(), torch.no_grad():
        computed = policy.media.encoder.features(medium, policy.gate.changes)
    found = computed.flatten(1).to("cpu", policy.compute_dtype).contiguous()
    grid = medium.inputs["image_grid_thw"].flatten().tolist() if policy.media.has_grid else []
    content = found.view(torch.uint8).numpy().tobytes()
    return Features(call, number, medium.kind, (found.shape[0], found.shape[1]), content, tuple(grid))


def has_media(ids: Sequence[int]) -> bool:
    """Whether a prompt has media."""
    return isinstance(ids, TokenIds)


def named(policy: Policy, ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a prompt with media, with the model's own token at the positions of features."""
    assert policy.media is not None
    found = list(ids)
    for run in runs(ids):
        token = policy.media.reader.feature_id(policy.media.reader[run.number].kind)
        found[run.start : run.start + run.length] = [token] * run.length
    return tuple(found)


def placed(ids: Sequence[int]) -> tuple[Placed, ...]:
    """The media in a prompt, in order."""
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for run in runs(ids):
        if run.first == 0:
            found.append((run.number, []))
        found[-1][1].append((run.start, run.length))
    return tuple(Placed(number, tuple(each)) for number, each in found)


class _Begun(Struct, frozen=True):
    """The part of a completion up to the limit of its thought."""

    group: int
    """Name of its prompt or turn."""
    completion: int
    sampled: Sampled
    forced: int | None
    """See `Completion`."""


class _Group(Struct):
    """Pending completions of one prompt, or of a turn; or the rest of one whose thought has reached its limit."""

    token_ids: list[int]
    """Token ids of the prompt, with positions of features."""
    seeds: tuple[int, ...]
    """[G]"""
    completions: dict[int, Completion]
    """Completions received so far, by index."""
    max_tokens: int = 0
    """See `Wanted`."""
    begun: _Begun | None = None
    continuing: set[int] = set()
    """Completions whose rest is a group of its own."""


class PendingRequests:
    """The prompts of one call by index, and its turns by name of the episode."""

    def __init__(self, policy: Policy, stops: Stops, sampling: Sampling, seed: int, max_positions: int) -> None:
        """No pending requests. vLLM serves sequences of at most `max_positions` tokens."""
        self._policy = policy
        self._stops = stops
        self._seed = seed
        self._contexts = Contexts(policy, sampling.max_new_tokens, ("vLLM", max_positions))
        self._groups: dict[int, _Group] = {}
        self._max_new_tokens = sampling.max_new_tokens
        self._rests = count(-1, -1)
        """Names of groups that are rests."""
        self._new_rests: list[int] = []

    def take_rests(self) -> list[int]:
        """Names of those that are new since the last call: to be asked for."""
        found, self._new_rests = self._new_rests, []
        return found

    @property
    def names(self) -> Collection[int]:
        """Names of unanswered prompts and turns."""
        return self._groups.keys()

    def prompt(self, index: int, prompt: Context, num_completions: int) -> Rejection | None:
        """Ask for the completions of a prompt."""
        return self._ask(index, self._contexts.prompt(index, prompt), range(num_completions))

    def turn(self, turn: NextTurn) -> Rejection | None:
        """Ask for an episode's turn."""
        return self._ask(turn.episode, self._contexts.turn(turn), [turn.number])

    def missing(self, call: int, names: Collection[int], known: set[int]) -> Iterator[Add | Features]:
        """Requests for the missing completions of these, for an open call; adds media that it sends to `known`.

        Media are encoded one prompt at a time, so that vLLM starts on the first prompt while others are encoded.
        """
        if self._policy.media is None:
            yield self._add(call, names)
            return
        for name in names:
            for number in {run.number for run in runs(self._groups[name].token_ids)} - known:
                known.add(number)
                yield features(self._policy, call, number)
            yield self._add(call, [name])

    def _add(self, call: int, names: Collection[int]) -> Add:
        groups = {name: self._groups[name] for name in names}
        wanted = tuple(
            Wanted(name, k, seed, group.max_tokens)
            for name, group in groups.items()
            for k, seed in enumerate(group.seeds)
            if k not in group.completions and k not in group.continuing
        )
        media = {name: placed(group.token_ids) for name, group in groups.items() if has_media(group.token_ids)}
        prompts = {
            name: named(self._policy, group.token_ids) if name in media else tuple(group.token_ids)
            for name, group in groups.items()
        }
        return Add(call, prompts, media, wanted)

    def answer(self, reply: Sampled | Unanswered) -> Iterator[tuple[int, Answers]]:
        """Record one completion; yields name and answers of its group if that is complete."""
        group = self._groups.get(reply.prompt)
        if group is None:  # another of its completions was refused
            return
        name, k = reply.prompt, getattr(reply, "completion", 0)
        if (begun := group.begun) is not None:
            del self._groups[name]
            name, k = begun.group, begun.completion
            if (whole := self._groups.get(name)) is None:
                return
        else:
            whole = group
        if isinstance(reply, Unanswered):
            del self._groups[name]
            yield name, Rejection(Reason.ENGINE_REFUSED, f"prompt {name}: {reply.reason}")
            return
        if begun is None and self._goes_on(reply):
            self._continue(group, reply)
            return
        whole.completions[k] = self._completion(reply, len(group.token_ids), begun)
        if len(whole.completions) == len(whole.seeds):
            del self._groups[name]
            yield name, tuple(whole.completions[k] for k in range(len(whole.seeds)))

    def _goes_on(self, sampled: Sampled) -> bool:
        """Whether a completion was stopped at the limit of its thought."""
        ids = list(sampled.token_ids)
        return len(ids) == self._stops.thinking_limit and self._stops.reason(ids) is None

    def _continue(self, group: _Group, sampled: Sampled) -> None:
        """Ask for the rest of a completion, after the end of its thought if that is still open."""
        ids = list(sampled.token_ids)
        end = self._stops.end_of_thought(ids)
        name = next(self._rests)
        self._groups[name] = _Group(
            joined([group.token_ids, ids, end]),
            (completion_seed(group.seeds[sampled.completion], len(ids), 0) % SEEDS,),
            {},
            self._max_new_tokens - len(ids) - len(end),
            _Begun(sampled.prompt, sampled.completion, sampled, len(ids) if end else None),
        )
        group.continuing.add(sampled.completion)
        self._new_rests.append(name)

    def _ask(self, name: int, ids: list[int] | Rejection, numbers: Sequence[int]) -> Rejection | None:
        if isinstance(ids, Rejection):
            return ids
        seeds = tuple(completion_seed(self._seed, name, number) % SEEDS for number in numbers)
        self._groups[name] = _Group(ids, seeds, {}, self._stops.thinking_limit)
        return None

    def _completion(self, sampled: Sampled, prompt_length: int, begun: _Begun | None) -> Completion:
        routing = b""
        if routers := self._policy.routers:
            routing = routers.stored(sampled.experts, prompt_length + len(sampled.token_ids) - 1)
        forced = None
        if begun is not None:
            forced = begun.forced
            sampled = replace(
                sampled,
                token_ids=begun.sampled.token_ids + sampled.token_ids,
                logprobs=begun.sampled.logprobs + sampled.logprobs,
                versions=merged((*begun.sampled.versions, *sampled.versions)),
            )
        ids = list(sampled.token_ids)
        if not math.isfinite(sum(sampled.logprobs)):
            raise EngineError(f"{self._policy.name} gives logits that are not finite: its weights are broken")
        # If the two disagree on the text, vLLM's decides, because it stopped there.
        return Completion(
            text=self._policy.said(ids, forced),
            finish_reason=self._stops.reason(list(self._policy.with_end_of_thought(ids, forced))) or "stop_sequence",
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
            routing=routing,
            forced=forced,
        )
