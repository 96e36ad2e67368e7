"""The table of time: seconds to an accuracy, alone and with others, as processes on machines of their own."""

from __future__ import annotations

from math import floor

from benchmarks.common.report import Row
from benchmarks.sharing.curves import along, time_to_reach
from benchmarks.sharing.swarms import ALONE, UNIFORM, Comparison, Size, as_processes, peers, swarm_cells
from benchmarks.sharing.table import Outcomes
from nodes.simulation.cell import missing
from nodes.simulation.cells import SPARE_CORES
from swarm.machine import num_cores
from swarm.policy.config import TINY_SPARSE

ACCURACIES = (0.02, 0.05, 0.1, 0.15)
"""Fixed beforehand: a node starts sparse, below the first."""
NODE_CORES = 0.2
"""Eight nodes on two cores, which leaves some to the processes around them."""
NOTE = (
    "Sparse start; alone 8/0, else 4/4, over the real network. Seconds are those of a node's rounds by the clock, with "
    "waiting, receiving and regrading, but without start and evaluations; accuracies between two evaluations are "
    "interpolated."
)


def by_time(size: Size) -> list[Comparison]:
    """One node, two, four and so on, up to the number of nodes of the scale."""
    scale, problem = size.timed, missing()
    cores = None if problem else node_cores(scale.nodes)
    changes = [("policy.device", "cpu")]
    cells = {}
    for count in _counts(scale.nodes):
        name, mix = ("alone", ALONE) if count == 1 else (f"{count} nodes", UNIFORM)
        swarms = swarm_cells(name, scale, peers(count), TINY_SPARSE, mix, changes)
        cells[name] = [as_processes(cell, cores) for cell in swarms]
    unlimited = f"{problem} All nodes share the cores, so that swarms look slower than on machines of their own."
    return [Comparison("time", cells, (unlimited if problem else f"Every node has {cores} of a core.",))]


def time_findings(title: str, outcomes: Outcomes) -> list[Row]:
    """Time to each accuracy, and accuracies along the way."""
    return [*time_to_reach(title, outcomes, ACCURACIES), *along(title, outcomes)]


def time_jobs(jobs: int) -> int:
    """As many cells as there are shares for; one where nodes have none, because cells would slow down each other."""
    return 1 if missing() else max(jobs, floor(num_cores() / NODE_CORES))


def node_cores(num_nodes: int) -> float:
    """The share of each node: less on a machine that has too few cores for so many."""
    fair = (num_cores() - SPARE_CORES) / num_nodes
    return min(NODE_CORES, floor(100 * fair) / 100)


def _counts(most: int) -> list[int]:
    """1, 2, 4, ..."""
    return [2**k for k in range(most.bit_length())]
