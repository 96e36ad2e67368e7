"""Every objective against loops over plain floats, and what must hold for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from swarm.algorithms import losses as kl
from swarm.algorithms.importance import TREATMENTS, ImportanceName
from swarm.algorithms.losses import (
    BEHAVIOUR_KL_ESTIMATORS,
    CLIPPED,
    KL_ESTIMATORS,
    LOSSES,
    BehaviourKlEstimatorName,
    ClippedLoss,
    KlEstimatorName,
    LossBatch,
    LossOutput,
    ess,
)
from swarm.figures import joined
from swarm.groups.expectation import log_expectation, variance
from tests.algorithms import loops

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
SETTINGS = {
    "grpo": CLIP,
    "dapo": CLIP,
    "dr_grpo": {**CLIP, "max_completion_tokens": 20},
    "gspo": CLIP,
    "gepo": {**CLIP, "group_epsilon": 0.3},
    "tis": {"ratio_cap": 1.5},
    "cispo": CLIP,
}
CONSTANTS = loops.Constants(low=0.2, high=0.28, longest=20, cap=1.5, epsilon=0.3)
CAP = 1.7
CLIPPED_LOSSES = [name for name, loss in LOSSES.items() if issubclass(loss, ClippedLoss)]
OPTIONS = [
    ({"dual_clip": 1.05}, {"dual": 1.05}),
    ({"positive_only": True}, {"positive_only": True}),
    ({"dual_clip": 1.05, "positive_only": True}, {"dual": 1.05, "positive_only": True}),
]
"""Settings of losses with a clip, and the same for the reference."""


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
        expectation, spread = self.of_groups(log_expectation), self.of_groups(variance)
        return LossBatch(new[rows], self.old[rows], weighed[rows], self.mask[rows], expectation[rows], spread[rows])

    def of_groups(self, statistic: Callable[[Sequence[float]], float]) -> Tensor:
        """[B] of each row's group, from the sampler's mean log-probabilities."""
        log_q = [sum(row) / len(row) if row else -1.0 for row in self.rows(self.old)]
        groups = [statistic(log_q[k : k + 4]) for k in range(0, len(log_q), 4)]
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


def _agrees_with_loops(name: str, settings: dict[str, object], constants: loops.Constants, seed: int) -> LossOutput:
    """Value and gradient of a batch with many ratios outside the clip are the reference's; returns the output."""
    batch = Batch(seed, spread=0.8)
    new = batch.new.clone().requires_grad_(True)
    output = batch.loss(name, new, **settings)
    output.loss.backward()
    for row, column in batch.mask.nonzero().tolist():
        expected = loops.loss(name, _loops(batch, "none", (row, column)), constants)
        assert output.loss.item() == pytest.approx(expected.value, abs=1e-10)
        assert new.grad[row, column].item() == pytest.approx(expected.slope, abs=1e-10)
    return output


@pytest.mark.parametrize(("settings", "constants"), OPTIONS, ids=str)
@pytest.mark.parametrize("name", CLIPPED_LOSSES)
def test_dual_clip_and_positive_only_agree_with_loops(
    name: str, settings: dict[str, object], constants: dict[str, object]
) -> None:
    clip = {"group_clip": True} if name == "gepo" else {}
    output = _agrees_with_loops(name, {**settings, **clip}, replace(CONSTANTS, **constants, **clip), seed=5)
    if "dual_clip" in settings:
        acted = output.figures["clip_ratio/dual_mean"].value
        assert acted == 0 if "positive_only" in settings else acted > 0
        parts = ("clip_ratio/dual_mean", "clip_ratio/low_mean", "clip_ratio/high_mean")
        assert output.figures[CLIPPED].value == pytest.approx(sum(output.figures[part].value for part in parts))


