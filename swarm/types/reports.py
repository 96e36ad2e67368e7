"""What an update and the measurement of others' groups come to."""

from __future__ import annotations

from msgspec import Struct

from swarm.types.bounds import complete


class UpdateReport(Struct, frozen=True):
    """The result of one policy update, in numbers only: it goes to whoever asked for the update."""

    figures: dict[str, float] = {}
    """Figures of the steps taken, by conventional name; see `swarm/figures.py`."""
    skipped: bool = False
    """True when no step was taken: the loss or gradient was not finite, or there was nothing to learn from."""


class Estimate(Struct, frozen=True):
    """A measured figure with its 95% interval."""

    value: float
    low: float
    high: float


NEEDED_ROUNDS = 16
"""Measured rounds with own and external groups before anything is known of what others' groups do."""


class SwarmWorth(Struct, frozen=True):
    """What others' groups do for a node, as `swarm/sapo/worth.py` estimates it over its last measured rounds."""

    rounds: int
    """Rounds measured."""
    help: Estimate | None = None
    """Progress of its updates over that of updates on its own groups alone; None while unknown."""
    each: Estimate | None = None
    """Worth of an external group, in own groups."""
    senders: dict[str, Estimate] = {}
    """The same by the group's author, of those that are known well enough."""
    compared: int = 0
    """Of the rounds, those with own and others' groups in the update."""
    rounds_left: int | None = None
    """Rounds, measured or not, until `help` will be known if they go on as the last ones; None once it is known, and
    while even that cannot be told."""
    time_alone: float | None = None
    """Time of a round alone over that of a round with others (`swarm/sapo/worth.py`); None while unknown."""

    @property
    def help_in_time(self) -> Estimate | None:
        """Progress over that alone in the same time, not in as many rounds; None while unknown."""
        if self.help is None or self.time_alone is None:
            return None
        return Estimate(*(self.time_alone * each for each in (self.help.value, self.help.low, self.help.high)))


complete(globals())
