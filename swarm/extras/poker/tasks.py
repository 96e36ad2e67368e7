"""The poker tasks, and strategies of Kuhn poker.

A strategy is the probability of betting or calling, not checking or folding, in each situation: the player's card and
what happened before. `K` and `Kcb` are the first player's, `Kc` and `Kb` the second's; `c` is a check, `b` a bet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from swarm.distribution import how_to_install
from swarm.environments.config import Context, Failures, TaskName
from swarm.errors import TaskError
from swarm.opponents import OpponentTask
from swarm.protocols import Environment
from swarm.types import MAX_TURNS

SITUATIONS = tuple(card + before for card in "JQK" for before in ("", "c", "b", "cb"))


def _of(jack: float, queen: float, king: float) -> dict[str, float]:
    """The same whatever happened before."""
    return {situation: {"J": jack, "Q": queen, "K": king}[situation[0]] for situation in SITUATIONS}


_CALLER = {situation: float(situation.endswith("b")) for situation in SITUATIONS}
_NASH = {
    **{"J": 1 / 3, "Q": 0.0, "K": 1.0, "Jcb": 0.0, "Qcb": 2 / 3, "Kcb": 1.0},
    **{"Jc": 1 / 3, "Qc": 0.0, "Kc": 1.0, "Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0},
}

STRATEGIES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "random": _of(0.5, 0.5, 0.5),
        "caller": _CALLER,
        "tight": _of(0.0, 0.0, 1.0),
        "aggressive": _of(1.0, 1.0, 1.0),
        "nash": _NASH,
    }
)
"""`caller` never bets and never folds; `tight` only plays the king; `aggressive` always bets or calls; `nash` loses
nothing on average to anyone, seats taken in turn: it is an equilibrium, of which the first player has many."""

Probability = Annotated[float, Field(ge=0, le=1)]


MODEL = "model"
"""The opponent that is a language model."""


class PokerTask(OpponentTask):
    """A poker game. A hand not over after `max_turns`, and an answer that fails, lose the whole stack."""

    opponents: tuple[str, ...]
    style: Literal["words", "compact"] = "words"
    """`words`: sentences with rules and moves; `compact`: a few characters, for embedded policies, which write a move's
    number. In Kuhn poker the jack is then hand 1, the queen hand 2 and the king hand 3."""

    def _games(self, counts: Failures) -> Callable[[], Environment]:
        raise NotImplementedError

    def environments(self, context: Context) -> Callable[[], Environment]:
        """See `EnvironmentTask`."""
        try:
            return self._games(context.counts)
        except ImportError as error:
            raise TaskError(f"task {self.name!r} needs PokerKit ({error}): {how_to_install('poker')}") from error

    @model_validator(mode="after")
    def _the_model_is_an_opponent(self) -> Self:
        if (self.model is not None) != (MODEL in self.opponents):
            raise ValueError("model must be set where opponents name it, and only there")
        return self


class KuhnTask(PokerTask):
    """Kuhn poker against scripted opponents. The reward is the chips won, from -2 to 2, scaled to [0, 1]. Needs the
    extra `poker`."""

    kind: Literal["kuhn_poker"]
    name: TaskName = "kuhn_poker"
    """Name in this run."""
    max_turns: int = Field(2, ge=2, le=MAX_TURNS)
    """A hand has at most two."""
    opponents: tuple[str, ...] = Field(("random", "caller", "tight", "aggressive", "nash"), min_length=1, max_length=16)
    """One of them plays each hand: `random`; `caller`, who never bets and never folds; `tight`, who only plays the
    king; `aggressive`, who always bets or calls; `nash`, an equilibrium; `model`; or a name in `strategies`."""
    strategies: dict[TaskName, dict[str, Probability]] = Field({}, max_length=16)
    """Further opponents by name, such as earlier selves of the policy: the probability of betting or calling in each of
    the twelve situations `J`, `Jc`, `Jb`, `Jcb`, `Q`, ...: a card, then what happened before, `c` for a check and `b`
    for a bet."""

    def _games(self, counts: Failures) -> Callable[[], Environment]:
        from swarm.extras.poker.games import Kuhn

        player = self.player(counts)
        return lambda: Kuhn(self.chosen, self.style == "compact", player)

    @property
    def chosen(self) -> dict[str, Mapping[str, float]]:
        """The strategies of `opponents`."""
        known = {**STRATEGIES, **self.strategies, MODEL: {}}
        return {name: known[name] for name in self.opponents}

    @model_validator(mode="after")
    def _every_opponent_has_a_whole_strategy(self) -> KuhnTask:
        for name, strategy in self.strategies.items():
            if name in (*STRATEGIES, MODEL) or set(strategy) != set(SITUATIONS):
                raise ValueError(
                    f"strategies.{name} must have another name than a scripted opponent, and the situations "
                    f"{', '.join(SITUATIONS)}"
                )
        known = [*STRATEGIES, MODEL, *self.strategies]
        if unknown := sorted(set(self.opponents) - set(known)):
            raise ValueError(f"no such opponents: {', '.join(unknown)}; there are {', '.join(known)}")
        return self


class HoldemTask(PokerTask):
    """Heads-up no-limit Texas hold'em against scripted opponents. The reward is the chips won, from minus to plus the
    stack, scaled to [0, 1]. Needs the extra `poker`."""

    kind: Literal["holdem"]
    name: TaskName = "holdem"
    """Name in this run."""
    max_turns: int = Field(16, ge=1, le=MAX_TURNS)
    """The policy's decisions in a hand."""
    opponents: tuple[Literal["random", "caller", "tight", "aggressive", "model"], ...] = Field(
        ("random", "caller", "tight", "aggressive"), min_length=1, max_length=16
    )
    """One of them plays each hand: `random`; `caller`, who never raises and never folds; `tight`, who folds all but
    good hands and raises great ones; `aggressive`, who mostly raises by the pot and never folds; or `model`."""
    stack: int = Field(40, ge=4, le=10_000)
    """Chips of each player; the blinds are 1 and 2."""

    def _games(self, counts: Failures) -> Callable[[], Environment]:
        from swarm.extras.poker.games import Holdem

        player = self.player(counts)
        return lambda: Holdem(self.opponents, self.stack, self.style == "compact", player)
