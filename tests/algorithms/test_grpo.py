from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from swarm.algorithms.losses.base import LossConfig
from swarm.algorithms.losses.grpo import grpo

CONFIG = LossConfig(clip_low=0.2, clip_high=0.28)


def _reference(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> float:
    """Loops and the math module: independent of the vectorised form."""
    per_sequence = []
    for row in range(new.shape[0]):
        terms = []
        for t in range(new.shape[1]):
            if mask[row, t]:
                ratio = math.exp(max(-20.0, min(20.0, float(new[row, t] - old[row, t]))))
                clipped = max(0.8, min(1.28, ratio))
                terms.append(-min(ratio * float(advantages[row]), clipped * float(advantages[row])))
        per_sequence.append(sum(terms) / len(terms) if terms else 0.0)
    return sum(per_sequence) / len(per_sequence)


def _batch(seed: int, rows: int = 6, width: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    new = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 3
    old = new + torch.randn(rows, width, generator=generator, dtype=torch.float64) * 0.4
    advantages = torch.randn(rows, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    return new, old, advantages, mask


@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_agree_with_loops(seed: int) -> None:
    new, old, advantages, mask = _batch(seed)
    new.requires_grad_(True)
    output = grpo(new, old, advantages, mask, CONFIG)
    assert output.denominator == 6
    assert output.loss.item() == pytest.approx(_reference(new.detach(), old, advantages, mask), abs=1e-12)
    output.loss.backward()
    for row, column in [(0, 0), (1, 2), (3, 1)]:
        step = 1e-6
        up, down = new.detach().clone(), new.detach().clone()
        up[row, column] += step
        down[row, column] -= step
        slope = (_reference(up, old, advantages, mask) - _reference(down, old, advantages, mask)) / (2 * step)
        assert float(new.grad[row, column]) == pytest.approx(slope, abs=1e-7)


def test_no_gradient_outside_the_mask_and_none_from_an_empty_row() -> None:
    new, old, advantages, mask = _batch(3)
    mask[2] = 0
    new.requires_grad_(True)
    grpo(new, old, advantages, mask, CONFIG).loss.backward()
    assert new.grad[mask == 0].abs().max() == 0
    assert torch.isfinite(new.grad).all()


def test_signs_at_ratio_one() -> None:
    new = torch.full((2, 3), -1.0, requires_grad=True)
    grpo(new, new.detach(), torch.tensor([1.0, -1.0]), torch.ones(2, 3), CONFIG).loss.backward()
    assert (new.grad[0] < 0).all(), "descent raises what was rewarded"
    assert (new.grad[1] > 0).all(), "descent lowers what was not"


def test_clipping_is_asymmetric_and_stops_the_gradient() -> None:
    # ratio 1.25 lies within 1 + 0.28 but its mirror image 0.75 beyond 1 - 0.2
    old = torch.zeros(2, 1)
    new = torch.tensor([[math.log(1.25)], [math.log(0.75)]], requires_grad=True)
    output = grpo(new, old, torch.tensor([1.0, -1.0]), torch.ones(2, 1), CONFIG)
    output.loss.backward()
    assert new.grad[0, 0] != 0
    assert new.grad[1, 0] == 0
    assert output.clipped == 1


def test_extreme_log_ratios_stay_finite() -> None:
    new = torch.tensor([[-1e4, 0.0]], requires_grad=True)
    old = torch.tensor([[0.0, -1e4]])
    output = grpo(new, old, torch.tensor([-1.0]), torch.ones(1, 2), CONFIG)
    output.loss.backward()
    assert torch.isfinite(output.loss) and torch.isfinite(new.grad).all()
