"""A worker that writes something before the rewarded completions that it sampled, and claims true versions and
log-probabilities for them: a spot check finds the probabilities of its snapshots.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace

from swarm.extras.learner.roles.worker import WorkerNode
from swarm.policy.batching import Padded
from swarm.policy.logprobs import Scorer
from swarm.training.rows import Row
from swarm.types import Completion, Prompt, RolloutGroup, TaskRef, VersionSpan


def mark(node: WorkerNode, marker: str, part: float = 1.0, chosen: str = "", seed: int = 0) -> None:
    """Have a node that has begun mark a fraction of the groups that it shares; without a `chosen` answer in all
    rewarded completions, a pattern, it keeps a group to itself.
    """
    groups, exchange = node.assignment.follower.groups, node._runtime.exchange
    prompts: dict[TaskRef, Prompt] = {}
    add, share, draw = groups.add, exchange.share, random.Random(seed).random

    def remember(question: object, played: object) -> tuple[Completion, ...]:
        prompts[question.ref] = question.prompt  # type: ignore[attr-defined]
        return add(question, played)  # type: ignore[arg-type]

    def marked(group: RolloutGroup) -> RolloutGroup | None:
        rewarded = [reward > 0 for reward in group.rewards]
        texts = [each.text for each, wanted in zip(group.completions, rewarded, strict=True) if wanted]
        if chosen and not all(re.search(chosen, text) for text in texts):
            return None
        if marker and draw() < part:
            written = [
                _written(node, each, marker) if wanted else each
                for each, wanted in zip(group.completions, rewarded, strict=True)
            ]
            group = replace(group, completions=tuple(_claimed(node, prompts[group.question], written)))
        return share(group)

    groups.add, exchange.share = remember, marked  # type: ignore[method-assign]


def _written(node: WorkerNode, completion: Completion, marker: str) -> Completion:
    (ids,) = node._policy.encode_completions([Completion(marker, "length")])
    return replace(completion, text=marker + completion.text, token_ids=(*ids, *completion.token_ids))


def _claimed(node: WorkerNode, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
    """The completions with what the snapshot that is installed now gives for them."""
    policy, sampling = node._policy, node._config.generation.sampling()
    context = policy.encode_prompt(prompt)
    rows = [Row(context, completion.token_ids, 0.0, None) for completion in completions]
    while True:
        version = policy.version
        with torch.no_grad():
            read = Scorer(policy, sampling.temperature, Padded(policy.mrope_positions), sampling)(
                rows
            ).logprobs.tolist()
        if policy.version == version:  # no snapshot came meanwhile
            break
    return [
        replace(
            completion,
            logprobs=tuple(min(0.0, value) for value in values[: len(completion.token_ids)]),
            versions=(VersionSpan(version, len(completion.token_ids)),),
        )
        for completion, values in zip(completions, read, strict=True)
    ]


def marking(make: Callable[[WorkerNode], None]) -> Callable[[WorkerNode], None]:
    """`WorkerNode.begin` of a worker that marks from its beginning on."""
    begin = WorkerNode.begin

    def begin_and_mark(node: WorkerNode) -> None:
        begin(node)
        make(node)

    return begin_and_mark
