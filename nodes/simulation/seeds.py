"""Seeds of the nodes of a simulated swarm."""

from __future__ import annotations

SEEDS_APART = 1_000
"""Between the first nodes of two swarms: more than there are nodes in one."""


def node_seed(swarm_seed: int, node: int) -> int:
    """The seed of node `node`, from 0: no node of another swarm asks the same questions."""
    return swarm_seed * SEEDS_APART + node
