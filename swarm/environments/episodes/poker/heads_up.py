"""A hand of poker between the policy and a scripted opponent.

    reset ──▶ deal ──▶ opponent's moves ──▶ observation ──▶ step: policy's move ──▶ opponent's moves ──▶ ... ──▶ end
                ▲              │
                └── hand over ─┘  the policy had no decision: deal again

Chips won or lost become a reward in [0, 1]: 0 is the loss of the whole stack, 1/2 neither gain nor loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count

from pokerkit import Automation, State

from swarm.environments.episodes.poker.chance import Chance
from swarm.environments.episodes.poker.moves import Menu, Move
from swarm.types import End, Observation, Text

AUTOMATIONS = (
    Automation.ANTE_POSTING,
    Automation.BLIND_OR_STRADDLE_POSTING,
    Automation.BET_COLLECTION,
    Automation.HOLE_CARDS_SHOWING_OR_MUCKING,
    Automation.HAND_KILLING,
    Automation.CHIPS_PUSHING,
    Automation.CHIPS_PULLING,
)
"""All that is neither a card nor a move."""


class HeadsUp(ABC):
    """An environment of one hand; seat, cards and the opponent's draws follow from the episode's start.

    A turn that names no move, or one that is not allowed, folds: it costs the chips that are already in the pot.
    """

    state: State
    chance: Chance
    seat: int
    """The policy's, in PokerKit's order."""
    opponent: str
    """Who plays this hand."""
    moves: list[Move]
    """Of both players."""

    def __init__(self, game: str, opponents: Sequence[str], compact: bool) -> None:
        """One of the `opponents` plays each hand; `compact` observations are for policies that read characters."""
        self._game = game
        self._opponents = opponents
        self._compact = compact

    def reset(self, seed: int, index: int) -> Observation:
        """Deal until the policy has a decision. See `Environment`."""
        for deal in count():
            self.chance = Chance(self._game, seed, index, deal)
            self.seat = self.chance.number(2, "seat")
            self.opponent = self._opponents[self.chance.number(len(self._opponents), "opponent")]
            self.moves = []
            self.state = self._dealt()
            heard = self._let_the_opponent_move()
            if self.state.status:
                return self._observation(heard)
        raise AssertionError("unreachable")

    def step(self, action: str) -> Observation | End:
        """Make the policy's move, and the opponent's until the policy's next. See `Environment`."""
        move = self.menu().read(action)
        if move is None:
            return self._end()
        self._make(move)
        heard = self._let_the_opponent_move()
        return self._observation(heard) if self.state.status else self._end()

    @abstractmethod
    def menu(self) -> Menu:
        """What the player whose turn it is may do."""

    @abstractmethod
    def _dealt(self) -> State:
        """A new hand, before the first decision."""

    @abstractmethod
    def _opponents_move(self) -> Move:
        """The opponent's, whose turn it is."""

    @abstractmethod
    def _shown(self, heard: Sequence[Move]) -> str:
        """What the policy sees at its turn; `heard` are the opponent's moves since its last one."""

    def _deal_board(self) -> None:  # noqa: B027
        """Deal what is due on the board, in a game that has one."""

    def _let_the_opponent_move(self) -> list[Move]:
        heard: list[Move] = []
        while self.state.status and self.state.actor_index != self.seat:
            heard.append(self._opponents_move())
            self._make(heard[-1])
        return heard

    def _make(self, move: Move) -> None:
        move.make(self.state)
        self.moves.append(move)
        self._deal_board()

    def _observation(self, heard: Sequence[Move]) -> Observation:
        return (Text(self._shown(heard)),)

    def _end(self) -> End:
        stack = self.state.starting_stacks[self.seat]
        return End(reward(self.state.stacks[self.seat] - stack, stack))


def reward(net: float, stack: float) -> float:
    """Chips won, or lost if negative, by a player with this stack; as a reward in [0, 1]."""
    return (net + stack) / (2 * stack)


def net_chips(reward: float, stack: float) -> float:
    """Chips won for a reward, or for a mean of rewards: the inverse of `reward`."""
    return (2 * reward - 1) * stack
