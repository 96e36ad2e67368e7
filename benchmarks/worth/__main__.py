"""The estimate of the swarm's help, which a node makes from its own gradients, against lone controls.

Swarms of several kinds run in memory with the embedded policies, and each of their nodes a second time alone: same
questions, as many groups in an update, all of them its own. The true benefit is the ratio of the rewards of all rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.common.larger import LARGER, ensure_larger
from benchmarks.common.report import Report, Row, row
from benchmarks.common.running import at_least_one, conclude, option_parser, wide_console
from benchmarks.worth.found import Found, find
from benchmarks.worth.swarms import KINDS, Kind, swarm_and_controls
from nodes.console import policy_progress
from nodes.simulation.cells import CellStore
from nodes.simulation.schedule import run_cells
from swarm.machine import num_cores
from swarm.telemetry.benefit.comparison import stops_in_words

ROUNDS = 160
QUICK_ROUNDS = 48
QUICK_KINDS = ("sparse", "dense", "poisoned", "specialists")
CORRELATION = 0.8
SIGNS = 1.0
COST = 0.05
CELL_MODULE = "benchmarks.worth.cell"


def rows(name: str, found: Found) -> list[Row]:
    """One swarm: what its nodes estimate and predict beside the truth, and the truth with its interval."""
    truth = found.truth
    values = [estimate.value if estimate is not None else None for estimate in found.estimates]
    time = f"{name}: time of a round alone over together, by node"
    return [
        row(f"{name}: estimated progress over alone, by node", values, ""),
        row(f"{name}: predicted rewards over alone, by node", found.predictions, "", baseline=[truth.value]),
        replace(row(f"{name}: true rewards over alone", [truth.value], ""), spread=(truth.low, truth.high)),
        row(time, found.times_alone, "", baseline=found.true_times_alone),
    ]


def verdict(outcomes: Sequence[Found]) -> list[Row]:
    """How well the predictions of all swarms order them, and tell those that help from those that do not."""
    pairs = [(found.prediction, found.truth) for found in outcomes]
    known = [(prediction, truth) for prediction, truth in pairs if prediction is not None]
    clear = [(prediction, truth) for prediction, truth in known if not truth.low <= 1 <= truth.high]
    agreeing = [(prediction > 1) == (truth.value > 1) for prediction, truth in clear]
    correlation = spearman([each for each, _ in known], [truth.value for _, truth in known])
    return [
        row("rank correlation of predicted and true benefit", [correlation], "", target=CORRELATION),
        row(
            "same sign, fraction of the swarms whose true benefit is significant",
            [float(np.mean(agreeing))] if agreeing else [],
            "",
            target=SIGNS,
        ),
        row("swarms with an estimate, fraction", [len(known) / max(1, len(pairs))], ""),
        row(
            "cost, fraction of a node's time",
            [cost for found in outcomes for cost in found.costs],
            "",
            target=COST,
            better="lower",
        ),
    ]


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Rank correlation, equal values with their mean rank; None for fewer than three pairs."""
    if len(ours) < 3:
        return None
    values = np.array([ours, theirs])[:, :, None]
    ranks = (values > values.transpose(0, 2, 1)).sum(axis=2) + (values == values.transpose(0, 2, 1)).sum(axis=2) / 2
    return float(np.corrcoef(ranks)[0, 1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the swarms and controls that are missing."""
    parser = option_parser("worth", __doc__, KINDS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=at_least_one)
    parser.add_argument("--folder", type=Path, default=Path("runs/worth"), help="finished swarms")
    parser.add_argument("--jobs", type=at_least_one, default=num_cores(), help="swarms at a time")
    options = parser.parse_args(arguments)
    report, console = Report("worth", peer="true benefit"), wide_console()
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    names = options.only or (QUICK_KINDS if options.quick else tuple(KINDS))
    seeds = options.seeds[:1] if options.quick else options.seeds
    store = CellStore(options.folder / ("quick" if options.quick else f"{rounds}-rounds"))

    def take() -> int:
        if any(LARGER in KINDS[name].models for name in names):
            with policy_progress(console, LARGER) as progress:
                ensure_larger(progress)
        pairs = [
            swarm_and_controls(name, _smaller(KINDS[name]) if options.quick else KINDS[name], seed, rounds)
            for name in names
            for seed in seeds
        ]
        cells = [cell for pair in pairs for cell in pair]
        failed = run_cells(cells, store, options.jobs, lambda: False, console, CELL_MODULE)
        outcomes = [(pair[0], found) for pair in pairs if (found := find(store, *pair))]
        for cell, found in outcomes:
            report.add(rows(f"{cell.row}, seed {cell.seed}", found))
        judged = verdict([found for _, found in outcomes])
        # Targets apply to full sizes only.
        report.add([replace(each, target=None, met=None) for each in judged] if options.quick else judged)
        about = f"{rounds} rounds; spread of a true benefit: 95% interval over nodes and blocks of rounds."
        report.add([], [about, *stops_in_words(store.results(cells))])
        return 1 if failed else 0

    return conclude(take, report, options, console)


def _smaller(kind: Kind) -> Kind:
    """Two nodes, measured in every round."""
    settings = (*kind.settings, ("telemetry.worth_every_rounds", "1"))
    return replace(kind, models=kind.models[:2], settings=settings)


if __name__ == "__main__":
    sys.exit(main())
