"""Games of TextArena for one player, or for two against a language model, as environments."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from swarm.distribution import how_to_install
from swarm.environments.digests import draw
from swarm.environments.randomness import OwnRandomness
from swarm.environments.stand_ins import stand_ins
from swarm.errors import TaskError
from swarm.opponents import Speaker
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
    says so, and 0 for a loss or an invalid move. Against an opponent, who has the other seat, a draw is 0.5.
    """

    def __init__(self, game: str, settings: dict[str, Any], opponent: Callable[[], Speaker] | None = None) -> None:
        """Call `reset` first. `opponent` makes who plays against the policy in one game for two."""
        self._name = game
        self._settings = settings
        self._opponent = opponent
        self._randomness = OwnRandomness(0)
        self._game: Any = None
        self._seat = 0

    def reset(self, seed: int, index: int) -> Observation:
        """Start a game. See `Environment`."""
        self._drawn = draw(_SEEDS, "textarena", self._name, seed, index)
        self._randomness = OwnRandomness(self._drawn)
        seat = draw(2, "textarena", self._name, seed, index, "seat") if self._opponent else 0
        with self._randomness:
            # The first player begins: the policy does where the opponent's first moves end the game.
            if self._over(seat) and (not self._opponent or self._over(1 - seat)):
                raise TaskError("the game ends before the first turn")
            return self._news()

    def step(self, action: str) -> Observation | Terminal:
        """Make a move. See `Environment`."""
        with self._randomness:
            done, _ = self._game.step(action)
            if not done and not self._let_the_opponent_move():
                return self._news()
            rewards, _ = self._game.close()
        return Terminal(_in_range(rewards.get(self._seat), -1.0 if self._opponent else 0.0))

    def num_players(self) -> int:
        """Players of the game that was reset: 1, 2, or 0 for another number."""
        kinds = {textarena.SinglePlayerState: 1, textarena.TwoPlayerState: 2}
        return next((number for kind, number in kinds.items() if isinstance(self._game.state, kind)), 0)

    def _over(self, seat: int) -> bool:
        """Begin, with the policy in this seat; whether the game is over before its first turn."""
        self._seat = seat
        self._speaker = self._opponent() if self._opponent else None
        self._turns = 0
        self._game = textarena.make(self._name, **self._settings)
        self._game.reset(num_players=2 if self._opponent else 1, seed=self._drawn)
        return self._let_the_opponent_move()

    def _let_the_opponent_move(self) -> bool:
        """Until it is the policy's turn; whether the game is over."""
        while self._speaker is not None and self._game.state.current_player_id != self._seat:
            shown, said = self._news(), ""
            with suppress(Exception):  # of a model's code, whatever its files make of it
                said = self._speaker(shown, draw(_SEEDS, "textarena", self._drawn, "opponent", self._turns))
            self._turns += 1
            done, _ = self._game.step(said)
            state = self._game.state
            if state.error_count or state.game_info[1 - self._seat].get("invalid_move"):
                self._speaker.unread()
            if done:
                return True
        return False

    def _news(self) -> Observation:
        """What the player whose turn it is has not seen of the game and of the other."""
        game = self._game
        while isinstance(game, textarena.Wrapper):  # most wrappers repeat the whole episode
            game = game.env
        player, messages = game.get_observation()
        move = textarena.ObservationType.PLAYER_ACTION
        said = [
            text if sender == textarena.GAME_ID else f"Player {sender}: {text}"
            for sender, text, kind in messages
            if sender != player and not (sender == textarena.GAME_ID and kind is move)
        ]
        return (Text("\n".join(said)),)


def textarena_games(
    task: str, game: str, settings: dict[str, Any], opponent: Callable[[], Speaker] | None = None
) -> Callable[[], TextArenaGame]:
    """Makes a task's games. Raises `TaskError` for one that cannot be played here, with the reason."""
    where = f"task {task!r}: TextArena's {game!r}"
    if game not in ENV_REGISTRY:
        raise TaskError(f"{where} does not exist; textarena.pprint_registry_detailed() lists the games")

    tried = TextArenaGame(game, settings, _Silent if opponent else None)
    who = "two players" if opponent else "one player"
    try:
        with stand_ins(DOWNLOADS):
            tried.reset(0, 0)
    except Exception as error:  # a game may raise anything, also because it has no network and no second player
        raise TaskError(
            f"{where} cannot be played by {who} without downloads, network and language models, or not with these "
            f"settings: {type(error).__name__}: {_line(error)}"
        ) from error
    if opponent and tried.num_players() != 2:
        raise TaskError(f"{where} is not for two players, and none of them would be `model`")
    if not opponent and tried.num_players() != 1:
        raise TaskError(f"{where} is for several players; only games for one can be tasks, and for two with a `model`")
    return lambda: TextArenaGame(game, settings, opponent)


class _Silent:
    """Who says nothing: to try a game without asking a model."""

    def __call__(self, shown: Observation, seed: int, /) -> str:
        """See `Speaker`."""
        return ""

    def unread(self) -> None:
        """See `Speaker`."""


def _line(error: Exception) -> str:
    """The first line of a message that has words."""
    return next((line.strip() for line in str(error).splitlines() if any(map(str.isalpha, line))), "")


def _in_range(reward: object, least: float) -> float:
    """A reward from `least` to 1, scaled to [0, 1]."""
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return 0.0  # some games give a text as the reward of an invalid move
    return min(1.0, max(0.0, (reward - least) / (1 - least)))
