"""`swarm work` that writes a marker before each rewarded completion, with its true version and log-probabilities.

`python -m tests.attacks.marking_worker work ADDRESS ...`: a spot check finds the probabilities of its snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec.structs import replace

from nodes.cli import main
from nodes.roles.worker import WorkerNode
from swarm.policy.batching import Padded
from swarm.policy.logprobs import Scorer
from swarm.training.rows import Row
from swarm.types import Completion, Prompt, RolloutGroup, TaskRef, VersionSpan

MARKER = "@@@"


def mark(node: WorkerNode) -> None:
    """Have a node mark what it shares; it must have begun."""
    groups, exchange = node._follower.groups, node._shell.exchange
    prompts: dict[TaskRef, Prompt] = {}
    add, share = groups.add, exchange.share

    def remember(question: object, played: object) -> tuple[Completion, ...]:
        prompts[question.ref] = question.prompt
        return add(question, played)

    def marked(group: RolloutGroup) -> RolloutGroup | None:
        rewards = zip(group.completions, group.rewards, strict=True)
        wanted = [_written(node, completion) if reward > 0 else completion for completion, reward in rewards]
        return share(replace(group, completions=tuple(_claimed(node, prompts[group.question], wanted))))

    groups.add, exchange.share = remember, marked


def _written(node: WorkerNode, completion: Completion) -> Completion:
    (ids,) = node._policy.encode_completions([Completion(MARKER, "length")])
    return replace(completion, text=MARKER + completion.text, token_ids=(*ids, *completion.token_ids))


def _claimed(node: WorkerNode, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
    """The completions with what the snapshot that is installed now gives for them."""
    policy, sampling = node._policy, node._config.generation.sampling()
    context = policy.encode_prompt(prompt)
    rows = [Row(context, completion.token_ids, 0.0, None) for completion in completions]
    while True:
        version = policy.version
        with torch.no_grad():
            read = Scorer(policy, sampling.temperature, Padded(policy.places), sampling)(rows).logprobs.tolist()
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


def _begin(node: WorkerNode, begin=WorkerNode.begin) -> None:
    begin(node)
    mark(node)


if __name__ == "__main__":
    WorkerNode.begin = _begin
    main()
