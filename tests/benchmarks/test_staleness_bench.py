from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from benchmarks.common.halving import MAX_WORKINGS, WarmStart, working
from benchmarks.staleness.__main__ import QUICK, _config, main
from benchmarks.staleness.arms import ARMS, ASKED, EVERY_DELAY
from benchmarks.staleness.cell import Bench, Cell
from benchmarks.staleness.delays import DISTRIBUTIONS, LEAST_S, NUM_SAMPLERS, TAIL, WINDOW_S, check, lags
from benchmarks.staleness.rates import choose
from benchmarks.staleness.run import Run
from benchmarks.staleness.subject import counting_bits
from benchmarks.staleness.table import interval, rows
from swarm.policy.loading import Policy
from swarm.training.config import UpdateSettings


def _cell(arm: str, delay: str, seed: int, best: float, last: float, start: float = 0.25, **figures: object) -> Cell:
    known = {
        "learning_rate": 1e-4,
        "accuracies": [0.3],
        "rewards": [],
        "lags": [0, 64],
        "behaviour_kl": [0.1, 0.002],
        "ess": [1.0, 0.5],
        "sequence_ess": [1.0, 0.1],
        "max_ratio": [1.0, 9.0],
        "clip_fraction": [],
        "mean_tokens": 77.0,
        "gave_up": False,
        "cpu_s": 1.0,
        **figures,
    }
    return Cell(arm=arm, delay=delay, seed=seed, best=best, last=last, start=start, **known)


class Given:
    """Cells as given: accuracy after the first update by learning rate, divergence likewise."""

    def __init__(self, accuracies: dict[float, float], divergences: dict[float, float]) -> None:
        self.asked: list[tuple[str, str, int, float]] = []
        self._accuracies = accuracies
        self._divergences = divergences

    def cell(self, arm: str, delay: str, seed: int, rate: float) -> Cell:
        self.asked.append((arm, delay, seed, rate))
        accuracies = [0.3, 0.9, self._accuracies[rate]]
        kl = [self._divergences[rate]] * 2
        return _cell(arm, delay, seed, 0.0, 0.0, accuracies=accuracies, behaviour_kl=kl, gave_up=rate == 1.0)


def test_a_working_counts_bits_and_may_forget_some() -> None:
    never, always = WarmStart(forgotten=0.0), WarmStart(forgotten=1.0)
    assert working(13, never, random.Random(0)) == "6 1, 3 1, 1 2, 0 3<answer>3</answer>"
    assert working(13, always, random.Random(0)) == "6 0, 3 0, 1 0, 0 0<answer>0</answer>"


def test_a_working_may_be_done_again() -> None:
    often = WarmStart(forgotten=0.0, again=1.0)
    assert working(2, often, random.Random(0)) == "; ".join(["1 0, 0 1"] * MAX_WORKINGS) + "<answer>1</answer>"


def test_best_and_last_are_means_over_seeds_beside_the_start() -> None:
    cells = {
        ("gepo", "64"): [_cell("gepo", "64", 1, 0.4, 0.4), _cell("gepo", "64", 2, 0.6, 0.5)],
        ("grpo", "64"): [_cell("grpo", "64", 1, 0.4, 0.2)],
        ("gepo", "0"): [_cell("gepo", "0", 1, 0.4, 0.2)],
        ("grpo", "0"): [],
    }
    found = {row.what: row for row in rows(cells)}
    assert found["delay 64, gepo: best accuracy"].value == pytest.approx(0.5)
    assert found["delay 64, gepo: last accuracy"].value == pytest.approx(0.45)
    assert found["delay 64, gepo: last accuracy"].baseline == 0.25
    assert found["delay 64, gepo: last accuracy"].ratio == pytest.approx(1.8)
    assert found["delay 64, gepo: last / best"].met is False
    assert found["delay 64, grpo: last / best"].value == pytest.approx(0.5)
    assert found["delay 64, grpo: last / best"].met is None, "the paper's claim is about gepo"
    assert found["delay 0, gepo: last / best"].met is None, "and about delays"
    assert found["delay 64, grpo: largest token ratio"].value == 9.0
    assert found["delay 64, grpo: divergence from the sampler"].value == 0.002
    assert found["delay 64, grpo: age of the rollouts, largest"].value == 64
    assert not any("delay 0, grpo" in what for what in found), "nothing is finished there"


