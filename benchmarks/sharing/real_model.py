"""The table of a real language model: processor seconds to an accuracy, alone and together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.common.report import Row
from benchmarks.sharing.clock import LONE, Target, clock_findings
from benchmarks.sharing.curves import at_equal_cost, by_task
from benchmarks.sharing.swarms import AUTO, Comparison, RealScale, Size, peers, swarm_cells
from benchmarks.sharing.table import Outcomes
from nodes.console import policy_progress
from nodes.simulation.cells import Cell
from nodes.simulation.configs import Fields, as_fields, real_model
from swarm.policy.loading import find_source
from swarm.preflight.check import check_nodes

TARGET = Target((0.3, 0.4, 0.5, 0.6), decides=0.6, most=0.8)
FALLING: Fields = [
    ("update.minibatches", "8"),
    ("update.learning_rate", "2e-5"),
    ("update.schedule", "linear"),
    ("update.final_learning_rate", "4e-6"),
]
"""The fastest of those in benchmarks/results/clock.md, alone and together. The rate falls during all rounds."""
LONE_ROWS: dict[str, Fields] = {
    LONE: FALLING,
    f"{LONE}, constant 1e-5": [("update.minibatches", "8"), ("update.learning_rate", "1e-5")],
}
OTHERS = 3
"""Others' groups of an update for each own one, at most."""
NOTE = (
    "The tasks are those of `swarm demo --model`, and the answer is a completion's last number. Alone, one node a seed "
    "makes twice the rounds, has twice the held-out questions, and trains on all own groups with signal. "
    f"Together: at most {OTHERS} groups of others for each own one, as `auto` chooses; nodes take turns in one "
    "process with one thread. Seconds are processor seconds of a node's rounds, without start and evaluations; "
    "accuracies between two evaluations are interpolated."
)


def of_real_model(size: Size) -> list[Comparison]:
    """Lone nodes, and a swarm of nodes that differ from the first one in their mix alone."""
    scale = size.real
    longer = replace(scale, rounds=2 * scale.rounds, evaluation=2 * scale.evaluation)
    cells = {row: _cells(row, longer, 1, f"{scale.groups}/0", fields) for row, fields in LONE_ROWS.items()}
    most = [("mix.local", str(scale.groups)), ("mix.external", str(OTHERS * scale.groups))]
    row = f"{scale.nodes} nodes"
    cells[row] = _cells(row, scale, scale.nodes, AUTO, [*FALLING, *most])
    return [Comparison(scale.policy, cells)]


def prepare_real_model(size: Size, console: Console, jobs: int) -> None:
    """Make the policy where that is to do, and see whether the swarms fit into memory. Raises `SwarmError`."""
    with policy_progress(console, size.real.policy) as progress:
        find_source(size.real.policy, progress)
    (comparison,) = of_real_model(size)
    *_, together = comparison.cells.values()
    config = together[0].members(Path())[0].config
    check_nodes(config, size.real.nodes, in_turn=True, num_swarms=min(jobs, len(together)))


def real_model_findings(title: str, outcomes: Outcomes) -> list[Row]:
    """What accuracy costs, against the best lone node; accuracy at equal cost, and on each task."""
    return [*clock_findings(title, outcomes, TARGET), *at_equal_cost(title, outcomes), *by_task(title, outcomes)]


def _cells(row: str, scale: RealScale, count: int, mix: str, changes: Fields) -> list[Cell]:
    """One thread: two swarms with one each make 1.45 times the rounds of one with two."""
    values = real_model(scale.policy, scale.groups, num_nodes=1)
    fields = [*as_fields(values), ("policy.threads", "1"), ("update.total_updates", str(scale.rounds)), *changes]
    return swarm_cells(f"{scale.policy}, {row}", scale, peers(count), scale.policy, mix, fields)
