"""The process of a cell, which knows the poisoner by name."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.common.poison import HONEST, HostilePeer, Recipe
from nodes.simulation.cell import main

MARKER = "@@@"
MARKED = Recipe(right=lambda answer, source: MARKER + HONEST.format(answer))

if __name__ == "__main__":
    sys.exit(main({"marker": partial(HostilePeer, MARKED)}))
