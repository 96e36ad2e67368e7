"""A hand of poker between the policy and a scripted opponent.

    reset ──▶ deal ──▶ opponent's moves ──▶ observation ──▶ step: policy's move ──▶ opponent's moves ──▶ ... ──▶ end
                ▲              │
                └── hand over ─┘  the policy had no decision: deal again

Chips won or lost become a reward in [0, 1]: 0 is the loss of the whole stack, 1/2 neither gain nor loss.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Literal

from msgspec import Struct
from pokerkit import Automation, Card, State

from swarm.environments.digests import RESOLUTION, Chance
from swarm.types import Observation, Terminal, Text

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

Kind = Literal["fold", "check", "call", "bet", "raise"]

NAMED = re.compile(
    r"\b(?P<kind>fold|check|call|bet|raise|all[ -]in)\b(?:(?: to)? (?P<chips>[0-9]{1,9})\b)?|(?P<number>[0-9]{1,9})",
    re.IGNORECASE | re.ASCII,
)


class Move(Struct, frozen=True):
    """What a player does."""

    kind: Kind
    chips: int = 0
    """What a call adds; what a bet or raise brings the player's bet to."""

    def make(self, state: State) -> None:
        """Make it for the player whose turn it is. Raises `ValueError` when the rules forbid it."""
        match self.kind:
            case "fold":
                state.fold()
            case "check" | "call":
                state.check_or_call()
            case "bet" | "raise":
                state.complete_bet_or_raise_to(self.chips)

    def __str__(self) -> str:
        """As it is shown and can be said, e.g. `raise to 8`."""
        match self.kind:
            case "fold" | "check":
                return self.kind
            case "raise":
                return f"raise to {self.chips}"
        return f"{self.kind} {self.chips}"


class Menu(Struct, frozen=True):
    """The moves of the player whose turn it is."""

    numbered: dict[int, Move]
    """Those that are offered by number."""
    least: int = 0
    """Chips of the smallest bet or raise; 0 when none is allowed."""
    most: int = 0
    """Chips of the largest."""

    def read(self, text: str) -> Move | None:
        """The last move that a text names, by number or by name; None when there is none or it is not allowed.

        `bet` and `raise` without chips are the smallest, `all-in` the largest, or a call where no raise is allowed.
        """
        last = None
        for found in NAMED.finditer(text):
            last = found
        if last is None:
            return None
        if last["number"]:
            return self.numbered.get(int(last["number"]))
        kind = last["kind"].lower()
        if kind in ("bet", "raise"):
            return self._raise_to(int(last["chips"] or self.least))
        if kind in ("fold", "check", "call"):
            return self._of_kind(kind)
        return self._raise_to(self.most) or self._of_kind("call")

    def _of_kind(self, *kinds: str) -> Move | None:
        return next((move for move in self.numbered.values() if move.kind in kinds), None)

    def _raise_to(self, chips: int) -> Move | None:
        offered = self._of_kind("bet", "raise")
        return Move(offered.kind, chips) if offered and self.least <= chips <= self.most else None

    def __str__(self) -> str:
        """Text for the policy, e.g. `1 fold, 2 call 4`."""
        return ", ".join(f"{number} {move}" for number, move in self.numbered.items())


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
    """Moves of both players so far."""

    def __init__(self, game: str, opponents: Sequence[str], compact: bool) -> None:
        """One of the `opponents` plays each hand; `compact` observations are for policies that read characters."""
        self._game = game
        self._opponents = opponents
        self._compact = compact

    def reset(self, seed: int, index: int) -> Observation:
        """Deal until the policy has a decision. See `Environment`."""
        for deal in count():
            self.chance = Chance((self._game, seed, index, deal))
            self.seat = self.chance.number(0, 1, "seat")
            self.opponent = self._opponents[self.chance.number(0, len(self._opponents) - 1, "opponent")]
            self.moves = []
            self.state = self._dealt()
            heard = self._let_the_opponent_move()
            if self.state.status:
                return self._observation(heard)
        raise AssertionError("unreachable")

    def step(self, action: str) -> Observation | Terminal:
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

    def _end(self) -> Terminal:
        stack = self.state.starting_stacks[self.seat]
        return Terminal(reward(self.state.stacks[self.seat] - stack, stack))


def reward(net: float, stack: float) -> float:
    """Chips won, or lost if negative, by a player with this stack; as a reward in [0, 1]."""
    return (net + stack) / (2 * stack)


def net_chips(reward: float, stack: float) -> float:
    """Chips won for a reward, or for a mean of rewards: the inverse of `reward`."""
    return (2 * reward - 1) * stack


@lru_cache(1_024)
def shuffled(chance: Chance, cards: tuple[Card, ...]) -> tuple[Card, ...]:
    """The cards in a random order, remembered: a hand is dealt again for every turn that is replayed."""
    return tuple(sorted(cards, key=lambda card: chance.number(0, RESOLUTION - 1, "card", repr(card))))
