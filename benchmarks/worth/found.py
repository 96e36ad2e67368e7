"""What a swarm and its controls show at their end: the estimates of its nodes, and the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nodes.simulation.cells import Cell, CellStore
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.intervals import percentile_interval
from swarm.telemetry.records import METRICS_FILE
from swarm.types import Estimate

Curves = npt.NDArray[np.float64]
BLOCK_ROUNDS = 10
NUM_DRAWS = 4_000


@dataclass(frozen=True)
class Found:
    """A swarm and its controls, at the end."""

    together: Curves
    """Mean reward [nodes, rounds]."""
    alone: Curves
    estimates: list[Estimate | None]
    """Each node's last estimate of `help`."""
    costs: list[float]
    """Fraction of each node's time that the estimate took."""
    times_alone: list[float | None]
    """Each node's last estimate of the time of a round alone, over that of one with others."""
    true_times_alone: list[float]
    """The same by its control."""

    @property
    def predictions(self) -> list[float | None]:
        """What the estimates predict for the truth, by node."""
        return [
            None if estimate is None else rewards_ratio(rewards.tolist(), estimate.value)
            for rewards, estimate in zip(self.together, self.estimates, strict=True)
        ]

    @property
    def prediction(self) -> float | None:
        """Mean over the nodes that know."""
        known = [ratio for ratio in self.predictions if ratio is not None]
        return float(np.mean(known)) if known else None

    @property
    def truth(self) -> Estimate:
        """Rewards of all rounds together over those alone; the interval is over nodes and blocks of rounds."""
        blocks = range(0, self.together.shape[1], BLOCK_ROUNDS)
        sums = [np.add.reduceat(curves, blocks, axis=1) for curves in (self.together, self.alone)]
        num_nodes, num_blocks = sums[0].shape
        rng = np.random.default_rng(0)
        nodes = rng.integers(num_nodes, size=(NUM_DRAWS, num_nodes, 1))
        drawn = rng.integers(num_blocks, size=(NUM_DRAWS, 1, num_blocks))
        ours, theirs = (each[nodes, drawn].sum(axis=(1, 2)) for each in sums)
        low, high = percentile_interval(ours[theirs > 0] / theirs[theirs > 0])
        return Estimate(float(self.together.sum() / self.alone.sum()), low, high)


def find(store: CellStore, together: Cell, alone: Cell) -> Found | None:
    """The two cells' results; None while one is missing."""
    if store.result(together) is None or store.result(alone) is None:
        return None
    nodes, controls = _histories(store, together), _histories(store, alone)
    return Found(
        _rewards(nodes),
        _rewards(controls),
        [node.worth.help if node.worth else None for node in nodes],
        [_cost(node) for node in nodes],
        [node.worth.time_alone if node.worth else None for node in nodes],
        [control.seconds / node.seconds for node, control in zip(nodes, controls, strict=True)],
    )


def _histories(store: CellStore, cell: Cell) -> list[PeerHistory]:
    return [PeerHistory.read(store.folder / cell.name / seat.name / METRICS_FILE) for seat in cell.seats]


def _rewards(histories: Sequence[PeerHistory]) -> Curves:
    return np.array([[event.reward or 0.0 for event in history.series()] for history in histories])


def _cost(history: PeerHistory) -> float:
    """Fraction of the rounds' time."""
    return sum(event.figures.get("worth/cost_s") or 0.0 for event in history.series()) / history.seconds


def rewards_ratio(rewards: Sequence[float], found: float) -> float:
    """Rewards of all rounds over what they would have been alone, if `help` was `found` in every round.

    Alone, the node is after t rounds where it is in fact after t / help: the same curve of `rewards`, stretched. For
    help of at most 1 that curve would have to go on beyond its end; the result is then help itself, the ratio without
    any reward at the start. Raises `ValueError` without a reward above 0.
    """
    together = np.array(rewards, dtype=np.float64)
    if not together.sum() > 0:
        raise ValueError(f"one of the {len(together)} rewards must be above 0")
    if found <= 1:
        return max(0.0, found)
    rounds = np.arange(len(together))
    alone = np.interp(rounds / found, rounds, together)
    return max(1.0, float(together.sum() / alone.sum())) if alone.sum() > 0 else found
