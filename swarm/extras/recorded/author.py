"""Recorded groups as those of one more author: which of a file join the groups that a round receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from swarm.errors import ConfigError
from swarm.extras.recorded.reading import read_groups
from swarm.files import at_home
from swarm.types import RolloutGroup


class RecordedAuthor:
    """The groups of a file in its order. The round alone decides which of them join, so that a resumed node goes on
    where it was."""

    def __init__(self, groups: Sequence[RolloutGroup], per_round: int) -> None:
        self._groups = groups
        self._per_round = per_round

    @classmethod
    def of(cls, path: Path, per_round: int, note: Callable[[str, str], None]) -> Self:
        """That of a file or a node's directory; `note` takes a line for people and its level. Raises `ConfigError`."""
        try:
            groups, num_rows, left_out = read_groups(at_home(path))
        except (OSError, ValueError) as error:
            raise ConfigError(f"pool.recorded: cannot read {path}: {error}") from error
        if not groups:
            why = left_out[0] if left_out else "it has no rows"
            raise ConfigError(f"pool.recorded: there is no group to learn from in {path}: {why}")
        others = f"; {len(left_out)} of {num_rows} rows are left out: {left_out[0]}" if left_out else ""
        note(f"{len(groups)} recorded groups of {path} join, {per_round} a round{others}", "info")
        return cls(groups, per_round)

    def of_round(self, number: int) -> Sequence[RolloutGroup]:
        """Those that join in round `number`, from 0."""
        first = number * self._per_round
        return self._groups[first : first + self._per_round]
