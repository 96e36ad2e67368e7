"""Every objective against loops over plain floats, and what must hold for all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from swarm.algorithms import kl
from swarm.algorithms.importance import TREATMENTS
from swarm.algorithms.kl import KL_ESTIMATORS
from swarm.algorithms.losses import LOSSES, LossBatch, LossOutput
from swarm.algorithms.losses.base import CLIPPED
from swarm.algorithms.names import ImportanceName, KlEstimatorName
from swarm.algorithms.reductions import ess
from swarm.figures import joined
from swarm.groups.expectation import log_expectation
from tests.algorithms import loops

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
SETTINGS = {
    "grpo": CLIP,
    "dapo": CLIP,
    "dr_grpo": {**CLIP, "max_completion_tokens": 20},
    "gspo": CLIP,
    "gepo": {**CLIP, "group_epsilon": 0.3},
    "tis": {"ratio_cap": 1.5},
}
CONSTANTS = loops.Constants(low=0.2, high=0.28, longest=20, cap=1.5, epsilon=0.3)
CAP = 1.7


class Batch:
    """Random ragged completions in groups of four."""

    def __init__(self, seed: int, rows: int = 8, width: int = 9, spread: float = 0.4) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.new = -normal(rows, width).abs() - 0.1
        self.old = self.new + spread * normal(rows, width)
        self.advantages = normal(rows)
        lengths = torch.randint(1, width + 1, (rows,), generator=generator)
        self.mask = (torch.arange(width)[None] < lengths[:, None]).double()
        self.behaviour = self.old + spread * normal(rows, width)
        self.reference = self.new + spread * normal(rows, width)

    def loss(self, name: str, new: Tensor | None = None, **settings: object) -> LossOutput:
        return LOSSES[name](**{**SETTINGS[name], **settings})(self.given(self.new if new is None else new))

    def given(self, new: Tensor, advantages: Tensor | None = None, rows: slice = slice(None)) -> LossBatch:
        """What a loss takes of some of the rows."""
        weighed = self.advantages if advantages is None else advantages
        return LossBatch(new[rows], self.old[rows], weighed[rows], self.mask[rows], self.expectation()[rows])

    def expectation(self) -> Tensor:
        """[B] of each row's group."""
        log_q = [sum(row) / len(row) if row else -1.0 for row in self.rows(self.old)]
        groups = [log_expectation(log_q[k : k + 4]) for k in range(0, len(log_q), 4)]
        return torch.tensor(groups, dtype=torch.float64).repeat_interleave(4)

    def rows(self, values: Tensor) -> list[list[float]]:
        return [
            [float(v) for v, m in zip(row, mask, strict=True) if m] for row, mask in zip(values, self.mask, strict=True)
        ]


