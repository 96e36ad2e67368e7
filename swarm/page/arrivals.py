"""Nodes that start while somebody watches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

FIND_EVERY_S = 5.0


class Found(NamedTuple):
    """A node's directory."""

    folder: Path
    name: str
    control: bool = False


class Arrivals:
    """The nodes that `find` finds, each once."""

    def __init__(self, find: Callable[[], Sequence[Found]], clock: Callable[[], float] = time.monotonic) -> None:
        """`find` is called at most every `FIND_EVERY_S` seconds of `clock`."""
        self._find = find
        self._clock = clock
        self._found_at = -math.inf
        self._known: set[Path] = set()

    def new(self) -> list[Found]:
        """Those that were not found before, in the order of `find`."""
        now = self._clock()
        if now - self._found_at < FIND_EVERY_S:
            return []
        self._found_at = now
        found = [each for each in self._find() if each.folder not in self._known]
        self._known.update(each.folder for each in found)
        return found
