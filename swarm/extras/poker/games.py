"""A hand of poker between the policy and a scripted opponent or a model.

    reset ──▶ deal ──▶ opponent's moves ──▶ observation ──▶ step: policy's move ──▶ opponent's moves ──▶ ... ──▶ end
                ▲              │
                └── hand over ─┘  the policy had no decision: deal again

Chips won or lost become a reward in [0, 1]: 0 is the loss of the whole stack, 1/2 neither gain nor loss.

Texas hold'em: heads-up, no limit. Blinds are 1 and 2 chips; the small blind acts first, and last after the flop.
Source: arXiv:2602.02192, appendix D.

Kuhn poker: three cards, one chip each in the pot, one bet of one chip. Source: Kuhn, "A simplified two-person
poker", 1950.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from types import MappingProxyType
from typing import Literal

from msgspec import Struct
from pokerkit import (
    Automation,
    Card,
    CardsLike,
    Deck,
    Hand,
    KuhnPoker,
    Label,
    NoLimitTexasHoldem,
    RankOrder,
    StandardHighHand,
    State,
)

from swarm.environments.digests import RESOLUTION, Chance
from swarm.extras.poker.tasks import MODEL, SITUATIONS
from swarm.opponents import Speaker
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
        """The move in words that can be shown and said, e.g. `raise to 8`."""
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

    A turn that names no move, or one that is not allowed, folds: it costs the chips that are already in the pot. So
    does a model's.
    """

    state: State
    chance: Chance
    seat: int
    """The policy's, in PokerKit's order."""
    opponent: str
    """Who plays this hand."""
    moves: list[Move]
    """Moves of both players so far."""

    def __init__(
        self, game: str, opponents: Sequence[str], compact: bool, model: Callable[[], Speaker] | None = None
    ) -> None:
        """One of the `opponents` plays each hand; `compact` observations are for policies that read characters;
        `model` makes the one of this name for a hand."""
        self._game = game
        self._opponents = opponents
        self._compact = compact
        self._model = model

    def reset(self, seed: int, index: int) -> Observation:
        """Deal until the policy has a decision. See `Environment`."""
        for deal in count():
            self.chance = Chance((self._game, seed, index, deal))
            self.seat = self.chance.number(0, 1, "seat")
            self.opponent = self._opponents[self.chance.number(0, len(self._opponents) - 1, "opponent")]
            self.moves = []
            self._speaker = self._model() if self._model is not None and self.opponent == MODEL else None
            self._unheard: list[Move] = []
            """The policy's moves since the opponent's last."""
            self._given_up = False
            """Whether the opponent has named no move."""
            self.state = self._dealt()
            heard = self._let_the_opponent_move()
            if self._goes_on:
                return self._observation(heard)
        raise AssertionError("unreachable")

    def step(self, action: str) -> Observation | Terminal:
        """Make the policy's move, and the opponent's until the policy's next. See `Environment`."""
        move = self.menu().read(action)
        if move is None:
            return self._end()
        self._make(move)
        self._unheard.append(move)
        heard = self._let_the_opponent_move()
        return self._observation(heard) if self._goes_on else self._end()

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
        """What the player whose turn it is sees; `heard` are the other's moves since its last one."""

    def _deal_board(self) -> None:  # noqa: B027
        """Deal what is due on the board, in a game that has one."""

    def _let_the_opponent_move(self) -> list[Move]:
        heard: list[Move] = []
        while self._goes_on and self.actor != self.seat:
            move = self._opponents_move() if self._speaker is None else self._said(self._speaker)
            if move is None:
                self._given_up = True
            else:
                heard.append(move)
                self._make(move)
        return heard

    @property
    def actor(self) -> int:
        """Whose turn it is, in PokerKit's order."""
        player = self.state.actor_index
        assert player is not None
        return player

    @property
    def _goes_on(self) -> bool:
        return self.state.status and not self._given_up

    def _said(self, speaker: Speaker) -> Move | None:
        """The model's move; None where it names none, or fails."""
        shown, self._unheard = self._observation(self._unheard), []
        move = None
        with suppress(Exception):  # of a model's code, whatever its files make of it
            move = self.menu().read(speaker(shown, self.chance.number(0, 2**32 - 1, "model", len(self.moves))))
        if move is None:
            speaker.unread()
        return move

    def _make(self, move: Move) -> None:
        move.make(self.state)
        self.moves.append(move)
        self._deal_board()

    def _observation(self, heard: Sequence[Move]) -> Observation:
        return (Text(self._shown(heard)),)

    def _end(self) -> Terminal:
        stack = self.state.starting_stacks[self.seat]
        net = stack - self.state.stacks[1 - self.seat] if self._given_up else self.state.stacks[self.seat] - stack
        return Terminal(reward(net, stack))


def reward(net: float, stack: float) -> float:
    """Chips won, or lost if negative, by a player with this stack; as a reward in [0, 1]."""
    return (net + stack) / (2 * stack)


