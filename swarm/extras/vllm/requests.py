"""Pending requests of one call of the engine to vLLM, with features of media from the policy's own encoder.

vLLM's encoders resize images with other libraries and compute in another order, and each family would need its own
translation of the processor's output; features need none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from msgspec import Struct

from swarm.engines.base import Contexts, Stops
from swarm.engines.sampling import completion_seed
from swarm.errors import EngineError
from swarm.extras.vllm.messages import Add, Features, Placed, Reads, Sampled, Unanswered, Wanted
from swarm.policy.loading import Policy
from swarm.policy.media.features import TokenIds, runs
from swarm.reasons import Reason
from swarm.types import Answers, Completion, Context, NextTurn, Rejection, Sampling

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


class _Group(Struct):
    """Pending completions of one prompt, or of a turn."""

    token_ids: list[int]
    """Token ids of the prompt, with positions of features."""
    seeds: tuple[int, ...]
    """[G]"""
    completions: dict[int, Completion]
    """Completions received so far, by index."""


class PendingRequests:
    """The prompts of one call by index, and its turns by name of the episode."""

    def __init__(self, policy: Policy, stops: Stops, sampling: Sampling, seed: int, max_positions: int) -> None:
        """No pending requests. vLLM serves sequences of at most `max_positions` tokens."""
        self._policy = policy
        self._stops = stops
        self._seed = seed
        self._contexts = Contexts(policy, sampling.max_new_tokens, ("vLLM", max_positions))
        self._groups: dict[int, _Group] = {}

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
            Wanted(name, k, seed)
            for name, group in groups.items()
            for k, seed in enumerate(group.seeds)
            if k not in group.completions
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
        if isinstance(reply, Unanswered):
            del self._groups[reply.prompt]
            yield reply.prompt, Rejection(Reason.ENGINE_REFUSED, f"prompt {reply.prompt}: {reply.reason}")
            return
        group.completions[reply.completion] = self._completion(reply, len(group.token_ids))
        if len(group.completions) == len(group.seeds):
            del self._groups[reply.prompt]
            yield reply.prompt, tuple(group.completions[k] for k in range(len(group.seeds)))

    def _ask(self, name: int, ids: list[int] | Rejection, numbers: Sequence[int]) -> Rejection | None:
        if isinstance(ids, Rejection):
            return ids
        seeds = tuple(completion_seed(self._seed, name, number) % SEEDS for number in numbers)
        self._groups[name] = _Group(ids, seeds, {})
        return None

    def _completion(self, sampled: Sampled, prompt_length: int) -> Completion:
        ids = list(sampled.token_ids)
        routers = self._policy.routers
        if not math.isfinite(sum(sampled.logprobs)):
            raise EngineError(f"{self._policy.name} gives logits that are not finite: its weights are broken")
        # If the two disagree on the text, vLLM's decides, because it stopped there.
        return Completion(
            text=self._policy.said(ids),
            finish_reason=self._stops.reason(ids) or "stop_sequence",
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
            routing=routers.stored(sampled.experts, prompt_length + len(ids) - 1) if routers else b"",
        )
