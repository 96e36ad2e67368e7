"""Experts are multiplied in the type of the forward pass, as all other matrices are."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from swarm.policy.experts import are_cast
from swarm.policy.loading import Policy
from swarm.training.forward import TrainingLayers
from tests.engines.models import make, make_published

FAMILIES: dict[str, Callable[[str], Policy]] = {
    "qwen3_moe": make,
    "mixtral": make_published,
    "glm4_moe": make_published,
}


def _policy(family: str) -> Policy:
    policy = FAMILIES[family](family)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.normal_(std=0.2)
    return policy


def _hidden(policy: Policy, dtype: torch.dtype) -> Tensor:
    ids = torch.arange(24).reshape(2, 12)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
        return policy.model.base_model(input_ids=ids, use_cache=False).last_hidden_state.float()


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.dtype, torch.dtype]]:
    """The types of what grouped products multiply."""
    seen = []
    multiply = torch.nn.functional.grouped_mm

    def recorded(input: Tensor, weight: Tensor, **others: Tensor) -> Tensor:
        seen.append((input.dtype, weight.dtype))
        return multiply(input, weight, **others)

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", recorded)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_passes_and_their_gradients_are_in_the_type_of_the_pass(
    family: str, dtype: torch.dtype, products: list[tuple[torch.dtype, torch.dtype]]
) -> None:
    policy = _policy(family)
    exact = _hidden(copy.deepcopy(policy), torch.float32)
    products.clear()
    hidden = _hidden(policy, dtype)
    assert products and set(products) == {(dtype, dtype)}
    torch.testing.assert_close(hidden, exact, atol=0.2 if dtype is torch.bfloat16 else 0, rtol=0)
    hidden.square().mean().backward()
    experts = [module for module in policy.model.modules() if are_cast(module)]
    assert experts
    for parameter in (each for module in experts for each in module.parameters()):
        assert parameter.dtype is torch.float32 and parameter.grad is not None
        assert parameter.grad.dtype is torch.float32 and float(parameter.grad.norm()) > 0


def test_rounded_gradients_are_those_of_float32_but_for_rounding() -> None:
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        policy = _policy("mixtral")
        _hidden(policy, dtype).square().mean().backward()
        gradients.append(policy.model.get_parameter("model.layers.1.mlp.experts.gate_up_proj").grad)
    exact, rounded = gradients
    assert exact is not None and rounded is not None
    assert float((rounded - exact).norm()) < 0.12 * float(exact.norm()), "0.1001 without instructions for bfloat16"


def test_compiled_layers_give_the_same() -> None:
    policy = _policy("qwen3_moe")
    expected = _hidden(policy, torch.bfloat16)
    layers = [(layer, torch.compile(layer.forward, backend="eager")) for layer in policy.model.base_model.layers]
    for layer, compiled in layers:
        layer.forward = compiled
    torch.testing.assert_close(_hidden(policy, torch.bfloat16), expected, atol=1e-2, rtol=0)


def test_recomputed_layers_have_the_same_gradients() -> None:
    found = []
    for checkpointed in (False, True):
        policy = _policy("mixtral")
        with TrainingLayers(policy.model, compiled=False, checkpointed=checkpointed).active():
            _hidden(policy, torch.bfloat16).square().mean().backward()
        found.append(policy.model.get_parameter("model.layers.0.mlp.experts.down_proj").grad)
    torch.testing.assert_close(found[0], found[1], atol=0, rtol=0)
