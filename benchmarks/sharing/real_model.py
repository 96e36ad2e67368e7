"""The table of a real language model: what accuracy costs in tokens and in time, alone and together."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from benchmarks.common.report import Row
from benchmarks.sharing.curves import along, at_equal_cost, by_task
from benchmarks.sharing.swarms import AUTO, Comparison, RealScale, Size, compare_mixes, peers
from benchmarks.sharing.table import Outcomes
from nodes.console import policy_progress
from nodes.simulation.configs import Fields, as_fields, real_model
from swarm.policy.loading import find_source
from swarm.preflight.check import check_nodes

NOTE = (
    "The tasks are those of `swarm demo --model`, and the answer is a completion's last number. Nodes take turns in "
    "one process with one thread: seconds are those of a node's own rounds, on a core if there is one for every job."
)


def of_real_model(size: Size) -> list[Comparison]:
    """A node alone, half of the groups from others, and `auto`."""
    scale = size.real
    half = scale.groups // 2
    mixes = (f"{scale.groups}/0", f"{half}/{half}", AUTO)
    return [compare_mixes(scale.policy, mixes, scale, peers(scale.nodes), scale.policy, _changes(scale))]


def prepare_real_model(size: Size, console: Console, jobs: int) -> None:
    """Make the policy where that is to do, and see whether the swarms fit into memory. Raises `SwarmError`."""
    with policy_progress(console, size.real.policy) as progress:
        find_source(size.real.policy, progress)
    (comparison,) = of_real_model(size)
    cells = [cell for of_mix in comparison.cells.values() for cell in of_mix]
    config = cells[0].members(Path())[0].config
    check_nodes(config, size.real.nodes, in_turn=True, num_swarms=min(jobs, len(cells)))


def real_model_findings(title: str, outcomes: Outcomes) -> list[Row]:
    """Accuracy at equal cost, on each task, and along the way."""
    return [*at_equal_cost(title, outcomes), *by_task(title, outcomes), *along(title, outcomes)]


def _changes(scale: RealScale) -> Fields:
    """One thread: two swarms with one each make 1.45 times the rounds of one with two. `auto` composes updates of as
    many groups as the others."""
    half = str(scale.groups // 2)
    values = real_model(scale.policy, scale.groups, num_nodes=1)
    return [*as_fields(values), ("policy.threads", "1"), ("mix.local", half), ("mix.external", half)]
