"""Heads-up no-limit Texas hold'em. Blinds are 1 and 2 chips; the small blind acts first, and last after the flop.

Source of the task: arXiv:2602.02192, appendix D.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from pokerkit import Card, CardsLike, Deck, Hand, Label, NoLimitTexasHoldem, RankOrder, StandardHighHand, State

from swarm.extras.poker.heads_up import AUTOMATIONS, HeadsUp, Menu, Move, shuffled

BLINDS = (1, 2)
BIG_BLIND = BLINDS[1]
STRONGEST = 9
RANKS = {rank: number for number, rank in enumerate(RankOrder.STANDARD, start=2)}
"""From 2 to 14, the ace."""
BELOW_A_STRAIGHT = {Label.HIGH_CARD, Label.ONE_PAIR, Label.TWO_PAIR, Label.THREE_OF_A_KIND}
REMEMBERED = 4_096
"""Choices of cards."""

Player = Callable[[Menu, int, float], Move]
"""(menu, strength in [0, 9], a random number in [0, 1)) -> move."""

FOLD, CALL, SMALLEST, POT, ALL_IN = 1, 2, 3, 4, 5
"""The numbers on the menu: `CALL` is also checking; the last three are the smallest raise, one by the pot, and the
whole stack."""
GOOD, GREAT = 4, 6
"""Strengths with which opponents call, and raise."""


class RememberedHand(StandardHighHand):
    """PokerKit compares all combinations of five cards, several times a showdown."""

    @classmethod
    def from_game(cls, hole_cards: CardsLike, board_cards: CardsLike = ()) -> Hand:
        """See `CombinationHand`. Raises `ValueError` when there are fewer than five cards."""
        return _best(Card.clean(hole_cards), Card.clean(board_cards))


class Game(NoLimitTexasHoldem):
    """Hold'em that is decided by remembered hands."""

    hand_types = (RememberedHand,)


@lru_cache(REMEMBERED)
def _best(hole: tuple[Card, ...], board: tuple[Card, ...]) -> Hand:
    return StandardHighHand.from_game(hole, board)


def looks(hole: Sequence[Card], board: Sequence[Card]) -> int:
    """In [0, 9]. Before the flop half of Chen's points, later by what the player's own cards make of the board."""
    return _on_board(hole, board) if board else max(0, min(STRONGEST, int(chen_points(hole) // 2)))


def chen_points(hole: Sequence[Card]) -> float:
    """Points of the first two cards, before rounding. Source: Krieger, "Hold'em Excellence", 1995."""
    low, high = sorted(RANKS[card.rank] for card in hole)
    points = {14: 10.0, 13: 8.0, 12: 7.0, 11: 6.0}.get(high, high / 2)
    if low == high:
        return max(5.0, 2 * points)
    gap = high - low - 1
    points -= {0: 0, 1: 1, 2: 2, 3: 4}.get(gap, 5)
    points += 2 * (hole[0].suit == hole[1].suit)
    return points + (gap <= 1 and high < 12)  # they make more straights


def _on_board(hole: Sequence[Card], board: Sequence[Card]) -> int:
    if RememberedHand.from_game(hole, board).entry.label not in BELOW_A_STRAIGHT:
        return STRONGEST
    own, shown = ([RANKS[card.rank] for card in cards] for cards in (hole, board))
    times = {rank: (own + shown).count(rank) for rank in own}
    paired = [rank for rank, number in times.items() if number >= 2]
    if not paired:
        return 2 if max(own) >= RANKS[RankOrder.STANDARD[-2]] else 1
    if max(times.values()) >= 3:
        return 8
    if len(paired) == 2:
        return 7
    return 6 if paired[0] >= max(shown) else 4


def random(menu: Menu, strength: int, luck: float) -> Move:
    """Every move on the menu is as likely."""
    moves = list(menu.numbered.values())
    return moves[int(luck * len(moves))]


def caller(menu: Menu, strength: int, luck: float) -> Move:
    """Never folds, never raises."""
    return menu.numbered[CALL]


def tight(menu: Menu, strength: int, luck: float) -> Move:
    """Raises with great hands, calls with good ones, and folds the others."""
    if strength >= GREAT:
        return menu.numbered.get(POT) or menu.numbered.get(SMALLEST) or menu.numbered[CALL]
    return menu.numbered[CALL] if strength >= GOOD else menu.numbered.get(FOLD) or menu.numbered[CALL]


def aggressive(menu: Menu, strength: int, luck: float) -> Move:
    """Raises by the pot three times out of four, whatever it holds, and else calls; it never folds."""
    return menu.numbered.get(POT) or menu.numbered[CALL] if luck < 0.75 else menu.numbered[CALL]


PLAYERS: Mapping[str, Player] = MappingProxyType(
    {player.__name__: player for player in (random, caller, tight, aggressive)}
)


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
        deck = shuffled(self.chance, tuple(Deck.STANDARD))
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
        luck = self.chance.number(0, 2**32 - 1, "luck", len(self.moves)) / 2**32
        return PLAYERS[self.opponent](self.menu(), self._strength(player), luck)

    def _shown(self, heard: Sequence[Move]) -> str:
        hole, board = _text(self.state.hole_cards[self.seat]), _text(self._shown_board())
        pot, strength, menu = self.state.total_pot_amount, self._strength(self.seat), self.menu()
        if self._compact:
            call = self.state.checking_or_calling_amount or 0
            return " ".join(filter(None, [hole, board, f"{pot} {call} hand {strength}."]))
        start = [] if len(self.moves) > len(heard) else [self._rules()]
        told = [f"They {move}." for move in heard]
        now = f"Hand {hole}, board {board or 'empty'}, pot {pot}, strength {strength} of {STRONGEST}."
        ranges = f" You may raise to any number from {menu.least} to {menu.most}." if menu.most else ""
        return " ".join([*start, *told, now, f"Choose: {menu}.{ranges}"])

    def _rules(self) -> str:
        blind = "small" if self.state.bets[self.seat] < BIG_BLIND else "big"
        return (
            f"Heads-up no-limit Texas hold'em, blinds {BLINDS[0]} and {BLINDS[1]}, stacks of {self._stack} chips. "
            f"You are the {blind} blind."
        )

    def _strength(self, player: int) -> int:
        return looks(self.state.hole_cards[player], self._shown_board())

    def _shown_board(self) -> list[Card]:
        return list(self.state.get_board_cards(0))


def _text(cards: Sequence[Card]) -> str:
    return "".join(map(repr, cards))
