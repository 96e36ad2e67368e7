"""Games of TextArena for one player, as environments."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from swarm.distribution import how_to_install
from swarm.environments.digests import draw
from swarm.environments.randomness import OwnRandomness
from swarm.environments.stand_ins import stand_ins
from swarm.errors import TaskError
from swarm.types import Observation, Terminal, Text

if find_spec("textarena") is None:
    raise TaskError(f"TextArena is not installed: {how_to_install('textarena')}")

DOWNLOADS = ("nltk", "nltk.corpus")
"""What word games load their lists with, and takes seconds to import: these games are refused."""

with stand_ins(DOWNLOADS):
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

VERSION = f"textarena=={version('textarena')}"
_SEEDS = 2**32


class TextArenaGame:
    """A game that answers each turn with what is new; a turn without brackets is put in brackets.

    The return is the game's reward for the player, cut to [0, 1]: 1 for a win, the part that was solved where a game
    says so, and 0 for a loss or an invalid move.
    """

    def __init__(self, game: str, settings: dict[str, Any]) -> None:
        """Call `reset` first."""
        self._name = game
        self._settings = settings
        self._randomness = OwnRandomness(0)
        self._game: Any = None

    def reset(self, seed: int, index: int) -> Observation:
        """Start a game. See `Environment`."""
        drawn = draw(_SEEDS, "textarena", self._name, seed, index)
        self._randomness = OwnRandomness(drawn)
        with self._randomness:
            self._game = textarena.make(self._name, **self._settings)
            self._game.reset(num_players=1, seed=drawn)
            return self._news()

    def step(self, action: str) -> Observation | Terminal:
        """Make a move. See `Environment`."""
        with self._randomness:
            done, _ = self._game.step(action)
            if not done:
                return self._news()
            rewards, _ = self._game.close()
        return Terminal(_in_range(rewards.get(0)))

    def is_for_one(self) -> bool:
        """Whether the game that was reset has one player."""
        return isinstance(self._game.state, textarena.SinglePlayerState)

    def _news(self) -> Observation:
        """What the game said since the last turn, without the policy's own words."""
        game = self._game
        while isinstance(game, textarena.Wrapper):  # most wrappers repeat the whole episode
            game = game.env
        _, messages = game.get_observation()
        own = textarena.ObservationType.PLAYER_ACTION
        said = [text for sender, text, kind in messages if sender == textarena.GAME_ID and kind is not own]
        return (Text("\n".join(said)),)


def textarena_games(task: str, game: str, settings: dict[str, Any]) -> Callable[[], TextArenaGame]:
    """Makes a task's games. Raises `TaskError` for one that cannot be played here, with the reason."""
    where = f"task {task!r}: TextArena's {game!r}"
    if game not in ENV_REGISTRY:
        raise TaskError(f"{where} does not exist; textarena.pprint_registry_detailed() lists the games")

    def make() -> TextArenaGame:
        return TextArenaGame(game, settings)

    tried = make()
    try:
        with stand_ins(DOWNLOADS):
            tried.reset(0, 0)
    except Exception as error:  # a game may raise anything, also because it has no network and no second player
        raise TaskError(
            f"{where} cannot be played by one player without downloads, network and language models, or not with these "
            f"settings: {type(error).__name__}: {_line(error)}"
        ) from error
    if not tried.is_for_one():
        raise TaskError(f"{where} is for several players; only games for one can be tasks")
    return make


def _line(error: Exception) -> str:
    """The first line of a message that has words."""
    return next((line.strip() for line in str(error).splitlines() if any(map(str.isalpha, line))), "")


def _in_range(reward: object) -> float:
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return 0.0  # some games give a text as the reward of an invalid move
    return min(1.0, max(0.0, float(reward)))
