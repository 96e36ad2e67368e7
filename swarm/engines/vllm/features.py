"""What a policy reads beside text, for vLLM: the features that the policy's own encoder makes.

vLLM's encoders resize pictures with other libraries and compute in another order. And it would have to be told, for
each family, what the policy's processor has made of a picture; features are put at their places whatever the family.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from swarm.engines.vllm.messages import Features, Placed, Reads
from swarm.policy.loading import Policy
from swarm.policy.media.features import TokenIds, runs


def reads_of(policy: Policy) -> Reads | None:
    """What vLLM must expect; None for text only."""
    if policy.media is None:
        return None
    return Reads(policy.media.reader.kinds, policy.media.has_layers)


def features(policy: Policy, call: int, number: int) -> Features:
    """Those of a medium, computed now unless the policy has them already."""
    assert policy.media is not None
    medium = policy.media.reader[number]
    with policy.compute(), torch.no_grad():
        computed = policy.media.encoder.features(medium, policy.gate.changes)
    found = computed.flatten(1).to("cpu", policy.compute_dtype).contiguous()
    grid = medium.inputs["image_grid_thw"].flatten().tolist() if policy.media.has_grid else []
    content = found.view(torch.uint8).numpy().tobytes()
    return Features(call, number, medium.kind, (found.shape[0], found.shape[1]), content, tuple(grid))


def has_media(ids: Sequence[int]) -> bool:
    """Whether a prompt has any."""
    return isinstance(ids, TokenIds)


def named(policy: Policy, ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a prompt with media, with the model's own token at the places of features."""
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
