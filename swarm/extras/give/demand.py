"""What a giver is to give: how many groups, as receivers use them, and of which tasks. Pure.

groups      those that the most eager receiver used since its last answer, and some more; bounded by what the others
            used, so that one that lies about its use does not cost the endpoint's time
tasks       in proportion to how near to one half receivers are right there, as the median of them says, times the
            fraction of this giver's groups with signal
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

EXPLORED = 16
"""Groups between two answers, while nobody says what is used."""
LEAST = 4
"""The same while nothing is used: a receiver may begin to."""
MORE, SCARCE = 1.15, 0.9
"""Times the use; and the used fraction of what was given from which more is wanted than there was."""
FASTER = 2.0
OTHERS = 3.0
"""Times the median use of the other receivers by which the most eager one may exceed it."""
LEAST_PART = 0.1
"""Fraction of a task's questions that are asked, however little it is wanted."""


def groups_wanted(uses: Sequence[int], given: int) -> int:
    """Groups to give until receivers answer next, of whom each used so many of the `given` ones."""
    if not uses:
        return EXPLORED
    most, *others = sorted((min(use, given) for use in uses), reverse=True)
    is_scarce = given > 0 and most >= SCARCE * given
    wanted = math.ceil(FASTER * most) if is_scarce else math.ceil(MORE * most) + 1
    if others:
        wanted = min(wanted, EXPLORED + math.ceil(OTHERS * median(others)))
    return max(LEAST, wanted)


class TaskDemand:
    """How many of each task's questions are asked."""

    def __init__(self) -> None:
        """All of them."""
        self._wants: dict[str, float] = {}
        self._asked: dict[str, int] = {}
        self._with_signal: dict[str, int] = {}

    def heard(self, answers: Sequence[Mapping[str, float]]) -> None:
        """Replace what receivers want of each task, in [0, 1]; one that does not name a task says nothing of it."""
        names = {name for each in answers for name in each}
        self._wants = {name: median([each[name] for each in answers if name in each]) for name in names}

    def answered(self, task: str, has_signal: bool) -> None:
        """Add a group of this giver."""
        self._asked[task] = self._asked.get(task, 0) + 1
        self._with_signal[task] = self._with_signal.get(task, 0) + has_signal

    def part(self, task: str, tasks: Sequence[str]) -> float:
        """The fraction of a task's questions to ask; of one of these `tasks`, all."""
        most = max(map(self._value, {task, *tasks}))
        return max(LEAST_PART, self._value(task) / most)

    def _value(self, task: str) -> float:
        signal = (self._with_signal.get(task, 0) + 1) / (self._asked.get(task, 0) + 2)
        wanted = self._wants.get(task, median(self._wants.values()) if self._wants else 1.0)
        return max(LEAST_PART, wanted) * signal
