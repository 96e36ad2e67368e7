"""The table of processor time: processor seconds to an accuracy, alone and with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.common.report import Row
from benchmarks.sharing.curves import along, cost_to_reach, time_to_reach
from benchmarks.sharing.swarms import AUTO, Comparison, Scale, Size, peers, swarm_cells
from benchmarks.sharing.table import Outcomes
from nodes.simulation.cells import Cell
from nodes.simulation.configs import Fields
from swarm.policy.config import TINY_SPARSE
from swarm.telemetry.benefit.comparison import (
    Estimate,
    SwarmOutcome,
    estimate,
    learning_curve,
    ratio_by_seed,
)

FEWEST = 4
"""Nodes from which on a swarm has a target."""
MOST_OF_AUTO = 1.05


@dataclass(frozen=True)
class Target:
    """What a policy's table is to show; fixed beforehand."""

    accuracies: tuple[float, ...]
    """Held-out accuracies, above that of the start."""
    decides: float
    """The accuracy at which swarms are compared with the best lone node."""
    most: float
    """Most of its processor seconds that a swarm should need."""


EMBEDDED = Target((0.05, 0.1, 0.15), decides=0.1, most=0.7)
SLOTS = (8, 24)
"""Own and others' groups of an update, at most."""
TUNED: Fields = [("update.minibatches", "8"), ("policy.device", "cpu")]
"""Of all rows."""
LONE = "alone"
LONE_AUTO = f"{LONE}, {AUTO}"
LONE_QUESTIONS = (16, 8)
LONE_ROWS = {f"{LONE}, {questions} questions": questions for questions in LONE_QUESTIONS}
LONE_NODES = 2
"""They do not depend on each other."""
NOTE = (
    "Sparse start. Alone, two nodes a seed learn without each other, with 16 questions a round, or 8 in twice the "
    "rounds, and as many groups an update, or as `auto` chooses. Together: at most 8 own and 24 others' groups, of "
    "about 8 questions, as `auto` chooses. Updates have at most 8 optimizer steps. Seconds are processor seconds of a "
    "node's rounds, with sharing, receiving and regrading, without start and evaluations; accuracies between two "
    "evaluations are interpolated."
)


def by_clock(size: Size) -> list[Comparison]:
    """Lone nodes of several settings, then two, four and so on, up to the number of nodes of the scale."""
    scale = size.clock
    longer = replace(scale, rounds=2 * scale.rounds)
    cells = {}
    for row, questions in LONE_ROWS.items():
        rounds = scale if questions == max(LONE_QUESTIONS) else longer
        asks = ("generation.questions_per_round", str(questions))
        cells[row] = _cells(row, rounds, LONE_NODES, f"{questions}/0", [asks])
    alone = [("share.groups", "none"), ("mix.local", "8"), ("mix.external", "0")]
    cells[LONE_AUTO] = _cells(LONE_AUTO, longer, LONE_NODES, AUTO, alone)
    most = [("mix.local", str(SLOTS[0])), ("mix.external", str(SLOTS[1])), ("generation.questions_per_round", "8")]
    for count in (2**k for k in range(1, scale.nodes.bit_length())):
        row = f"{count} nodes"
        cells[row] = _cells(row, scale, count, AUTO, most)
    return [Comparison("clock", cells)]


def clock_findings(title: str, outcomes: Outcomes, target: Target = EMBEDDED) -> list[Row]:
    """Processor seconds to each accuracy, those of swarms and of `auto` against the best lone node's, and accuracies
    along the way. The names of lone rows begin with `LONE`, those of swarms with the number of nodes."""
    costs = {row: _costs(found, target.decides) for row, found in outcomes.items() if found}
    lone = {row: cost for row, cost in costs.items() if row.startswith(LONE) and cost}
    reached = time_to_reach(title, outcomes, target.accuracies, "processor_s", "processor time")
    against = []
    for row, cost in costs.items():
        others = [each for each in lone if each != LONE_AUTO or row != LONE_AUTO]
        is_control = row.startswith(LONE) and row != LONE_AUTO
        if is_control or not others:
            continue
        best = min(others, key=lambda row: estimate(list(lone[row].values())).value)
        most = MOST_OF_AUTO if row == LONE_AUTO else target.most if int(row.split()[0]) >= FEWEST else None
        what = f"{title}, {row}: processor time to {target.decides:.0%}, against the best lone node, {best}"
        against.append(_at_most(what, ratio_by_seed(cost, lone[best]), most))
    return [*against, *reached, *along(title, outcomes)]


def _at_most(what: str, found: Estimate | None, target: float | None) -> Row:
    if found is None:
        return Row(what, None, "", target=target, met=None if target is None else False)
    met = None if target is None else found.value <= target
    return Row(what, found.value, "", target=target, met=met, spread=found.interval, n=found.n)


def _costs(outcomes: Sequence[SwarmOutcome], accuracy: float) -> Mapping[int, float]:
    """Processor seconds to this accuracy, by seed; empty if one did not reach it."""
    found = {each.seed: cost_to_reach(learning_curve(each), "processor_s", accuracy) for each in outcomes}
    reached = {seed: cost for seed, cost in found.items() if cost is not None}
    return reached if len(reached) == len(found) else {}


def _cells(row: str, scale: Scale, count: int, mix: str, changes: Fields) -> list[Cell]:
    return swarm_cells(row, scale, peers(count), TINY_SPARSE, mix, [*TUNED, *changes])