def test_the_interval_of_three_seeds_is_students() -> None:
    low, high = interval([0.4, 0.5, 0.6])
    assert (low, high) == pytest.approx((0.5 - 4.303 * 0.1 / 3**0.5, 0.5 + 4.303 * 0.1 / 3**0.5))
    assert interval([0.5]) == (0.5, 0.5)


@pytest.mark.parametrize("name", ["lognormal", "weibull"])
def test_the_bounds_are_the_ends_of_the_interval_of_a_drawn_delay(name: str) -> None:
    rng = random.Random(1)
    drawn = sorted(DISTRIBUTIONS[name](rng) for _ in range(100_000))
    below, above = (sum(test(d) for d in drawn) for test in (lambda d: d < LEAST_S, lambda d: d > WINDOW_S))
    assert below == pytest.approx(TAIL * len(drawn), abs=70)
    assert above == pytest.approx(TAIL * len(drawn), abs=70)


def test_the_means_of_drawn_delays() -> None:
    # ln D has mean ln sqrt(60 1800) and deviation ln(30) / (2 2.807); k = 2.2875 and lambda = 823 s; 1800 s / 5.99.
    rng = random.Random(2)
    means = {name: statistics.fmean(draw(rng) for _ in range(50_000)) for name, draw in DISTRIBUTIONS.items()}
    expected = {"lognormal": math.sqrt(60 * 1800) * math.exp(0.6058**2 / 2), "weibull": 729.0, "exponential": 300.4}
    assert means == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_sampler_keeps_a_policy_until_its_delay_has_passed(name: str) -> None:
    found = lags(name, 4_000, 64, seed=3)
    versions = [update - lag for update, lag in enumerate(found)]
    assert found[0] == 0 and min(found) >= 0 and 16 < max(found) <= 64
    for sampler in range(NUM_SAMPLERS):
        its = versions[sampler::NUM_SAMPLERS]
        assert its == sorted(its) and len(set(its)) < len(its) / 2, "it loads newer policies, and keeps each a while"
    assert lags(name, 4_000, 64, seed=3) == found != lags(name, 4_000, 64, seed=4)
    assert max(lags(name, 4_000, 8, seed=3)) <= 8, "the window scales"


def test_a_fixed_delay_starts_with_the_initial_policy() -> None:
    assert lags("2", 5, 64, seed=1) == [0, 1, 2, 2, 2]
    assert lags("0", 3, 64, seed=1) == [0, 0, 0]
    for delay in EVERY_DELAY:
        assert check(delay) == delay
    for delay in ("-1", "gamma", "1.5", ""):
        with pytest.raises(ValueError, match="lognormal"):
            check(delay)


def test_a_learning_rate_is_chosen_by_accuracy_on_policy() -> None:
    given = Given({1e-5: 0.4, 1e-4: 0.7, 1e-3: 0.5, 1.0: 0.9}, {})
    given._divergences = dict.fromkeys(given._accuracies, 0.0)
    choice = choose(given, "gepo", (1e-5, 1e-4, 1e-3, 1.0), (101, 102), None)
    assert choice.learning_rate == 1e-4, "1.0 broke off"
    assert {asked[1] for asked in given.asked} == {"0"}
    assert choice.tried[1e-4] == [0.7, 0.7]
    named = {row.what: row.value for row in choice.rows()}
    assert named["gepo: learning rate"] == 1e-4
    assert named["choosing, gepo, learning rate 0.001: accuracy on-policy"] == 0.5


def test_a_learning_rate_is_chosen_by_the_divergence_that_comes_nearest() -> None:
    divergences = {1e-5: 1e-4, 1e-4: 2e-3, 1e-3: 0.1}
    given = Given(dict.fromkeys(divergences, 0.5), divergences)
    assert choose(given, "gepo", tuple(divergences), (101,), 0.0025).learning_rate == 1e-4
    assert {asked[1] for asked in given.asked} == {"lognormal"}
    assert choose(given, "gepo", (0.3,), (101,), None).learning_rate == 0.3, "without a grid nothing is run"


@pytest.mark.parametrize("arm", ARMS)
def test_every_method_is_a_valid_configuration(arm: str) -> None:
    assert UpdateSettings.model_validate(ARMS[arm]).objective == ARMS[arm]["objective"]


