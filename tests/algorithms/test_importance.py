from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from swarm.algorithms.importance import TREATMENTS, ImportanceName
from tests.algorithms import loops

# Ratios proximal / behaviour of 2, 1/2 and, outside the mask, e^9; and of 4 and 4.
RATIOS = torch.tensor([[2.0, 0.5, math.exp(9)], [4.0, 4.0, 1.0]])
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
BEHAVIOUR = torch.full((2, 3), -1.0)


def _weights(name: ImportanceName, cap: float = 3.0) -> tuple[Tensor, Tensor]:
    weights, capped = TREATMENTS[name](BEHAVIOUR + RATIOS.log(), BEHAVIOUR, MASK, cap)
    return weights * MASK, capped * MASK


@pytest.mark.parametrize(
    ("name", "expected", "capped"),
    [
        ("none", [[1, 1, 0], [1, 1, 0]], 0),
        ("token_truncate", [[2, 0.5, 0], [3, 3, 0]], 2),
        ("token_mask", [[2, 0.5, 0], [0, 0, 0]], 2),
        ("sequence_truncate", [[1, 1, 0], [3, 3, 0]], 2),
        ("sequence_mask", [[1, 1, 0], [0, 0, 0]], 2),
    ],
)
def test_treatments_by_hand(name: ImportanceName, expected: list[list[float]], capped: int) -> None:
    weights, decided = _weights(name)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32))
    assert decided.sum() == capped


@pytest.mark.parametrize("name", TREATMENTS)
@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_two_bounds_agree_with_loops(name: ImportanceName, floor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    proximal, behaviour = (-torch.rand(6, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(6, 5, dtype=torch.float64)
    weights, outside = TREATMENTS[name](proximal * 2, behaviour * 2, mask, 1.4, floor)
    expected = loops.importance(name, (proximal * 2).tolist(), (behaviour * 2).tolist(), 1.4, floor)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)
    assert outside.any() == (name != "none") and not outside.all()


def test_icepop_drops_tokens_on_both_sides() -> None:
    ratios = torch.tensor([[0.4, 0.6, 1.0, 4.9, 5.1]])
    weights, outside = TREATMENTS["token_mask"](ratios.log(), torch.zeros(1, 5), torch.ones(1, 5), 5.0, 0.5)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.6, 1.0, 4.9, 0.0]]))
    assert outside.tolist() == [[True, False, False, False, True]]


@pytest.mark.parametrize("name", TREATMENTS)
def test_a_trainer_that_agrees_with_the_sampler_changes_nothing(name: ImportanceName) -> None:
    weights, capped = TREATMENTS[name](BEHAVIOUR, BEHAVIOUR, MASK, 3.0)
    assert (weights == 1).all() and not capped.any()


@pytest.mark.parametrize("name", TREATMENTS)
def test_weights_are_constants_and_bounded_whatever_the_sampler_claims(name: ImportanceName) -> None:
    proximal = torch.tensor([[-0.1, -1e4, -0.1]] * 2, requires_grad=True)
    behaviour = torch.tensor([[-1e6, -0.1, -0.1], [-0.1, -1e6, -0.1]])
    weights, _ = TREATMENTS[name](proximal, behaviour, torch.ones(2, 3), 3.0)
    assert not weights.requires_grad
    assert torch.isfinite(weights).all()
    assert weights.min() >= 0 and weights.max() <= 3.0 + 1e-6


def test_unbounded_weights_of_whole_completions_are_unbiased() -> None:
    # A coin of two tokens; the sampler's are biased. E_behaviour[w f] must be E_proximal[f].
    generator = torch.Generator().manual_seed(0)
    p, q = torch.tensor([0.7, 0.3]), torch.tensor([0.5, 0.5])
    tokens = torch.multinomial(q, 2 * 100_000, replacement=True, generator=generator).reshape(-1, 2)
    mask = torch.ones(tokens.shape)
    weights, _ = TREATMENTS["sequence_truncate"](p.log()[tokens], q.log()[tokens], mask, 1e9)
    both_heads = (tokens == 0).all(dim=-1)
    assert (weights[:, 0] * both_heads).mean().item() == pytest.approx(0.49, abs=5e-3)
