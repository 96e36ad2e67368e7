"""Rows about learning curves: what accuracy on held-out questions costs in tokens and in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

import numpy as np

from benchmarks.common.report import Row
from benchmarks.sharing.table import Outcomes, figure_row
from swarm.telemetry.benefit.comparison import (
    Cost,
    Point,
    SwarmOutcome,
    estimate,
    learning_curve,
    mean_learning_curve,
    ratio_by_seed,
)

COSTS: tuple[Cost, ...] = ("tokens", "seconds")
"""Those of every curve."""
UNITS: dict[Cost, str] = {"tokens": "tokens", "seconds": "s", "processor_s": "processor seconds"}
Figures = Mapping[str, Mapping[int, float]]
"""One figure, by row and seed."""


def accuracy_at(curve: Sequence[Point[float]], kind: Cost, amount: float) -> float:
    """Accuracy of a curve when it has cost so much, interpolated between its evaluations, of which there is one."""
    return float(np.interp(amount, [point.cost(kind) for point in curve], [point.accuracy for point in curve]))


def cost_to_reach(curve: Sequence[Point[float]], kind: Cost, accuracy: float) -> float | None:
    """Cost at which a curve first reached an accuracy, interpolated likewise; None if it never did, or for processor
    seconds that were not counted."""
    if kind == "processor_s" and any(point.processor_s is None for point in curve):
        return None
    if curve and curve[0].accuracy >= accuracy:
        return curve[0].cost(kind)
    for before, after in pairwise(curve):
        if after.accuracy >= accuracy:
            part = (accuracy - before.accuracy) / (after.accuracy - before.accuracy)
            return before.cost(kind) + part * (after.cost(kind) - before.cost(kind))
    return None


def along(title: str, outcomes: Outcomes) -> list[Row]:
    """Accuracy at every evaluation, and what a node had spent until then."""
    rows = []
    for name, found in outcomes.items():
        for point in mean_learning_curve(found):
            what = f"{title}, {name}, after {point.round} rounds"
            rows.append(figure_row(f"{what}: held-out accuracy", point.accuracy))
            if point.round > 0:
                rows += [figure_row(f"{what}: {kind} a node", point.cost(kind), UNITS[kind]) for kind in COSTS]
    return rows


def at_equal_cost(title: str, outcomes: Outcomes) -> list[Row]:
    """Accuracy when a node has spent what it spends in all in the cheapest of the swarms."""
    curves = _curves(outcomes)
    rows: list[Row] = []
    for kind in COSTS:
        spent = [curve[-1].cost(kind) for by_seed in curves.values() for curve in by_seed.values()]
        if spent:
            amount = min(spent)
            accuracies = {
                name: {seed: accuracy_at(curve, kind, amount) for seed, curve in by_seed.items()}
                for name, by_seed in curves.items()
            }
            what = f"held-out accuracy after {amount:,.0f} {UNITS[kind]} a node"
            rows += _against_the_first(title, what, "", accuracies)
    return rows


def time_to_reach(
    title: str, outcomes: Outcomes, accuracies: Sequence[float], kind: Cost = "seconds", of: str = "time"
) -> list[Row]:
    """The cost of this kind of each accuracy; none where a swarm did not reach it, as a mean of the others would
    flatter."""
    curves = _curves(outcomes)
    rows = []
    for accuracy in accuracies:
        what = f"{of} to a held-out accuracy of {accuracy:.0%}"
        costs = {}
        for name, by_seed in curves.items():
            found = {seed: cost_to_reach(curve, kind, accuracy) for seed, curve in by_seed.items()}
            reached = {seed: cost for seed, cost in found.items() if cost is not None}
            costs[name] = reached if len(reached) == len(found) else {}
            if len(reached) < len(found):
                rows.append(Row(f"{title}, {name}: {what}, reached by {len(reached)} of {len(found)}", None, "s"))
        rows += _against_the_first(title, what, "s", costs)
    return rows


def by_task(title: str, outcomes: Outcomes) -> list[Row]:
    """Accuracy on each task before the first round and after the last."""
    rows: list[Row] = []
    for when, place in (("before", 0), ("after", -1)):
        for task in _tasks(outcomes):
            accuracies = {
                name: {outcome.seed: _task_accuracy(outcome, task, place) for outcome in found}
                for name, found in outcomes.items()
            }
            rows += _against_the_first(title, f"held-out accuracy on {task}, {when}", "", accuracies)
    return rows


def _against_the_first(title: str, what: str, unit: str, figures: Figures) -> list[Row]:
    """The mean of each row that has figures, and its ratio to the first row over the seeds that both have."""
    first, *_ = figures
    rows = []
    for name, by_seed in figures.items():
        if by_seed:
            rows.append(figure_row(f"{title}, {name}: {what}", estimate(list(by_seed.values())), unit))
        against = ratio_by_seed(by_seed, figures[first])
        if against is not None and name != first:
            rows.append(figure_row(f"{title}, {name}: {what}, against {first}", against))
    return rows


def _curves(outcomes: Outcomes) -> dict[str, dict[int, list[Point[float]]]]:
    """By row and seed, where nodes were evaluated."""
    return {
        name: {outcome.seed: curve for outcome in found if (curve := learning_curve(outcome))}
        for name, found in outcomes.items()
    }


def _tasks(outcomes: Outcomes) -> list[str]:
    nodes = (node for found in outcomes.values() for outcome in found for node in outcome.nodes)
    return sorted({task for node in nodes for each in node.evaluations for task in each.tasks})


def _task_accuracy(outcome: SwarmOutcome, task: str, place: int) -> float:
    """Mean over the nodes, at the evaluation of this index."""
    counts = [node.evaluations[place].tasks[task] for node in outcome.nodes]
    return fmean(correct / asked for correct, asked in counts)
