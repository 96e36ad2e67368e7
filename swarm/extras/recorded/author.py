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
    """The groups of a file in its order."""

    def __init__(self, groups: Sequence[RolloutGroup], per_round: int, num_joined: int = 0) -> None:
        """The first `num_joined` have joined already."""
        self._groups = groups
        self._per_round = per_round
        self.num_joined = num_joined
        """Groups that have joined, for a checkpoint."""

    @classmethod
    def of(cls, path: Path, per_round: int, num_joined: int, note: Callable[[str, str], None]) -> Self:
        """That of a file or a node's directory; `note` takes a line for people and its level. Raises `ConfigError`."""
        try:
            groups, num_rows, why = read_groups(at_home(path))
        except (OSError, ValueError) as error:
            raise ConfigError(f"pool.recorded: cannot read {path}: {error}") from error
        if not groups:
            raise ConfigError(
                f"pool.recorded: there is no group to learn from in {path}: {next(iter(why), 'it has no rows')}"
            )
        others = f"; {num_rows - len(groups)} of {num_rows} rows are left out: {why[0]}" if why else ""
        before = f"; {min(num_joined, len(groups))} have joined already" if num_joined else ""
        note(f"{len(groups)} recorded groups of {path} join, {per_round} a round{before}{others}", "info")
        return cls(groups, per_round, num_joined)

    def take(self) -> Sequence[RolloutGroup]:
        """Those that join in one more round."""
        found = self._groups[self.num_joined : self.num_joined + self._per_round]
        self.num_joined += len(found)
        return found
