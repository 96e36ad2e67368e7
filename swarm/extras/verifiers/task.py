"""Environments of the verifiers library as tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from swarm.environments.config import Context, StoredRows, Target
from swarm.environments.episodes.source import EnvironmentTask, LibrarySettings
from swarm.protocols import Environment

if TYPE_CHECKING:
    from swarm.environments.conversion.counting import Conversion


class VerifiersTask(EnvironmentTask):
    """An environment of the verifiers library in which one agent talks; needs the extra `verifiers`, and every member
    the same code. Reward: the weighted sum of the environment's, cut to [0, 1]."""

    code_field = "target"
    has_rows = True

    kind: Literal["verifiers"]
    target: Target
    """The taskset of an installed package, e.g. `reverse_text.taskset:ReverseTextTaskset`."""
    settings: LibrarySettings = {}
    """Values for the fields of the taskset's configuration."""
    rows: int = Field(1_000, ge=1, le=100_000)
    """Most rows of the taskset; episodes begin with one of the first so many."""

    @property
    def library(self) -> str:
        """See `TaskSettings`."""
        from swarm.extras.verifiers.environment import code_name

        return code_name(self.target)

    def environments(self, context: Context) -> Callable[[], Environment]:
        """See `EnvironmentTask`."""
        from swarm.extras.verifiers.environment import verifiers_episodes

        return verifiers_episodes(self, context.stored)

    def store(self, folder: Path, conversion: Conversion) -> StoredRows:
        """See `TaskSettings`."""
        from swarm.extras.verifiers.environment import store

        return store(self, folder)

    def import_libraries(self) -> None:
        """See `TaskSettings`."""
        import swarm.extras.verifiers.environment  # noqa: F401

        super().import_libraries()
