"""What stands for the policy that sampled: the sampler's word as far as it is believed, or this node's own.

A row's `behaviour` is the sampler's log-probabilities, where they are known. The receiver's are this node's own from
before the first step, where something needs them. `old`, which the objective's ratio is against, is one of the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from swarm.groups.expectation import log_expectation, mean_logprob
from swarm.training.rows import Row

LOG_MAX_CLAIMED_RATIO = math.log(10.0)
"""A sender's log-probabilities are believed as far as the importance ratio at the first step stays below 10."""


def needs_receiver(row: Row, decoupled: bool, several_steps: bool, whole_groups: bool) -> bool:
    """Whether this node's own log-probabilities have to be known before the first step changes them.

    `decoupled`: the clip is against them. `whole_groups`: the objective needs the group's expectation of the sampler,
    for which they stand where it is not known and which they bound where it is a stranger's word.
    """
    if row.external and (row.behaviour is not None or whole_groups):
        return True
    return several_steps and (decoupled if row.behaviour is not None else row.wants_receiver)


def settle(
    rows: Sequence[Row], receiver: Sequence[Sequence[float] | None], decoupled: bool, whole_group: bool
) -> list[Row]:
    """The rows of one group, what a stranger claims bounded, with what the objective's ratio is against.

    `receiver`: this node's own log-probabilities of each row's tokens from before the first step, where they are known.
    """
    settled = [_settled(row, own, decoupled) for row, own in zip(rows, receiver, strict=True)]
    if not whole_group:
        return settled
    expectation = _expectation(settled, receiver)
    return [replace(row, log_expectation=expectation) for row in settled]


def _settled(row: Row, own: Sequence[float] | None, decoupled: bool) -> Row:
    behaviour = row.behaviour
    if row.external and behaviour is not None:
        behaviour = _bounded(behaviour, own or [])
    return replace(row, behaviour=behaviour, old=own if decoupled or behaviour is None else behaviour)


def _expectation(rows: Sequence[Row], receiver: Sequence[Sequence[float] | None]) -> float:
    """The group's expectation of the sampler, before a batch is cut across groups."""
    known = rows[0].log_expectation
    if math.isnan(known):
        return log_expectation([mean_logprob(row.old or ()) for row in rows])
    if rows[0].external:
        # As for single tokens: a low claim would make the group's weights large.
        return max(known, log_expectation([mean_logprob(own or ()) for own in receiver]) - LOG_MAX_CLAIMED_RATIO)
    return known


def _bounded(claims: Sequence[float], own: Sequence[float]) -> list[float]:
    """A sampler that claims near-zero probability for a bad token would own the gradient: the clip is one-sided."""
    return [max(claim, mine - LOG_MAX_CLAIMED_RATIO) for claim, mine in zip(claims, own, strict=True)]
