"""The table: accuracy, divergence and importance weights of every method at every delay."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.common.report import Row, percentile
from benchmarks.staleness.cell import Cell, typical
from benchmarks.staleness.run import Plan

Cells = Mapping[tuple[str, str], Sequence[Cell]]
"""Finished cells of each seed, by method and delay."""

KEPT = 0.97
"""The paper's claim: GEPO's last accuracy is within 3% of its best, also at the longest delays."""
CLAIMED = ("gepo", "gepo, equations")
STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Two-sided 95% quantiles by the number of seeds."""


def rows(cells: Cells) -> list[Row]:
    """Of each method at each delay; the baseline is the policy before the first update."""
    table = []
    for (arm, delay), seeds in cells.items():
        if not seeds:
            continue
        name = f"delay {delay}, {arm}"
        start = statistics.fmean(cell.start for cell in seeds)
        kept = [cell.last / cell.best if cell.best else 0.0 for cell in seeds]
        table += [
            _row(f"{name}: best accuracy", [cell.best for cell in seeds], baseline=start),
            _row(f"{name}: last accuracy", [cell.last for cell in seeds], baseline=start),
            _row(f"{name}: last / best", kept, target=KEPT if arm in CLAIMED and delay != "0" else None),
            _row(f"{name}: divergence from the sampler", [typical(cell.behaviour_kl) for cell in seeds], "nats/token"),
            _row(f"{name}: the same, 90th percentile", [_high(cell.behaviour_kl) for cell in seeds], "nats/token"),
            _row(f"{name}: age of the rollouts, mean", [statistics.fmean(cell.lags) for cell in seeds], "updates"),
            _row(f"{name}: age of the rollouts, largest", [max(cell.lags) for cell in seeds], "updates"),
            _row(f"{name}: effective sample size, tokens", [typical(cell.ess) for cell in seeds]),
            _row(f"{name}: effective sample size, completions", [typical(cell.sequence_ess) for cell in seeds]),
            _row(f"{name}: largest token ratio", [typical(cell.max_ratio) for cell in seeds]),
            _row(f"{name}: tokens clipped or capped", [typical(cell.clip_fraction) for cell in seeds]),
        ]
    return table


def _high(figures: Sequence[float]) -> float:
    return percentile(figures[len(figures) // 2 :], 90) or 0.0


def _row(
    what: str,
    values: Sequence[float],
    unit: str = "",
    baseline: float | None = None,
    target: float | None = None,
) -> Row:
    mean = statistics.fmean(values)
    ratio = mean / baseline if baseline else None
    met = None if target is None else mean >= target
    return Row(what, mean, unit, baseline, ratio, target, met, interval(values), len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean by Student's t; of a single value, itself."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, mean
    half = STUDENT_T.get(len(values), 2.3) * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def notes(cells: Cells, plan: Plan, about: str) -> list[str]:
    """What the rows mean."""
    everything = [cell for seeds in cells.values() for cell in seeds]
    if not everything:
        return []
    tokens = statistics.fmean(cell.mean_tokens for cell in everything)
    gave_up = sum(cell.gave_up for cell in everything)
    return [
        f"{about}: {tokens:.0f} tokens per completion. {plan.updates} updates of {plan.questions} questions with "
        f"{plan.group_size} completions. Start: the policy before the first update, on the questions of best and last.",
        f"Best: the policy that was best at {plan.num_evaluation} held-out questions, asked every "
        f"{plan.evaluate_every} updates; it and the last are asked {plan.num_final} others. Spread: 95% interval of "
        "the mean over seeds; of the rows about learning rates, the extremes.",
        "Divergence, effective sample size (as a part of tokens, of completions) and largest ratio of an update: "
        "against the policy that sampled it; over the second half of the updates, the median unless said otherwise.",
        f"A drawn delay has four samplers and a window of 1,800 s, which is {plan.window_updates} updates here.",
        f"{gave_up} of {len(everything)} cells ended in losses that were not finite.",
    ]
