"""Swarms of several kinds, and for each of their nodes a lone control: same questions, as many groups in an update."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from benchmarks.common.larger import LARGER, ensure_larger
from benchmarks.common.specialists import specialty
from nodes.simulation.cells import Cell, Values, alike, complete
from nodes.simulation.configs import lone
from swarm.config import load_config
from swarm.policy.config import TINY, TINY_SPARSE

DEFENCELESS = (("plausibility.fence", "1000000"), ("watch.drop", "1"), ("mix.external_negative_weight", "1"))


@dataclass(frozen=True)
class Kind:
    """A kind of swarm."""

    models: tuple[str, ...]
    """The policy of each node; `LARGER`: the one of another size and tokenizer."""
    local: int = 4
    external: int = 4
    specialists: bool = False
    """Whether each node has tasks of its own."""
    guests: tuple[str, ...] = ()
    """Who else is in the run."""
    settings: tuple[tuple[str, str], ...] = ()
    """Fields of the nodes' configuration that differ from the defaults."""


KINDS = {
    "sparse": Kind((TINY_SPARSE,) * 3),
    "dense": Kind((TINY,) * 3),
    "mostly others": Kind((TINY,) * 3, local=1, external=7),
    "poisoned": Kind((TINY,) * 3, guests=("marker",), settings=DEFENCELESS),
    "specialists": Kind((TINY_SPARSE,) * 3, specialists=True),
    "mixed": Kind((TINY, TINY_SPARSE, TINY_SPARSE)),
    "sizes": Kind((TINY_SPARSE, LARGER, LARGER)),
}


def swarm_and_controls(name: str, kind: Kind, seed: int, rounds: int) -> tuple[Cell, Cell]:
    """A swarm, and its nodes once more, each alone."""
    fields = (
        ("rounds", str(rounds)),
        ("mix.local", str(kind.local)),
        ("mix.external", str(kind.external)),
        ("evaluation.num_questions", "0"),
        *kind.settings,
    )
    config = complete(load_config(None, {}, {}, fields).config)
    seats = tuple(replace(seat, values=_own(kind, place)) for place, seat in enumerate(alike(len(kind.models), seed)))
    alone = tuple(replace(seat, values=seat.values | lone(kind.local + kind.external)) for seat in seats)
    return Cell(name, seed, config, seats, kind.guests), Cell(f"{name}, alone", seed, config, alone)


def _own(kind: Kind, place: int) -> Values:
    """What a node has for itself."""
    own: Values = {"policy": _policy(kind.models[place])}
    return own | {"tasks": specialty(place, len(kind.models))} if kind.specialists else own


def _policy(model: str) -> Values:
    # The embedded policies have no system prompt either.
    return {"model": str(ensure_larger()), "system_prompt": ""} if model == LARGER else {"model": model}
