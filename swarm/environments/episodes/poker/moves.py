"""Moves: which ones the rules allow, and which one a text names."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct
from pokerkit import State

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
        """As it is shown, e.g. `1 fold, 2 call 4`."""
        return ", ".join(f"{number} {move}" for number, move in self.numbered.items())
