"""The estimate against planted gradients, of which the truth is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from swarm.sapo.worth import MIN_GROUPS, WorthEstimator
from swarm.types import Estimate, SwarmWorth
from swarm.types.runs import NEEDED_ROUNDS

Array = npt.NDArray[np.float32]
LOCAL = EXTERNAL = 4
NUMBERS = 64


class Planted:
    """A sketcher that hands out what it was given."""

    refusal: str | None = None
    seconds = 0.0

    def __init__(self) -> None:
        self.next: Array | None = None
        self.begun = 0

    def begin_sketches(self) -> None:
        self.begun += 1

    def take_sketches(self) -> Array | None:
        return self.next


def _estimator() -> WorthEstimator:
    return WorthEstimator(Planted(), every_rounds=1, num_groups=LOCAL + EXTERNAL)


def _gradients(rng: np.random.Generator, count: int, along: float, noise: float) -> Array:
    """Gradients whose first coordinate is the wanted direction; `noise` is the length of the rest."""
    found = rng.normal(size=(count, NUMBERS)) * noise / np.sqrt(NUMBERS)
    found[:, 0] += along
    return found.astype(np.float32)


def _measured(
    seed: int = 0, rounds: int = 96, worth: float = 1.0, signal: float = 0.6, noise: float = 2.0
) -> tuple[SwarmWorth, float]:
    """What is known after rounds with external groups of this worth, and the true `help` of these rounds.

    `signal`: probability that one of eight own questions gives a group.
    """
    rng = np.random.default_rng(seed)
    estimator = _estimator()
    along, lengths, alone, alone_lengths = [], [], [], []
    for _ in range(rounds):
        informative = int(rng.binomial(LOCAL + EXTERNAL, signal))
        own = min(LOCAL, informative)
        gradients = [_gradients(rng, own, 1.0, noise), _gradients(rng, EXTERNAL, worth, noise)]
        estimator.add(np.concatenate(gradients), [f"peer-{k}" for k in range(EXTERNAL)], informative)
        mean = (own + EXTERNAL * worth) / (own + EXTERNAL)
        along.append(mean)
        lengths.append(mean**2 + noise**2 / (own + EXTERNAL))
        alone.append(float(informative > 0))
        alone_lengths += [1 + noise**2 / informative] if informative else []
    together = np.mean(along) / np.sqrt(np.mean(lengths))
    assert (known := estimator.worth) is not None
    return known, float(together / (np.mean(alone) / np.sqrt(np.mean(alone_lengths))))


def _holds(estimate: Estimate | None, truth: float) -> bool:
    assert estimate is not None
    return estimate.low <= truth <= estimate.high


@pytest.mark.parametrize(("worth", "signal"), [(1.0, 0.1), (1.0, 0.8), (1.6, 0.5), (0.0, 0.8), (-0.5, 0.8)])
def test_worth_and_help_are_those_of_the_planted_gradients(worth: float, signal: float) -> None:
    known, truth = _measured(worth=worth, signal=signal)
    assert known.each is not None and known.help is not None
    assert known.each.value == pytest.approx(worth, abs=0.3)
    assert known.help.value == pytest.approx(truth, rel=0.15)
    assert set(known.senders) == {f"peer-{k}" for k in range(EXTERNAL)}


def test_others_help_where_own_groups_are_rare_and_hardly_where_all_have_signal() -> None:
    sparse, dense = (_measured(signal=signal)[0].help for signal in (0.08, 1.0))
    assert sparse is not None and sparse.low > 1.5
    assert dense is not None and 0.9 < dense.value < 1.1


def test_gradients_that_lead_away_or_nowhere_do_not_help() -> None:
    for worth in (-1.0, 0.0):
        found = _measured(worth=worth, signal=0.9)[0].help
        assert found is not None and found.high < 1


def test_a_sender_is_judged_by_its_own_groups() -> None:
    rng = np.random.default_rng(1)
    estimator = _estimator()
    for _ in range(60):
        groups = [_gradients(rng, 4, 1, 1), _gradients(rng, 2, 1, 1), _gradients(rng, 2, -1, 1)]
        estimator.add(np.concatenate(groups), ["honest", "honest", "poisoner", "poisoner"], 4)
    assert estimator.worth_of("honest") == pytest.approx(1, abs=0.2)
    assert estimator.worth_of("poisoner") == pytest.approx(-1, abs=0.2)
    assert estimator.worth_of("stranger") is None


def test_a_sender_has_the_benefit_of_the_doubt() -> None:
    """Who seems to be worth little is drawn no more, so that nothing would correct an estimate from a few rounds."""
    errors = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        estimator = _estimator()
        for _ in range(16):
            groups = [_gradients(rng, 2, 1, 2), _gradients(rng, 2, 1, 2)]
            estimator.add(np.concatenate(groups), ["as good"] * 2, 2)
        known, worth = estimator.worth, estimator.worth_of("as good")
        if known is None or worth is None:
            continue
        estimate = known.senders["as good"]
        assert estimate.low <= worth <= estimate.high
        errors.append((abs(estimate.value - 1), abs(worth - 1)))
    assert len(errors) >= 20
    measured, counted = np.mean(errors, axis=0)
    assert counted < 0.3 * measured


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    runs = [_measured(seed, rounds=64, worth=0.7, signal=0.5, noise=1.5) for seed in range(100)]
    assert sum(_holds(known.each, 0.7) for known, _ in runs) >= 88
    assert sum(_holds(known.help, truth) for known, truth in runs) >= 88


def test_products_are_means_over_pairs_of_different_groups() -> None:
    """Against a plain double loop, with groups of the last round as well."""
    rng = np.random.default_rng(2)
    estimator = _estimator()
    before = _gradients(rng, 2, 1, 1)
    estimator.add(before, [], 2)
    own, others = _gradients(rng, 3, 1, 1), _gradients(rng, 2, 0.5, 1)
    estimator.add(np.concatenate([own, others]), ["a", "b"], 3)
    sums = estimator.rounds[-1].sums
    reference = np.concatenate([before, own])
    length = np.sqrt((reference**2).sum(axis=1).mean())
    before, own, others, reference = (each / length for each in (before, own, others, reference))
    pairs = [a @ b for i, a in enumerate(own) for j, b in enumerate(reference) if j != i + len(before)]
    crosses = [a @ b for a in others for b in reference]
    assert sums.own == pytest.approx(np.mean(pairs), rel=1e-4)
    assert sums.cross == pytest.approx(np.mean(crosses), rel=1e-4)
    assert sums.others == pytest.approx(others[0] @ others[1], rel=1e-4)
    assert sums.own_square == pytest.approx(np.mean([a @ a for a in own]), rel=1e-4)
    assert sums.others_square == pytest.approx(np.mean([a @ a for a in others]), rel=1e-4)
    mean = np.concatenate([own, others]).mean(axis=0)
    expected = sum(a @ b for a in (*own, *others) for b in (*own, *others)) / 25
    assert mean @ mean == pytest.approx(expected, rel=1e-4)
    assert (sums.own_squares, sums.cross_pairs, sums.others_pairs) == pytest.approx((3 / 25, 12 / 25, 2 / 25))


def test_rounds_of_long_noisy_gradients_do_not_hide_the_others() -> None:
    """Gradients grow while a policy learns; what the short ones of the start say stays readable."""
    rng = np.random.default_rng(3)
    estimator = _estimator()
    for scale in np.repeat([1.0, 10.0, 100.0], 20):
        noise = 1.0 if scale == 1 else 5.0
        gradients = scale * _gradients(rng, 8, 1, noise)
        estimator.add(gradients, ["a"] * 4, 4)
    assert estimator.worth is not None and (each := estimator.worth.each) is not None
    assert each.low < 1 < each.high and each.high - each.low < 0.5


def test_it_follows_the_true_progress_of_noisy_ascent_on_a_quadratic() -> None:
    """Ascent with normalised steps, as AdamW's and clipping's are: what is measured on the way is about what others
    bring in fact."""

    def climb(seed: int, external: int, worth: float, signal: float) -> tuple[float, WorthEstimator]:
        rng = np.random.default_rng(seed)
        estimator, position = _estimator(), np.zeros(NUMBERS)
        goal, noise = np.full(NUMBERS, 1 / np.sqrt(NUMBERS)), 3.0
        for _ in range(120):
            informative = int(rng.binomial(8, signal))
            own = min(8 - external, informative)
            slope = goal - position
            means = np.concatenate([np.tile(slope, (own, 1)), np.tile(worth * slope, (external, 1))])
            gradients = means + rng.normal(size=means.shape) * noise / np.sqrt(NUMBERS)
            estimator.add(gradients.astype(np.float32), ["other"] * external, informative)
            if len(gradients):
                step = gradients.mean(axis=0)
                position = position + 0.004 * step / np.linalg.norm(step)
        return 1 - float(np.linalg.norm(goal - position)), estimator

    for worth, signal in ((1.0, 0.1), (1.0, 0.9), (-0.5, 0.9)):
        together = [climb(seed, 4, worth, signal) for seed in range(3)]
        alone = [climb(seed, 0, worth, signal)[0] for seed in range(3)]
        truth = np.mean([gain for gain, _ in together]) / np.mean(alone)
        found = [estimator.worth.help.value for _, estimator in together if estimator.worth and estimator.worth.help]
        assert len(found) == 3
        assert np.mean(found) == pytest.approx(truth, rel=0.25)


def test_nothing_is_known_from_few_rounds_few_groups_or_noise() -> None:
    assert _measured(rounds=NEEDED_ROUNDS - 1)[0].help is None
    assert not _measured(rounds=MIN_GROUPS - 1)[0].senders
    noise, _ = _measured(rounds=40, noise=60.0)
    assert (noise.rounds, noise.help, noise.each, noise.senders) == (40, None, None, {})
    silent = _estimator()
    for _ in range(40):
        silent.add(np.empty((0, 1), np.float32), [], 0)
    assert silent.worth == SwarmWorth(rounds=40)


def _played(rounds: int, noise: float, seed: int = 0, others: int = EXTERNAL, **settings: int) -> SwarmWorth:
    """What is known after rounds with groups of others in the last `others` of four."""
    rng = np.random.default_rng(seed)
    estimator = WorthEstimator(Planted(), num_groups=LOCAL + EXTERNAL, **{"every_rounds": 2, **settings})
    for number in range(rounds):
        external = EXTERNAL if number % 4 >= 4 - others else 0
        estimator.add(_gradients(rng, LOCAL + external, 1.0, noise), ["a"] * external, LOCAL)
    assert estimator.worth is not None
    return estimator.worth


def test_it_says_in_how_many_rounds_help_will_be_known() -> None:
    assert _played(NEEDED_ROUNDS - 4, 2.0).rounds_left == 2 * 4, "every other round is measured"
    half = _played(NEEDED_ROUNDS // 2, 2.0, others=2)
    assert half.compared == NEEDED_ROUNDS // 4 and half.rounds_left == 2 * 2 * (NEEDED_ROUNDS - half.compared)
    assert _played(NEEDED_ROUNDS, 2.0, others=0).rounds_left is None, "nobody shares"
    known = _played(NEEDED_ROUNDS, 1.0)
    assert known.help is not None and known.rounds_left is None


def test_what_takes_longer_than_a_window_is_known_in_the_end() -> None:
    """Groups that agree so little that 64 rounds do not tell."""
    early, late = ([_played(rounds, 26.0, seed) for seed in range(6)] for rounds in (64, 1_024))
    assert all(each.help is None for each in early)
    assert all(each.help is not None for each in late) and max(each.rounds for each in late) > 128
    assert any(each.rounds_left is not None for each in early)
    assert all(0 < each.rounds_left <= 2 * 1_024 for each in early if each.rounds_left is not None)


@pytest.mark.parametrize("seed", range(6))
def test_compared_rounds_that_come_all_at_once_are_no_error(seed: int) -> None:
    """Some draws then hold none of them."""
    rng = np.random.default_rng(seed)
    estimator = _estimator()
    for number in range(128):
        external = EXTERNAL if number < NEEDED_ROUNDS else 0
        estimator.add(_gradients(rng, LOCAL + external, 1.0, 26.0), ["a"] * external, LOCAL)
    assert (known := estimator.worth) is not None
    assert known.compared == NEEDED_ROUNDS
    assert known.rounds_left is None or known.rounds_left > 0


def test_each_of_several_steps_makes_progress() -> None:
    """Twice as many groups are twice as many steps, as long as there are no more steps than groups."""
    one, several = (_played(96, 1.0, num_steps=steps).help for steps in (1, 8))
    assert one is not None and several is not None
    assert one.value < 1.5 and several.value == pytest.approx(2.0, abs=0.2)


def test_only_due_rounds_with_whole_sketches_count() -> None:
    sketcher = Planted()
    estimator = WorthEstimator(sketcher, every_rounds=3, num_groups=8)
    assert [estimator.begin(number) for number in range(7)] == [True, False, False, True, False, False, True]
    assert sketcher.begun == 3
    sketcher.next = np.full((2, NUMBERS), np.nan, np.float32)
    estimator.end(1, ["a"], 1)
    sketcher.next = np.ones((1, NUMBERS), np.float32)
    estimator.end(1, ["a"], 1)
    assert estimator.worth == SwarmWorth(rounds=0)
    estimator.end(1, [], 1)
    estimator.end(0, [], 0)
    assert estimator.worth == SwarmWorth(rounds=2)


def test_the_time_alone_leaves_out_what_others_groups_take() -> None:
    estimator = _estimator()
    seconds = {"generate": 4.0, "share": 0.1, "receive": 0.1, "mix": 1.8, "update": 10.0}
    for number in range(NEEDED_ROUNDS):
        assert estimator.worth is not None and estimator.worth.time_alone is None, number
        # Of five own groups with signal an update with others takes four, and four of others.
        estimator.timed(seconds, 8, 5)
    assert estimator.worth.time_alone == pytest.approx((4 + 10 * 5 / 8) / 16)
    assert estimator.figures()["worth/time_alone"] == estimator.worth.time_alone
    for _ in range(NEEDED_ROUNDS):  # nothing to train on, together or alone
        estimator.timed({"generate": 4.0}, 0, 0)
    assert estimator.worth.time_alone == pytest.approx((8 + 10 * 5 / 8) / 20)


def test_progress_by_the_clock_is_help_in_the_time_of_a_round_alone() -> None:
    assert SwarmWorth(9, help=Estimate(1.5, 1.2, 2.0)).help_in_time is None
    assert SwarmWorth(9, time_alone=0.5).help_in_time is None
    assert SwarmWorth(9, help=Estimate(1.5, 1.2, 2.0), time_alone=0.5).help_in_time == Estimate(0.75, 0.6, 1.0)


def test_a_node_that_cannot_measure_does_not() -> None:
    sketcher = Planted()
    sketcher.refusal = "no gradients"
    estimator = WorthEstimator(sketcher, every_rounds=1, num_groups=8)
    assert not estimator.begin(0) and sketcher.begun == 0
    assert estimator.worth is None and estimator.figures() == {}


def test_figures_hold_the_interval_and_each_seconds_once() -> None:
    sketcher = Planted()
    estimator = WorthEstimator(sketcher, every_rounds=1, num_groups=8)
    rng = np.random.default_rng(0)
    for _ in range(40):
        estimator.add(_gradients(rng, 8, 1, 1), ["a"] * 4, 4)
    sketcher.seconds = 2.0
    figures = estimator.figures()
    assert figures["worth/help_low"] < figures["worth/help"] < figures["worth/help_high"]
    assert figures["worth/external_low"] < figures["worth/external"] < figures["worth/external_high"]
    assert figures["worth/cost_s"] == pytest.approx(2, abs=0.1)
    sketcher.seconds = 2.5
    assert estimator.figures()["worth/cost_s"] == pytest.approx(0.5, abs=0.1)
