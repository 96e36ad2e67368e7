"""The table of samples: nodes that choose from all groups of a large swarm, and nodes that see 2 J of them a round.

The sample is what the common rate of offers lets all nodes together make.
"""

from __future__ import annotations

from benchmarks.common.report import Row
from benchmarks.sharing.swarms import ALONE, Comparison, Size, peers, swarm_cells
from benchmarks.sharing.table import Outcomes, target_row
from nodes.simulation.cells import Cell
from nodes.simulation.in_memory import ROUND_S
from swarm.policy.config import TINY
from swarm.telemetry.benefit.comparison import ratio

ALL = "all groups"
SAMPLE = "2 J of them"
POLICIES = ("fixed", "novelty")
NUM_LOCAL = 4
NUM_EXTERNAL = 4
"""J."""
LONE_NODES = 8
"""Nodes alone do not depend on each other: so many are enough."""
UNHARMED = 0.95
NOTE = (
    "Dense start, 4/4, every node trains. The sample is what the common rate of offers lets all nodes together make, "
    "so that all see the same few groups; in `all groups` that rate is no limit. novelty draws the groups that would "
    "surprise the node most, of three times J, so that it can gain from choice."
)


def of_samples(size: Size) -> list[Comparison]:
    """Each way of choosing with all groups, with a sample, and alone."""
    return [
        Comparison(
            policy,
            {
                ALL: _cells(policy, ALL, size, 1e6),
                SAMPLE: _cells(policy, SAMPLE, size, 2 * NUM_EXTERNAL / ROUND_S),
                ALONE: swarm_cells(ALONE, size.sampled, peers(min(LONE_NODES, size.sampled.nodes)), TINY, ALONE),
            },
        )
        for policy in POLICIES
    ]


def sample_findings(title: str, outcomes: Outcomes) -> list[Row]:
    """The sample against all groups."""
    found = ratio(outcomes[SAMPLE], outcomes[ALL])
    return [target_row(f"{title}: {SAMPLE} against {ALL}", found, UNHARMED)]


def _cells(policy: str, row: str, size: Size, offers_per_s: float) -> list[Cell]:
    changes = [
        ("network.offers_per_s", str(offers_per_s)),
        ("mix.local", str(NUM_LOCAL)),
        ("mix.external", str(NUM_EXTERNAL)),
        ("generation.questions_per_round", str(NUM_LOCAL + NUM_EXTERNAL)),
    ]
    seating = peers(size.sampled.nodes)
    return swarm_cells(f"{policy}, {row}", size.sampled, seating, TINY, policy, changes)