@pytest.mark.parametrize("positive_only", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_gepos_smoothing_from_the_variance_agrees_with_loops(epsilon: float, positive_only: bool) -> None:
    settings = {"group_epsilon": epsilon, "epsilon_from": "variance", "positive_only": positive_only}
    constants = replace(CONSTANTS, epsilon=epsilon, epsilon_from="variance", positive_only=positive_only)
    smoothed = _agrees_with_loops("gepo", settings, constants, seed=5)
    if epsilon:
        plain = Batch(5, spread=0.8).loss("gepo", group_epsilon=0.0, positive_only=positive_only)
        assert abs(smoothed.loss - plain.loss) > 1e-4


@pytest.mark.parametrize("name", CLIPPED_LOSSES)
def test_a_dual_clip_bounds_what_a_negative_advantage_costs(name: str) -> None:
    # An improbable token of stale text that has become certain: its ratio is e^20.
    batch = Batch(6)
    batch.advantages = -batch.advantages.abs()
    batch.new[:] = -0.01
    batch.old[:] = -50.0
    clip = {"group_clip": True, "group_epsilon": 0.0} if name == "gepo" else {}
    free = batch.loss(name, **clip)
    bounded = batch.loss(name, dual_clip=3.0, **clip)
    worst = 3.0 * batch.advantages.abs()[:, None].expand_as(batch.mask)
    assert (bounded.losses.expand_as(worst) <= worst + 1e-12).all()
    assert bounded.loss.item() == pytest.approx((worst * bounded.shares).sum().item())
    assert bounded.loss < 1e-6 * free.loss
    new = batch.new.clone().requires_grad_(True)
    batch.loss(name, new, dual_clip=3.0, **clip).loss.backward()
    assert new.grad.abs().max() == 0, "beyond the bound nothing is left to push down"


@pytest.mark.parametrize("name", CLIPPED_LOSSES)
def test_positive_only_leaves_no_gradient_for_negatives_and_the_same_for_the_rest(name: str) -> None:
    batch = Batch(7)
    grads = []
    for settings in ({}, {"positive_only": True}):
        new = batch.new.clone().requires_grad_(True)
        batch.loss(name, new, **settings).loss.backward()
        grads.append(new.grad)
    negative = batch.advantages < 0
    assert grads[1][negative].abs().max() == 0 < grads[0][negative].abs().max()
    torch.testing.assert_close(grads[1][~negative], grads[0][~negative], atol=0, rtol=0)


@pytest.mark.parametrize("name", CLIPPED_LOSSES)
def test_a_dual_clip_out_of_reach_changes_no_digit(name: str) -> None:
    batch = Batch(8)
    clip = {"group_clip": True} if name == "gepo" else {}
    grads, losses = [], []
    for settings in ({}, {"dual_clip": 1e9}):
        new = batch.new.clone().requires_grad_(True)
        output = batch.loss(name, new, **settings, **clip)
        output.loss.backward()
        grads.append(new.grad)
        losses.append(output.loss.item())
    assert losses[0] == losses[1] and torch.equal(*grads)


def test_gepo_has_no_dual_clip_without_its_clip() -> None:
    with pytest.raises(ValueError, match="group_clip"):
        LOSSES["gepo"](dual_clip=3.0)


def test_gepo_from_the_variance_needs_it() -> None:
    batch = Batch(8)
    given = LossBatch(batch.new, batch.old, batch.advantages, batch.mask, batch.of_groups(log_expectation))
    with pytest.raises(ValueError, match="variance of each group"):
        LOSSES["gepo"](epsilon_from="variance", group_epsilon=0.5)(given)


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


def test_cispo_keeps_the_gradient_where_a_clip_ends_it_and_is_tis_without_a_lower_bound() -> None:
    old = torch.zeros(1, 2)
    new = torch.tensor([[math.log(2.0), math.log(0.5)]], requires_grad=True)
    batch = LossBatch(new, old, torch.tensor([1.0]), torch.ones(1, 2))
    LOSSES["cispo"](clip_low=0.2, clip_high=0.5)(batch).loss.backward()
    assert new.grad.tolist() == [[-0.75, pytest.approx(-0.4)]]
    free, tis = LOSSES["cispo"](clip_high=0.5)(batch), LOSSES["tis"](ratio_cap=1.5)(batch)
    assert free.loss.item() == tis.loss.item()
    assert free.figures[CLIPPED].value == tis.figures[CLIPPED].value == 0.5


def test_gepo_at_epsilon_one_is_the_policy_gradient_and_at_zero_the_plain_group_expectation() -> None:
    batch = Batch(7)
    lengths = batch.mask.sum(-1)
    for epsilon in (0.0, 1.0):
        new = batch.new.clone().requires_grad_(True)
        batch.loss("gepo", new, group_epsilon=epsilon).loss.backward()
        weight = torch.ones(8, dtype=torch.float64)
        if epsilon == 0:
            p = ((batch.new * batch.mask).sum(-1) / lengths).exp()
            weight = p / batch.of_groups(log_expectation).exp()
        expected = -(weight * batch.advantages / lengths / 8)[:, None] * batch.mask
        torch.testing.assert_close(new.grad, expected, atol=1e-12, rtol=0)


def test_gepo_needs_the_expectation_of_the_whole_group_and_says_what_lies_outside_the_clip() -> None:
    batch = Batch(8)
    output = batch.loss("gepo", group_epsilon=0.0)
    weights = ((batch.new * batch.mask).sum(-1) / batch.mask.sum(-1) - batch.of_groups(log_expectation)).exp()
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
    assert kl.cppo(new, reference).tolist() == kl.k3(new, reference).tolist()
    expected = [math.exp(0.5) * 0.5 - math.exp(0.5) + 1, math.exp(-1.0) * -1.0 - math.exp(-1.0) + 1]
    assert kl.weighted_k3(new, reference).tolist()[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("estimator", BEHAVIOUR_KL_ESTIMATORS)
def test_a_divergence_from_the_sampler_agrees_with_loops(estimator: BehaviourKlEstimatorName) -> None:
    batch = Batch(9)
    new = batch.new.clone().requires_grad_(True)
    values = BEHAVIOUR_KL_ESTIMATORS[estimator](new, batch.behaviour)
    values.sum().backward()
    for row, column in batch.mask.nonzero().tolist():
        at = loops.Dual(batch.new[row, column].item(), 1.0)
        expected = loops.divergence(estimator, at, batch.behaviour[row, column].item())
        assert values[row, column].item() == pytest.approx(expected.value, abs=1e-12)
        assert new.grad[row, column].item() == pytest.approx(expected.slope, abs=1e-12)


def test_on_stale_text_only_the_weighted_estimator_is_the_divergence_and_its_gradient() -> None:
    # Over all tokens, each weighted by the sampler's probability, as if it sampled for ever. The policy has all but
    # given up the sampler's second token.
    logits = torch.tensor([1.0, -5.0, 0.5], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64)
    p = torch.softmax(logits, 0)
    exact = (p * (p / q).log()).sum()
    forward = (q * (q / p).log()).sum()
    chi2 = (q * q / p).sum() - 1
    weighted, published = ((q * estimate(p.log(), q.log())).sum() for estimate in (kl.weighted_k3, kl.cppo))
    assert weighted.item() == pytest.approx(exact.item(), abs=1e-12)
    assert published.item() == pytest.approx((chi2 - forward).item(), abs=1e-12)
    assert published > 20 * exact
    (gradient,), (of_weighted,), (of_published,) = (
        torch.autograd.grad(value, logits, retain_graph=True) for value in (exact, weighted, published)
    )
    torch.testing.assert_close(of_weighted, gradient, atol=1e-12, rtol=0)
    assert of_published[1] < 100 * gradient[1] < 0, "it pulls the lost token back, hard"


def test_near_the_sampler_both_estimators_agree() -> None:
    new = torch.linspace(-1e-3, 1e-3, 7, dtype=torch.float64)
    both = [estimate(new, torch.zeros_like(new)) for estimate in (kl.weighted_k3, kl.cppo)]
    torch.testing.assert_close(*both, atol=1e-9, rtol=0)


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
    one, two = torch.ones(1), torch.ones(2)
    assert ess(torch.tensor([2.0, 2.0]), two).value == 1
    assert ess(torch.tensor([1.0, 0.0]), two).value == 0.5
    assert ess(torch.tensor([2.0, 9.0, 2.0]), torch.tensor([True, False, True])).value == 1
    assert joined([{"ess": ess(torch.tensor([1.0]), one)}, {"ess": ess(torch.tensor([0.0]), one)}])["ess"].value == 0.5
    assert ess(torch.ones(2), torch.zeros(2)).value == 1
    assert ess(torch.ones(0), torch.ones(0)).value == 1
