"""What others' groups do for a node, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm.types import Estimate, SwarmWorth

NOT_KNOWN = "not known yet"
CLEAR_WIDTH = 1.0
"""An interval around 1 that is wider leaves the answer open."""


def in_words(worth: SwarmWorth) -> str:
    """The answer to "does the swarm help me?", in a sentence; see `docs/operate.md`."""
    if worth.help is None:
        compared = f"{worth.compared} of them with own and others' groups"
        return f"whether the swarm helps is {NOT_KNOWN} ({worth.rounds} rounds measured, {compared})"
    found = f"{verdict(worth.help)}: {figures(worth.help)} times the progress alone"
    if (in_time := worth.help_in_time) is not None:
        found += f" by round, {figures(in_time)} by the clock"
    # Last, because narrow terminals cut it off.
    each = "" if worth.each is None else f"; others' groups are worth {figures(worth.each)} of your own each"
    return found + each


def verdict(found: Estimate) -> str:
    """Whether the whole interval is on one side of 1, or narrow around it."""
    if found.low > 1:
        return "the swarm helps you"
    if found.high < 1:
        return "the swarm does not help you"
    if found.high - found.low < CLEAR_WIDTH:
        return "the swarm makes no clear difference to you"
    return "whether the swarm helps you is not clear yet"


def figures(found: Estimate) -> str:
    """The value with its 95% interval."""
    return f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})"


def in_short(worth: SwarmWorth) -> str:
    """The progress with others over that alone, for a place beside other nodes'."""
    return NOT_KNOWN if worth.help is None else figures(worth.help)


def in_short_by_the_clock(worth: SwarmWorth) -> str:
    """The same for the progress in the same time."""
    in_time = worth.help_in_time
    return NOT_KNOWN if in_time is None else figures(in_time)


def rewards_ratio(rewards: Sequence[float], found: float) -> float:
    """Rewards of all rounds over what they would have been alone, if `help` was `found` in every round.

    Alone, the node is after t rounds where it is in fact after t / help: the same curve of `rewards`, stretched. For
    help of at most 1 that curve would have to go on beyond its end; the result is then help itself, the ratio without
    any reward at the start. Raises `ValueError` without a reward above 0.
    """
    together = np.array(rewards, dtype=np.float64)
    if not together.sum() > 0:
        raise ValueError(f"one of the {len(together)} rewards must be above 0")
    if found <= 1:
        return max(0.0, found)
    rounds = np.arange(len(together))
    alone = np.interp(rounds / found, rounds, together)
    return max(1.0, float(together.sum() / alone.sum())) if alone.sum() > 0 else found
