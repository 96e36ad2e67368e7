"""What a role does with its policy, which decides how much memory its nodes need. Light: every role's class says it."""

from __future__ import annotations

from msgspec import Struct


class Duties(Struct, frozen=True, kw_only=True):
    """What the nodes of a role do; the settings say how much of it."""

    trains: bool = True
    """It has an optimizer. Otherwise it generates only, and vLLM's weights are the only ones on its GPU."""
    asks: bool = True
    """It generates completions of the run. Otherwise it generates for evaluations only, and never with vLLM."""
    generates_ahead: bool = False
    """With `generation.max_staleness` it generates ahead of its updates, by a copy of the weights."""
    spot_checks: bool = False
    """With `learner.spot_check` it keeps a copy of the weights."""


PEER = Duties(generates_ahead=True)
"""The duties of `swarm join`."""
