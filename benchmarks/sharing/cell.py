"""The process of a cell, which knows the hostile guests by name."""

from __future__ import annotations

import sys
from functools import partial

from nodes.simulation.cell import Invite, main
from tests.attacks.poison import Copyist, HostilePeer, Recipe, gibberish, repetition, very_long

RECIPES = {
    "wrong": Recipe(num_right=0),
    "inverted": Recipe(claims=(0.0, 1.0)),
    "gibberish": Recipe(right=gibberish),
    "repetition": Recipe(right=repetition),
    "long": Recipe(right=very_long),
}
"""`wrong`: always wrong, and half of it claimed right."""
HOSTILE: dict[str, Invite] = {
    **{name: partial(HostilePeer, recipe) for name, recipe in RECIPES.items()},
    "copies": Copyist,
}

if __name__ == "__main__":
    sys.exit(main(HOSTILE))
