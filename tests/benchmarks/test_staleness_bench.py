from __future__ import annotations

import random

import pytest
from rich.console import Console

from benchmarks.common.halving import MAX_WORKINGS, WarmStart, working
from benchmarks.staleness.__main__ import QUICK, Bench, Cell, interval, rows


def _cell(arm: str, lag: int, seed: int, best: float, last: float) -> Cell:
    return Cell(arm, lag, seed, [0.3], best, last, [], [1.0, 0.5], [1.0, 0.1], [1.0, 9.0], [], [], 77.0, False, 1.0)


def test_a_working_counts_bits_and_may_forget_some() -> None:
    never, always = WarmStart(forgotten=0.0), WarmStart(forgotten=1.0)
    assert working(13, never, random.Random(0)) == "6 1, 3 1, 1 2, 0 3<answer>3</answer>"
    assert working(13, always, random.Random(0)) == "6 0, 3 0, 1 0, 0 0<answer>0</answer>"


def test_a_working_may_be_done_again() -> None:
    often = WarmStart(forgotten=0.0, again=1.0)
    assert working(2, often, random.Random(0)) == "; ".join(["1 0, 0 1"] * MAX_WORKINGS) + "<answer>1</answer>"


def test_best_and_last_are_means_over_seeds() -> None:
    cells = {
        ("gepo", 64): [_cell("gepo", 64, 1, 0.4, 0.4), _cell("gepo", 64, 2, 0.6, 0.5)],
        ("grpo", 64): [_cell("grpo", 64, 1, 0.4, 0.2)],
    }
    found = {row.what: row for row in rows(cells)}
    assert found["lag 64, gepo: best accuracy"].value == pytest.approx(0.5)
    assert found["lag 64, gepo: last accuracy"].value == pytest.approx(0.45)
    assert found["lag 64, gepo: last / best"].met is False
    assert found["lag 64, grpo: last / best"].value == pytest.approx(0.5)
    assert found["lag 64, grpo: last / best"].met is None, "the paper's claim is about gepo"
    assert found["lag 64, gepo: largest token ratio"].value == 9.0


def test_the_interval_of_three_seeds_is_students() -> None:
    low, high = interval([0.4, 0.5, 0.6])
    assert (low, high) == pytest.approx((0.5 - 4.303 * 0.1 / 3**0.5, 0.5 + 4.303 * 0.1 / 3**0.5))
    assert interval([0.5]) == (0.5, 0.5)


@pytest.mark.slow
def test_a_small_cell_is_run_once_and_then_read(tmp_path) -> None:
    console = Console(quiet=True)
    cell = Bench(QUICK, tmp_path, console).cell("gepo", 2, 1)
    assert len(cell.accuracies) == 1 + QUICK.updates // QUICK.evaluate_every
    assert len(cell.rewards) == QUICK.updates
    assert Bench(QUICK, tmp_path, console).cell("gepo", 2, 1) == cell
