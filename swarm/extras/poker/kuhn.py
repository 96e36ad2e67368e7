"""Kuhn poker: three cards, one chip each in the pot, one bet of one chip. Source: Kuhn, "A simplified two-person
poker", 1950."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pokerkit import Deck, KuhnPoker, State

from swarm.extras.poker.heads_up import AUTOMATIONS, HeadsUp, Menu, Move, shuffled
from swarm.extras.poker.tasks import SITUATIONS
from swarm.types import Terminal

RULES = "Kuhn poker: the cards are J, Q and K, both players have put 1 chip into the pot, and a bet is 1 chip."
STACK = 2
CARDS = "JQK"
PASS, BET = 1, 2
"""The numbers of checking or folding, and of betting or calling."""


class Kuhn(HeadsUp):
    """A hand of Kuhn poker; at most two chips are won or lost."""

    def __init__(self, opponents: Mapping[str, Mapping[str, float]], compact: bool = False) -> None:
        """`opponents`: strategies by name, as in `tasks.py`."""
        super().__init__("kuhn", list(opponents), compact)
        self._strategies = opponents

    @property
    def situation(self) -> str:
        """What the player whose turn it is knows: the card, then `c` for each check and `b` for a bet."""
        player = self.state.actor_index
        assert player is not None
        return self._card(player) + "".join(move.kind[0] for move in self.moves)

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
        card = self._card(self.seat)
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
