"""What others' groups do for a node by its own estimate (`swarm/sapo/worth.py`), in words and figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm.types import Estimate, SwarmWorth
from swarm.types.reports import NEEDED_ROUNDS

NOT_KNOWN = "not known yet"
MISSING = f"a node needs {NEEDED_ROUNDS} measured rounds with groups of its own and of others"
HOW_LONG = (
    f"A node estimates it from {NEEDED_ROUNDS} measured rounds with own groups and others' on; it measures every other "
    "round."
)


def missing(worth: SwarmWorth) -> str:
    """What an estimate still needs, and how long that takes."""
    left = NEEDED_ROUNDS - worth.compared
    if left <= 0:
        return (
            "its own groups do not agree yet on a direction to learn in; more questions per round "
            "(generation.questions_per_round) tell sooner, and where the reward hardly changes it stays open"
        )
    have = f"{worth.compared} of {NEEDED_ROUNDS} measured rounds with own and others' groups"
    if not worth.compared:
        return have
    more = -(-left * worth.rounds // worth.compared)
    return f"{have}; about {more:,} more at this rate"


def ratio(value: float) -> str:
    """`×1.4`."""
    return f"×{value:.1f}"


def figures(found: Estimate) -> str:
    """A ratio with its 95% interval."""
    return f"×{in_own_groups(found)}"


def in_own_groups(found: Estimate) -> str:
    """The worth of a group of others with its 95% interval."""
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