@lru_cache(1_024)
def shuffled(chance: Chance, cards: tuple[Card, ...]) -> tuple[Card, ...]:
    """The cards in a random order, remembered: a hand is dealt again for every turn that is replayed."""
    return tuple(sorted(cards, key=lambda card: chance.number(0, RESOLUTION - 1, "card", repr(card))))


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

    def __init__(
        self, opponents: Sequence[str], stack: int, compact: bool = False, model: Callable[[], Speaker] | None = None
    ) -> None:
        """`opponents`: names in `PLAYERS`, or `MODEL`; `stack`: chips of each player."""
        super().__init__("holdem", opponents, compact, model)
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
        luck = self.chance.number(0, 2**32 - 1, "luck", len(self.moves)) / 2**32
        return PLAYERS[self.opponent](self.menu(), self._strength(), luck)

    def _shown(self, heard: Sequence[Move]) -> str:
        hole, board = _text(self.state.hole_cards[self.actor]), _text(self._shown_board())
        pot, strength, menu = self.state.total_pot_amount, self._strength(), self.menu()
        if self._compact:
            call = self.state.checking_or_calling_amount or 0
            return " ".join(filter(None, [hole, board, f"{pot} {call} hand {strength}."]))
        start = [] if len(self.moves) > len(heard) else [self._rules()]
        moves = [f"They {move}." for move in heard]
        now = f"Hand {hole}, board {board or 'empty'}, pot {pot}, strength {strength} of {STRONGEST}."
        ranges = f" You may raise to any number from {menu.least} to {menu.most}." if menu.most else ""
        return " ".join([*start, *moves, now, f"Choose: {menu}.{ranges}"])

    def _rules(self) -> str:
        blind = "small" if self.state.bets[self.actor] < BIG_BLIND else "big"
        return (
            f"Heads-up no-limit Texas hold'em, blinds {BLINDS[0]} and {BLINDS[1]}, stacks of {self._stack} chips. "
            f"You are the {blind} blind."
        )

    def _strength(self) -> int:
        return looks(self.state.hole_cards[self.actor], self._shown_board())

    def _shown_board(self) -> list[Card]:
        return list(self.state.get_board_cards(0))


def _text(cards: Sequence[Card]) -> str:
    return "".join(map(repr, cards))


RULES = "Kuhn poker: the cards are J, Q and K, both players have put 1 chip into the pot, and a bet is 1 chip."
STACK = 2
CARDS = "JQK"
PASS, BET = 1, 2
"""The numbers of checking or folding, and of betting or calling."""


class Kuhn(HeadsUp):
    """A hand of Kuhn poker; at most two chips are won or lost."""

    def __init__(
        self,
        opponents: Mapping[str, Mapping[str, float]],
        compact: bool = False,
        model: Callable[[], Speaker] | None = None,
    ) -> None:
        """`opponents`: strategies by name, as in `tasks.py`; that of `MODEL` is not read."""
        super().__init__("kuhn", list(opponents), compact, model)
        self._strategies = opponents

    @property
    def situation(self) -> str:
        """What the player whose turn it is knows: the card, then `c` for each check and `b` for a bet."""
        return self._card(self.actor) + "".join(move.kind[0] for move in self.moves)

    def menu(self) -> Menu:
        """See `HeadsUp`."""
        if call := self.state.checking_or_calling_amount:
            return Menu({PASS: Move("fold"), BET: Move("call", call)})
        return Menu({PASS: Move("check"), BET: Move("bet", 1)}, least=1, most=1)

    def _dealt(self) -> State:
        state = KuhnPoker.create_state(AUTOMATIONS)
        for card in shuffled(self.chance, tuple(Deck.KUHN_POKER))[:2]:
            state.deal_hole((card,))
        return state

    def _opponents_move(self) -> Move:
        bets = self.chance.happens(self._strategies[self.opponent][self.situation], "bet", len(self.moves))
        return self.menu().numbered[BET if bets else PASS]

    def _shown(self, heard: Sequence[Move]) -> str:
        card = self._card(self.actor)
        if self._compact:  # a small model tells digits apart, and sees best what comes last
            return " ".join([*(move.kind for move in heard), f"hand {1 + CARDS.index(card)}."])
        start = [RULES] if len(self.moves) == len(heard) else []
        return " ".join([*start, *(f"They {move}." for move in heard), f"You hold {card}. Choose: {self.menu()}."])

    def _card(self, player: int) -> str:
        return self.state.hole_cards[player][0].rank.value


def played_strategy(game: Kuhn, hands: Iterable[tuple[int, int, Sequence[str]]]) -> dict[str, float]:
    """How often the policy bet or called in each situation, over hands (seed, index, the policy's turns); 0 in a
    situation that did not occur."""
    times, bets = Counter[str](), Counter[str]()
    for seed, index, turns in hands:
        game.reset(seed, index)
        for said in turns:
            situation, move = game.situation, game.menu().read(said)
            times[situation] += 1
            bets[situation] += move is not None and move.kind in ("bet", "call")
            if isinstance(game.step(said), Terminal):
                break
    return {situation: bets[situation] / max(1, times[situation]) for situation in SITUATIONS}
