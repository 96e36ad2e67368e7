"""Games of TextArena as tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from swarm.environments.config import MAX_TASK_NAME_CHARS, Context
from swarm.environments.episodes.source import LibrarySettings
from swarm.opponents import OpponentTask
from swarm.protocols import Environment
from swarm.types import MAX_TURNS


class TextArenaTask(OpponentTask):
    """A game of TextArena for one player, or for two against a `model`; needs the extra `textarena`. Reward: the game's
    own, cut to [0, 1]; against a model 1 for a win, 0.5 for a draw, 0 for a loss."""

    kind: Literal["textarena"] = "textarena"
    max_turns: int = Field(16, ge=1, le=MAX_TURNS)
    """Moves, invalid ones included."""
    game: Annotated[str, Field(max_length=MAX_TASK_NAME_CHARS, pattern=r"^[A-Za-z0-9][\w./-]*$")]
    """TextArena's name of the game, e.g. `TowerOfHanoi-v0`."""
    settings: LibrarySettings = {}
    """Arguments of the game's class, e.g. `num_disks: 4`."""

    @property
    def library(self) -> str:
        """See `TaskSettings`."""
        from swarm.extras.textarena.games import VERSION

        return ", ".join(filter(None, (VERSION, super().library)))

    def environments(self, context: Context) -> Callable[[], Environment]:
        """See `EnvironmentTask`."""
        from swarm.extras.textarena.games import textarena_games

        return textarena_games(self.name, self.game, self.settings, self.player(context.counts))

    def import_libraries(self) -> None:
        """See `TaskSettings`."""
        import swarm.extras.textarena.games  # noqa: F401

        super().import_libraries()
