"""Heads-up no-limit Texas hold'em. Blinds are 1 and 2 chips; the small blind acts first, and last after the flop.

Source of the task: arXiv:2602.02192, appendix D.
"""

from __future__ import annotations

from collections.abc import Sequence

from pokerkit import Card, Deck, State

from swarm.environments.episodes.poker.hands import Game
from swarm.environments.episodes.poker.heads_up import AUTOMATIONS, HeadsUp
from swarm.environments.episodes.poker.moves import Menu, Move
from swarm.environments.episodes.poker.players import ALL_IN, CALL, FOLD, PLAYERS, POT, SMALLEST
from swarm.environments.episodes.poker.strength import STRONGEST, strength

BLINDS = (1, 2)
BIG_BLIND = BLINDS[1]


class Holdem(HeadsUp):
    """A hand of hold'em; at most the stack is won or lost."""

    def __init__(self, opponents: Sequence[str], stack: int, compact: bool = False) -> None:
        """`opponents`: names in `PLAYERS`; `stack`: chips of each player."""
        super().__init__("holdem", opponents, compact)
        self._stack = stack

    def menu(self) -> Menu:
        """See `HeadsUp`."""
        state = self.state
        call = state.checking_or_calling_amount or 0
        numbered = {FOLD: Move("fold"), CALL: Move("call", call)} if call else {CALL: Move("check")}
        least = state.min_completion_betting_or_raising_to_amount
        pot = state.pot_completion_betting_or_raising_to_amount
        most = state.max_completion_betting_or_raising_to_amount
        if least is None or pot is None or most is None:
            return Menu(numbered)
        for number, chips in zip((SMALLEST, POT, ALL_IN), (least, pot, most), strict=True):
            move = Move("raise" if any(state.bets) else "bet", chips)
            if move not in numbered.values():
                numbered[number] = move
        return Menu(numbered, least, most)

    def _dealt(self) -> State:
        state = Game.create_state(AUTOMATIONS, True, 0, BLINDS, BIG_BLIND, self._stack, 2)
        deck = self.chance.shuffled(Deck.STANDARD)
        for player in range(2):
            state.deal_hole(deck[2 * player : 2 * player + 2])
        self._board = deck[4:9]
        return state

    def _deal_board(self) -> None:
        while self.state.card_burning_status:
            self.state.burn_card("??")
            dealt = len(self._shown_board())
            self.state.deal_board(self._board[dealt : dealt + (self.state.board_dealing_count or 0)])

    def _opponents_move(self) -> Move:
        player = self.state.actor_index
        assert player is not None
        luck = self.chance.number(2**32, "luck", len(self.moves)) / 2**32
        return PLAYERS[self.opponent](self.menu(), self._strength(player), luck)

    def _shown(self, heard: Sequence[Move]) -> str:
        hole, board = _text(self.state.hole_cards[self.seat]), _text(self._shown_board())
        pot, looks, menu = self.state.total_pot_amount, self._strength(self.seat), self.menu()
        if self._compact:
            call = self.state.checking_or_calling_amount or 0
            return " ".join(filter(None, [hole, board, f"{pot} {call} hand {looks}."]))
        start = [] if len(self.moves) > len(heard) else [self._rules()]
        told = [f"They {move}." for move in heard]
        now = f"Hand {hole}, board {board or 'empty'}, pot {pot}, strength {looks} of {STRONGEST}."
        ranges = f" You may raise to any number from {menu.least} to {menu.most}." if menu.most else ""
        return " ".join([*start, *told, now, f"Choose: {menu}.{ranges}"])

    def _rules(self) -> str:
        blind = "small" if self.state.bets[self.seat] < BIG_BLIND else "big"
        return (
            f"Heads-up no-limit Texas hold'em, blinds {BLINDS[0]} and {BLINDS[1]}, stacks of {self._stack} chips. "
            f"You are the {blind} blind."
        )

    def _strength(self, player: int) -> int:
        return strength(self.state.hole_cards[player], self._shown_board())

    def _shown_board(self) -> list[Card]:
        return list(self.state.get_board_cards(0))


def _text(cards: Sequence[Card]) -> str:
    return "".join(map(repr, cards))
