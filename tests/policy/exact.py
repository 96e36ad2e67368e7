"""A policy that computes in float64 throughout, so that two ways to the same number differ by rounding alone."""

from __future__ import annotations

import copy

import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from swarm.policy.loading import Policy


def exact(policy: Policy) -> Policy:
    """A copy in float64; the model's own norms would compute in float32 whatever they are given."""
    twin = copy.deepcopy(policy)
    for module in list(twin.model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Qwen3RMSNorm):
                norm = torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
    twin.model.double()
    return twin