def _loops(batch: Batch, treatment: str, at: tuple[int, int]) -> loops.Batch:
    """The batch for the reference; derivatives are with respect to token `at`."""
    weights = loops.importance(treatment, batch.rows(batch.old), batch.rows(batch.behaviour), CAP)
    advantages = batch.advantages.tolist()
    return loops.Batch(
        new=[
            [loops.Dual(value, float((i, t) == at)) for t, value in enumerate(row)]
            for i, row in enumerate(batch.rows(batch.new))
        ],
        old=batch.rows(batch.old),
        weights=[[a * w for w in row] for a, row in zip(advantages, weights, strict=True)],
        groups=[[0, 1, 2, 3], [4, 5, 6, 7]],
    )


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(2))
def test_value_and_gradient_agree_with_loops(name: str, treatment: ImportanceName, seed: int) -> None:
    batch = Batch(seed)
    new = batch.new.clone().requires_grad_(True)
    weights, _ = TREATMENTS[treatment](batch.old, batch.behaviour, batch.mask, CAP)
    advantages = batch.advantages[:, None] * weights
    output = LOSSES[name](**SETTINGS[name])(batch.given(new, advantages))
    output.loss.backward()
    for row, column in batch.mask.nonzero().tolist():
        expected = loops.loss(name, _loops(batch, treatment, (row, column)), CONSTANTS)
        assert output.loss.item() == pytest.approx(expected.value, abs=1e-10)
        assert new.grad[row, column].item() == pytest.approx(expected.slope, abs=1e-10)


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("seed", range(2))
def test_clipped_gepo_agrees_with_loops(treatment: ImportanceName, seed: int) -> None:
    batch = Batch(seed)
    new = batch.new.clone().requires_grad_(True)
    weights, _ = TREATMENTS[treatment](batch.old, batch.behaviour, batch.mask, CAP)
    advantages = batch.advantages[:, None] * weights
    output = LOSSES["gepo"](**SETTINGS["gepo"], group_clip=True)(batch.given(new, advantages))
    output.loss.backward()
    for row, column in batch.mask.nonzero().tolist():
        looped = _loops(batch, treatment, (row, column))
        expected = loops.loss("gepo", looped, replace(CONSTANTS, group_clip=True))
        assert output.loss.item() == pytest.approx(expected.value, abs=1e-10)
        assert new.grad[row, column].item() == pytest.approx(expected.slope, abs=1e-10)
    stopped = (new.grad == 0) & (batch.mask > 0) & (advantages != 0)
    assert output.figures[CLIPPED].total == stopped.sum() > 0, "the clip decided somewhere, and there alone"


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_divergence_is_averaged_as_the_loss_it_is_added_to(name: str, estimator: KlEstimatorName) -> None:
    batch = Batch(9)
    new = batch.new.clone().requires_grad_(True)
    output = batch.loss(name, new)
    penalty = (KL_ESTIMATORS[estimator](new, batch.reference) * output.shares).sum()
    penalty.backward()
    references = batch.rows(batch.reference)
    for row, column in batch.mask.nonzero().tolist():
        tokens = _loops(batch, "none", (row, column)).new
        values = [
            [loops.divergence(estimator, n, r) for n, r in zip(*pair, strict=True)]
            for pair in zip(tokens, references, strict=True)
        ]
        expected = loops.average(name, values, CONSTANTS)
        assert penalty.item() == pytest.approx(expected.value, abs=1e-10)
        assert new.grad[row, column].item() == pytest.approx(expected.slope, abs=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_a_weight_a_completion_is_a_weight_of_each_of_its_tokens(name: str) -> None:
    batch = Batch(1)
    plain = batch.loss(name)
    batch.advantages = batch.advantages[:, None].expand_as(batch.mask)
    assert batch.loss(name).loss.item() == pytest.approx(plain.loss.item(), abs=1e-12)
    assert {n: f.value for n, f in batch.loss(name).figures.items()} == {n: f.value for n, f in plain.figures.items()}


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_and_their_figures_combine_exactly(name: str) -> None:
    batch = Batch(2)
    whole = batch.new.clone().requires_grad_(True)
    output = batch.loss(name, whole)
    output.loss.backward()
    parts = batch.new.clone().requires_grad_(True)
    figures = []
    for rows in (slice(0, 3), slice(3, 8)):
        loss = LOSSES[name](**SETTINGS[name])
        part = loss(batch.given(parts, rows=rows))
        share = batch.mask[rows].sum() / batch.mask.sum() if loss.per_token else len(batch.mask[rows]) / 8
        (part.loss * share).backward()
        figures.append(part.figures)
    together = {name: figure.value for name, figure in joined(figures).items()}
    assert together == pytest.approx({name: figure.value for name, figure in output.figures.items()})
    torch.testing.assert_close(parts.grad, whole.grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_no_gradient_outside_the_mask_and_none_from_an_empty_row(name: str) -> None:
    batch = Batch(3)
    batch.mask[2] = 0
    new = batch.new.clone().requires_grad_(True)
    batch.loss(name, new).loss.backward()
    assert new.grad[batch.mask == 0].abs().max() == 0
    assert torch.isfinite(new.grad).all()
    batch.mask.zero_()
    assert batch.loss(name).loss == 0, "nothing to learn from is 0, not NaN"


@pytest.mark.parametrize("name", LOSSES)
def test_descent_raises_what_was_rewarded_and_lowers_what_was_not(name: str) -> None:
    batch = Batch(4, spread=0.0)
    batch.advantages = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    new = batch.new.clone().requires_grad_(True)
    batch.loss(name, new).loss.backward()
    kept = batch.mask.bool()
    assert (new.grad[0::2][kept[0::2]] < 0).all()
    assert (new.grad[1::2][kept[1::2]] > 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_log_ratios_stay_finite(name: str) -> None:
    batch = Batch(6)
    batch.old[0, 0], batch.old[1, 0] = -1e4, 0.0
    new = batch.new.clone()
    new[1, 0] = -1e4
    new.requires_grad_(True)
    output = batch.loss(name, new)
    output.loss.backward()
    assert torch.isfinite(output.loss) and torch.isfinite(new.grad).all()


def test_clipping_is_asymmetric_and_stops_the_gradient() -> None:
    # ratio 1.25 lies within 1 + 0.28 but its mirror image 0.75 beyond 1 - 0.2
    old = torch.zeros(2, 1)
    new = torch.tensor([[math.log(1.25)], [math.log(0.75)]], requires_grad=True)
    output = LOSSES["grpo"](**CLIP)(LossBatch(new, old, torch.tensor([1.0, -1.0]), torch.ones(2, 1)))
    output.loss.backward()
    assert new.grad[0, 0] != 0
    assert new.grad[1, 0] == 0
    values = {name: figure.value for name, figure in output.figures.items()}
    assert values == {CLIPPED: 0.5, "clip_ratio/low_mean": 0.5, "clip_ratio/high_mean": 0.0}


def test_gepo_at_epsilon_one_is_the_policy_gradient_and_at_zero_the_plain_group_expectation() -> None:
    batch = Batch(7)
    lengths = batch.mask.sum(-1)
    for epsilon in (0.0, 1.0):
        new = batch.new.clone().requires_grad_(True)
        batch.loss("gepo", new, group_epsilon=epsilon).loss.backward()
        weight = torch.ones(8, dtype=torch.float64)
        if epsilon == 0:
            p = ((batch.new * batch.mask).sum(-1) / lengths).exp()
            weight = p / batch.expectation().exp()
        expected = -(weight * batch.advantages / lengths / 8)[:, None] * batch.mask
        torch.testing.assert_close(new.grad, expected, atol=1e-12, rtol=0)


def test_gepo_needs_the_expectation_of_the_whole_group_and_says_what_lies_outside_the_clip() -> None:
    batch = Batch(8)
    output = batch.loss("gepo", group_epsilon=0.0)
    weights = ((batch.new * batch.mask).sum(-1) / batch.mask.sum(-1) - batch.expectation()).exp()
    outside = ((weights < 0.8) | (weights > 1.28)).double().mean()
    assert output.figures["gepo/outside_clip_ratio"].value == outside.item() > 0
    with pytest.raises(ValueError, match="each group"):
        LOSSES["gepo"]()(LossBatch(batch.new, batch.old, batch.advantages, batch.mask))


def test_divergences_by_hand() -> None:
    new, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    assert kl.k1(new, reference).tolist() == [[0.5, -1.0]]
    assert kl.k2(new, reference).tolist() == [[0.125, 0.5]]
    expected = [math.exp(-0.5) + 0.5 - 1, math.exp(1.0) - 1.0 - 1]
    assert kl.k3(new, reference).tolist()[0] == pytest.approx(expected, abs=1e-6)
    assert kl.cppo_kl(new, reference, torch.tensor([[1.0, 0.0]])).item() == pytest.approx(expected[0], abs=1e-6)


def test_k1_and_k3_estimate_the_divergence_and_k3_with_less_spread() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    exact = (p * (p / q).log()).sum()
    sampled = torch.multinomial(p, 200_000, replacement=True, generator=generator)
    new, reference = p.log()[sampled][None], q.log()[sampled][None]
    for estimate in (kl.k1, kl.k3):
        assert estimate(new, reference).mean().item() == pytest.approx(exact.item(), abs=2e-3)
    assert kl.k3(new, reference).var() < kl.k1(new, reference).var()


def test_what_the_gradients_of_the_estimators_are_of() -> None:
    # Over all tokens, each weighted by its probability, as if sampled on-policy for ever.
    logits = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    p = torch.softmax(logits, 0)
    (of_k1,), (of_k2,), (of_k3,) = (
        torch.autograd.grad((p.detach() * estimate(p.log(), q.log())).sum(), logits, retain_graph=True)
        for estimate in (kl.k1, kl.k2, kl.k3)
    )
    (reverse,) = torch.autograd.grad((p * (p / q).log()).sum(), logits, retain_graph=True)
    (forward,) = torch.autograd.grad((q * (q / p).log()).sum(), logits)
    torch.testing.assert_close(of_k1, torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(of_k2, reverse, atol=1e-12, rtol=0)
    torch.testing.assert_close(of_k3, forward, atol=1e-12, rtol=0)


def test_effective_sample_size() -> None:
    assert ess(torch.tensor([2.0, 2.0])).value == 1
    assert ess(torch.tensor([1.0, 0.0])).value == 0.5
    assert joined([{"ess": ess(torch.tensor([1.0]))}, {"ess": ess(torch.tensor([0.0]))}])["ess"].value == 0.5
    assert ess(torch.ones(0)).value == 1
