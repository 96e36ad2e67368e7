"""What a table of the benchmark is, and the rows that all tables have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from benchmarks.common.report import Row
from benchmarks.sharing.swarms import Comparison, Scale, Size
from swarm.telemetry.benefit.comparison import ComparedRow, Estimate, SwarmOutcome, compare

Outcomes = Mapping[str, Sequence[SwarmOutcome]]
"""By row of a comparison; the first is the baseline."""


@dataclass(frozen=True)
class Table:
    """A part of the benchmark."""

    comparisons: Callable[[Size], list[Comparison]]
    """What to run."""
    findings: Callable[[str, Outcomes], list[Row]]
    """What it is for: rows of one comparison by its title, with a target where there is one."""
    notes: tuple[str, ...]
    scale: Callable[[Size], Scale] = lambda size: size
    prepare: Callable[[Size, Console, int], None] = lambda size, console, jobs: None
    """Makes what its cells need, and raises `SwarmError` for what this machine cannot run: so many cells at a time."""
    jobs: Callable[[int], int] = lambda jobs: jobs
    """Cells at a time, from those asked for."""
    only_when_named: bool = False
    """Needs an extra, and hours: only with --full, or by name."""


def rows(title: str, outcomes: Outcomes) -> list[Row]:
    """Everything measured in a comparison, without targets."""
    measured = [row for compared in compare(outcomes) for row in _measured(title, compared)]
    return measured + _by_kind(title, outcomes)


def figure_row(what: str, figure: Estimate, unit: str = "") -> Row:
    """A figure over seeds."""
    return Row(what, figure.value, unit, spread=figure.interval, n=figure.n)


def target_row(what: str, found: Estimate | None, target: float) -> Row:
    """A ratio with its target; not met when it could not be measured."""
    if found is None:
        return Row(what, None, "", target=target, met=False)
    return Row(what, found.value, "", target=target, met=found.value >= target, spread=found.interval, n=found.n)


def _measured(title: str, compared: ComparedRow) -> list[Row]:
    name = f"{title}, {compared.row}"
    figures = {
        "cumulative reward a node": compared.cumulative_reward,
        "cumulative reward against the first": compared.ratio,
        "held-out accuracy": compared.accuracy,
        "drawdown": compared.drawdown,
        "own groups with signal a round": compared.signal,
        "others' groups used a round": compared.others_used,
        "tokens a node": compared.tokens,
        "seconds a node": compared.seconds,
    }
    return [figure_row(f"{name}: {what}", figure) for what, figure in figures.items() if figure is not None]


def _by_kind(title: str, outcomes: Outcomes) -> list[Row]:
    """Each kind of node against itself in the first row, where a swarm has several; a node's name begins with it."""
    names = {node.name for each in outcomes.values() for outcome in each for node in outcome.nodes}
    kinds = sorted({name.rpartition("-")[0] for name in names})
    found = []
    for kind in kinds if len(kinds) > 1 else ():
        only = {row: [outcome.only(kind) for outcome in each] for row, each in outcomes.items()}
        for compared in compare(only):
            if compared.ratio is not None:
                what = f"{title}, {compared.row}, {kind} nodes: cumulative reward against the first"
                found.append(figure_row(what, compared.ratio))
    return found
