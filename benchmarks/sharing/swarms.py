"""The swarms of the tables: configuration, nodes and seeds of each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from benchmarks.common.specialists import specialty
from nodes.simulation.cells import Cell, Seat, Values, alike, complete
from nodes.simulation.children import on_loopback
from nodes.simulation.configs import Fields, mix_configs
from swarm.policy.config import SMOLLM2, TINY, TINY_SPARSE

ALONE = "8/0"
UNIFORM = "4/4"
AUTO = "auto"
"""The mixing policy for those who do not want to tune."""

Seating = Callable[[int], tuple[Seat, ...]]
"""The nodes for a seed."""
NUM_SPECIALTIES = 3
START_MODELS = {"sparse": TINY_SPARSE, "dense": TINY}
"""Starts: hardly ever right, and often right."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of a table is run."""

    nodes: int
    """Of a swarm, at most."""
    rounds: int
    seeds: int
    evaluation: int
    """Held-out questions."""
    every: int | None = None
    """Rounds between evaluations; None: only before the first and after the last."""

    def __str__(self) -> str:
        """For people."""
        return f"{self.nodes} nodes, {self.rounds} rounds, {self.seeds} seeds, {self.evaluation} held-out questions"


@dataclass(frozen=True, kw_only=True)
class RealScale(Scale):
    """How much of the table of a real model is run."""

    groups: int
    """Of an update; a round asks as many questions."""
    policy: str = SMOLLM2


@dataclass(frozen=True, kw_only=True)
class Size(Scale):
    """How much of all tables is run; the scale is that of the tables without one of their own."""

    name: str
    starts: tuple[str, ...]
    swarms: tuple[str, ...]
    kinds: tuple[str, ...]
    """Of hostile peers."""
    hostile: tuple[int, ...]
    """How many of the nodes are."""
    without: tuple[str, ...]
    """Defences that hostile peers also meet switched off, one at a time; "any": all at once."""
    each_policy: bool
    """Also with each other mixing policy, and with hardly any own groups."""
    real: RealScale
    timed: Scale
    clock: Scale
    sampled: Scale


@dataclass(frozen=True)
class Comparison:
    """Cells to compare, by the name of their row; the first row is the baseline."""

    title: str
    cells: Mapping[str, Sequence[Cell]]
    notes: tuple[str, ...] = ()
    """How they are run here."""


def compare_mixes(
    title: str,
    mixes: Sequence[str],
    scale: Scale,
    seating: Seating,
    model: str = TINY_SPARSE,
    changes: Fields = (),
) -> Comparison:
    """The same nodes with each mix; `changes`: fields of all their configurations."""
    return Comparison(
        title, {mix: swarm_cells(f"{title}, {mix}", scale, seating, model, mix, changes) for mix in mixes}
    )


def swarm_cells(
    row: str,
    scale: Scale,
    seating: Seating,
    model: str,
    mix: str,
    changes: Fields = (),
    guests: Sequence[str] = (),
) -> list[Cell]:
    """A cell for each seed; `changes`: fields of the configuration."""
    fields = [
        *changes,
        ("rounds", str(scale.rounds)),
        ("evaluation.num_questions", str(scale.evaluation)),
        ("evaluation.every_rounds", str(scale.every or "null")),
        ("policy.model", model),
    ]
    config = complete(mix_configs((mix,), None, {}, fields)[mix])
    return [Cell(row, seed, config, seating(seed), tuple(guests)) for seed in range(scale.seeds)]


def as_processes(cell: Cell, cores: float | None) -> Cell:
    """The cell over the real network, with so many cores for each node; None: all nodes share the machine's."""
    return replace(cell, config=on_loopback(cell.config), transport="hivemind", cores=cores)


def peers(count: int) -> Seating:
    """Nodes that differ in nothing but their questions."""
    return partial(alike, count)


def strong_and_weak(size: Size) -> Seating:
    """A quarter of the nodes starts from the dense policy, the others from the sparse one."""
    num_strong = size.nodes // 4
    return _kinds([("strong", num_strong, {"policy": {"model": TINY}}), ("weak", size.nodes - num_strong, {})], size)


def specialists(size: Size) -> Seating:
    """Each asks and is asked a third of the tasks, and can grade all."""

    def seats(seed: int) -> tuple[Seat, ...]:
        return tuple(
            replace(seat, values={"tasks": specialty(k, NUM_SPECIALTIES)})
            for k, seat in enumerate(alike(size.nodes, seed))
        )

    return seats


def sizes_and_tokenizers(size: Size, larger: Path) -> Seating:
    """Half of the nodes has a policy of another size and tokenizer."""
    half = size.nodes // 2
    # The embedded policies have no system prompt either.
    policy: Values = {"model": str(larger), "system_prompt": ""}
    return _kinds([("small", size.nodes - half, {}), ("larger", half, {"policy": policy})], size)


def late_joiners(size: Size) -> Seating:
    """Half of the nodes joins after half of the rounds."""
    half, late = size.nodes // 2, size.rounds // 2

    def seats(seed: int) -> tuple[Seat, ...]:
        early = _kinds([("early", size.nodes - half, {}), ("late", half, {"rounds": size.rounds - late})], size)
        return tuple(replace(seat, joins_at=late) if seat.name.startswith("late") else seat for seat in early(seed))

    return seats


def _kinds(kinds: Sequence[tuple[str, int, Values]], size: Size) -> Seating:
    """(name, count, what differs) of each kind of node."""
    named = [(f"{name}-{k + 1}", values) for name, count, values in kinds for k in range(count)]
    assert len(named) == size.nodes

    def seats(seed: int) -> tuple[Seat, ...]:
        return tuple(
            replace(seat, name=name, values=values)
            for seat, (name, values) in zip(alike(size.nodes, seed), named, strict=True)
        )

    return seats
