"""A GPU computes what a CPU does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from swarm import torchao
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.policy.config import FrozenDtype
from swarm.policy.frozen.layers import FrozenLinear
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.training.config import OptimizerName, UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Sampling
from tests.engines.models import ARCHITECTURES, make
from tests.example_groups import graded
from tests.policy.completions import completion_logprobs

pytestmark = pytest.mark.gpu

PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4", "a much longer prompt than the others, in single letters"]
FIGURES = ("loss", "grad_norm", "entropy")


def _on(device: torch.device, architecture: str, dtype: torch.dtype = torch.float32) -> Policy:
    policy = make(architecture)
    policy.model.to(device)
    policy.dtype = dtype
    return policy


def _updater(policy: Policy, **settings: object) -> PolicyUpdater:
    return PolicyUpdater(policy, UpdateSettings(learning_rate=1e-3, batching="padded", **settings), MixSettings(), 1.0)


def _learn(updater: PolicyUpdater) -> dict[str, float]:
    groups = [graded("other", index, (1.0, 0.0, 0.0)) for index in range(3)]
    return updater.update([], groups).figures


def _distance(one: Policy, two: Policy) -> float:
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    return float(torch.cat([(a - b).flatten() for a, b in pairs]).detach().norm())


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_update_is_that_of_a_cpu(device: torch.device, architecture: str, checkpointed: bool) -> None:
    there, here, start = _on(device, architecture), make(architecture), make(architecture)
    found = _learn(_updater(there, gradient_checkpointing=checkpointed))
    expected = _learn(_updater(here))
    assert {name: found[name] for name in FIGURES} == pytest.approx(
        {name: expected[name] for name in FIGURES}, rel=1e-3, abs=1e-6
    )
    there.model.cpu()
    # AdamW's first step moves every weight alike, by the sign of a gradient that may be nearly nothing.
    assert _distance(there, here) < 0.05 * _distance(here, start)


@pytest.mark.parametrize(("dtype", "nats"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_sampled_is_what_is_trained(
    device: torch.device, architecture: str, dtype: torch.dtype, nats: float
) -> None:
    policy = _on(device, architecture, dtype)
    engine = TransformersEngine(policy, GenerationSettings())
    groups = engine.generate(PROMPTS, 4, Sampling(max_new_tokens=24), 3)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            with torch.no_grad():
                ids = list(completion.token_ids)
                again = completion_logprobs(policy, [policy.encode_prompt(prompt)], [ids], 1.0)[0].cpu()
            assert (again - torch.tensor(completion.logprobs)).abs().mean() < nats


@pytest.mark.parametrize("optimizer", ["adamw_offloaded", "adamw_8bit"])
def test_other_optimizers_move_the_weights_as_adamw_does(device: torch.device, optimizer: OptimizerName) -> None:
    if optimizer == "adamw_8bit" and not torchao.is_installed():
        pytest.skip("needs the extra torchao")
    start = _on(device, "qwen2")
    plain, other = copy.deepcopy(start), copy.deepcopy(start)
    _learn(_updater(plain))
    _learn(_updater(other, optimizer=optimizer))

    assert _distance(other, plain) <= (1e-3 if optimizer == "adamw_offloaded" else 0.1) * _distance(plain, start)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_matrices_are_those_of_a_cpu(device: torch.device, kind: FrozenDtype, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(200, 120, bias=False)
    layer.weight.requires_grad_(False)
    here = FrozenLinear(layer, kind)
    there = copy.deepcopy(here).to(device)
    torch.testing.assert_close(there.weight.cpu(), here.weight, atol=1e-6, rtol=0)
    hidden = torch.randn(7, 200)
    slopes = []
    for frozen, place in ((here, "cpu"), (there, device)):
        moved = hidden.detach().to(place, dtype).requires_grad_()  # `hidden` itself stays without a gradient
        frozen(moved).square().sum().backward()
        slopes.append(moved.grad.float().cpu())
    scale = float(slopes[0].abs().max())
    torch.testing.assert_close(*slopes, atol=scale * (1e-5 if dtype is torch.float32 else 2e-2), rtol=0)
