"""A GPU computes what a CPU does."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn

from swarm import torchao
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.policy.adapters import FrozenLinear
from swarm.policy.batching import Insert, Packed, Padded
from swarm.policy.config import FrozenDtype
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer, choose_batching
from swarm.policy.scoring import selected_logprobs
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


class _Pair(NamedTuple):
    prompt: list[int]
    completion: list[int]
    inserts: tuple[Insert, ...] = ()
    routing: None = None


def _on(device: torch.device, architecture: str, dtype: torch.dtype = torch.float32) -> Policy:
    policy = make(architecture)
    policy.model.to(device)
    policy.dtype = dtype
    return policy


def _updater(policy: Policy, **settings: object) -> PolicyUpdater:
    chosen = UpdateSettings.model_validate({"learning_rate": 1e-3, "batching": "padded", **settings})
    return PolicyUpdater(policy, chosen, MixSettings(), 1.0)


def _learn(updater: PolicyUpdater) -> dict[str, float]:
    groups = [graded("other", index, (1.0, 0.0, 0.0)) for index in range(3)]
    return updater.update([], groups).figures


def _distance(one: Policy, two: Policy) -> float:
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    return float(torch.cat([(a - b).flatten() for a, b in pairs]).detach().norm())


PLAIN = [(architecture, checkpointed, False) for architecture in ARCHITECTURES for checkpointed in (False, True)]
COMPILED = [("qwen2", False, True), ("llama", True, True), ("gpt2", False, True)]


@pytest.mark.parametrize(("architecture", "checkpointed", "compiled"), [*PLAIN, *COMPILED])
def test_an_update_is_that_of_a_cpu(
    device: torch.device, architecture: str, checkpointed: bool, compiled: bool
) -> None:
    there, here, start = _on(device, architecture), make(architecture), make(architecture)
    found = _learn(_updater(there, gradient_checkpointing=checkpointed, compile=compiled))
    expected = _learn(_updater(here))
    assert {name: found[name] for name in FIGURES} == pytest.approx(
        {name: expected[name] for name in FIGURES}, rel=1e-3, abs=1e-6
    )
    there.model.cpu()
    # AdamW's first step moves every weight alike, by the sign of a gradient that may be nearly nothing.
    assert _distance(there, here) < 0.05 * _distance(here, start)


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
def test_packed_rows_read_as_padded_ones(device: torch.device, architecture: str) -> None:
    """By a kernel for ranges of queries and keys, in bfloat16; the reference is float32."""
    pairs = [_Pair([1, 2, 3], list(range(4, 4 + length))) for length in (40, 7, 1)]
    pairs += [_Pair(list(range(5, 60)), [7, 8, 9]), _Pair([9], [3] * 30)]
    exactly = _on(device, architecture)
    rounded = copy.deepcopy(exactly)
    rounded.dtype = torch.bfloat16
    batching = choose_batching(rounded, "auto")
    assert isinstance(batching, Packed)
    found = []
    for policy, way in ((exactly, Padded()), (rounded, Padded()), (rounded, batching)):
        policy.model.zero_grad()
        with way.attention(policy.model):
            logprobs = Scorer(policy, 1.0, way)(pairs).logprobs
            logprobs.sum().backward()
        slopes = [weight.grad.flatten() for weight in policy.model.parameters() if weight.grad is not None]
        found.append((logprobs.detach(), torch.cat(slopes)))
    (expected, slope), (padded, padded_slope), (packed, packed_slope) = found
    assert (packed - expected).abs().mean() < 0.1 and (packed_slope - slope).norm() < 0.1 * slope.norm()
    assert (packed - expected).abs().mean() < 2 * (padded - expected).abs().mean() + 1e-3
    assert (packed_slope - slope).norm() < 2 * (padded_slope - slope).norm()


@pytest.mark.parametrize("tokens", [3, 700])
def test_the_head_gives_what_a_cpu_gives(device: torch.device, tokens: int) -> None:
    """By compiled kernels; in bfloat16 against float32 of the same rounded numbers."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(tokens, 64).bfloat16(), torch.randn(50_000, 64).bfloat16().float()
    targets, upstream = torch.randint(50_000, (tokens,)), torch.randn(tokens)
    results = []
    for place, dtype in ((torch.device("cpu"), torch.float32), (device, torch.bfloat16)):
        given, matrix = (
            hidden.to(place, dtype, copy=True).requires_grad_(),
            weight.to(place, copy=True).requires_grad_(),
        )
        values, entropies = selected_logprobs(given, matrix, None, targets.to(place), 0.8, 256)
        (values * upstream.to(place)).sum().backward()
        results.append([each.float().cpu() for each in (values.detach(), entropies, given.grad, matrix.grad)])
    (values, entropies, *slopes), (our_values, our_entropies, *our_slopes) = results
    torch.testing.assert_close(our_values, values, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(our_entropies, entropies, atol=1e-3, rtol=1e-4)
    for ours, theirs in zip(our_slopes, slopes, strict=True):
        assert (ours - theirs).norm() < 1e-2 * theirs.norm()


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