def test_methods_have_the_clip_of_their_papers() -> None:
    gspo, gepo = (UpdateSettings.model_validate(ARMS[arm]) for arm in ("gspo", "gepo"))
    assert (gspo.loss.clip_low, gspo.loss.clip_high) == (3e-4, 4e-4)
    assert (gepo.loss.clip_low, gepo.loss.clip_high, gepo.loss.group_clip) == (0.2, 0.2, True)
    assert (gepo.behaviour_kl, gepo.behaviour_kl_estimator, gepo.advantage) == (0.005, "cppo", "dr_grpo")
    assert set(ASKED) <= set(ARMS)


def test_a_wrong_delay_and_a_model_that_is_not_there_are_refused(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--delays", "gamma"])
    assert "lognormal" in capsys.readouterr().err
    for option, value in (("--config", "none.yaml"), ("--model", "none")):
        assert main([option, str(tmp_path / value), "--cells", str(tmp_path)]) == 2
        assert value in capsys.readouterr().out


def test_a_model_without_a_configuration_gets_tasks_that_it_can_answer_and_lora() -> None:
    config = _config("smollm2", None)
    assert [(task.name, task.find) for task in config.tasks] == [("sums", "last_number"), ("gcd", "last_number")]
    assert (config.policy.system_prompt, config.policy.threads) == ("", 1)
    assert config.policy.lora is not None and config.policy.lora.rank == 16
    assert config.generation.max_new_tokens == 24


@pytest.mark.slow
def test_a_cell_is_run_once_and_an_interrupted_one_ends_as_if_it_had_not_been(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = counting_bits(QUICK.warm_start, tmp_path, Console(quiet=True))

    def run(folder: str) -> Cell:
        bench = Bench(QUICK.plan, subject, tmp_path / folder, Console(quiet=True))
        return bench.cell("gepo", "lognormal", 1, 1e-3)

    cell = run("whole")
    assert len(cell.accuracies) == 1 + QUICK.plan.updates // QUICK.plan.evaluate_every
    assert len(cell.rewards) == len(cell.lags) == QUICK.plan.updates
    assert len(cell.behaviour_kl) > 0 < max(cell.lags), "the policy was trained on stale text"
    assert run("whole") == cell

    update = Run._update

    def update_until_the_last(self: Run) -> None:
        if self.progress.step == QUICK.plan.updates - 1:
            raise KeyboardInterrupt
        update(self)

    monkeypatch.setattr(Run, "_update", update_until_the_last)
    with pytest.raises(KeyboardInterrupt):
        run("interrupted")
    monkeypatch.setattr(Run, "_update", update)
    assert replace(run("interrupted"), cpu_s=cell.cpu_s) == cell
    assert not list(tmp_path.rglob("*.unfinished")), "what is finished needs no state"


@pytest.mark.slow
def test_any_model_of_a_configuration_is_trained_and_an_interrupted_run_reports_what_is_finished(
    policy: Policy, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.save(tmp_path / "model")
    config = tmp_path / "node.yaml"
    config.write_text('policy: {system_prompt: "", lora: {rank: 4}}\ngeneration: {max_new_tokens: 8}\n')
    wanted = ["--quick", "--model", str(tmp_path / "model"), "--config", str(config), "--only", "gspo"]
    options = [*wanted, "--delays", "2", "--rates", "1e-4", "--cells", str(tmp_path), "--out", str(tmp_path / "out")]
    run = Bench._run

    def run_one(self: Bench, arm: str, delay: str, seed: int, rate: float, unfinished: Path) -> Cell:
        if seed == 2:
            raise KeyboardInterrupt
        return run(self, arm, delay, seed, rate, unfinished)

    monkeypatch.setattr(Bench, "_run", run_one)
    assert main([*options, "--seeds", "1", "2"]) == 130
    monkeypatch.setattr(Bench, "_run", lambda *_: pytest.fail("it is finished"))
    assert main([*options, "--seeds", "1"]) == 0
    found = {row["what"]: row for row in json.loads((tmp_path / "out").read_text())["rows"]}
    assert found["gspo: learning rate"]["value"] == 1e-4
    assert found["delay 2, gspo: last accuracy"]["n"] == 1
    assert found["delay 2, gspo: age of the rollouts, largest"]["value"] == 2
