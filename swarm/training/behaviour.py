"""Chooses the log-probabilities of the behaviour policy: the sampler's, within bounds, or this node's own.

A row's `behaviour` holds the sampler's log-probabilities, where known. The receiver's are this node's own before the
first step, computed only where needed. `old`, the denominator of the objective's ratio, is one of the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from swarm.groups.expectation import log_expectation, mean_logprob, variance
from swarm.training.rows import Row

LOG_MAX_CLAIMED_RATIO = math.log(10.0)
"""Bounds a sender's log-probabilities so that the importance ratio at the first step is between 1/10 and 10."""


def needs_receiver(row: Row, decoupled: bool, several_steps: bool, whole_groups: bool) -> bool:
    """Whether this node's own log-probabilities must be computed before the first step changes them.

    `decoupled`: the clip is against them. `whole_groups`: the objective needs the sampler's expectation over the group;
    they replace an unknown one and bound one that another peer claims.
    """
    if row.external and (row.behaviour is not None or whole_groups):
        return True
    return several_steps and (decoupled if row.behaviour is not None else row.wants_receiver)


def settle(
    rows: Sequence[Row], receiver: Sequence[Sequence[float] | None], decoupled: bool, whole_group: bool
) -> list[Row]:
    """The rows of one group with foreign claims bounded and `old` set.

    `receiver`: this node's own log-probabilities of each row's tokens before the first step, where computed.
    """
    settled = [_settled(row, own, decoupled) for row, own in zip(rows, receiver, strict=True)]
    if not whole_group:
        return settled
    expectation = _expectation(settled, receiver)
    # No record carries a variance: without the sampler's log-probabilities it is the receiver's.
    spread = variance([mean_logprob(row.old or ()) for row in settled])
    return [replace(row, log_expectation=expectation, variance=spread) for row in settled]


def _settled(row: Row, own: Sequence[float] | None, decoupled: bool) -> Row:
    behaviour = row.behaviour
    if row.external and behaviour is not None:
        behaviour = _bounded(behaviour, own or [])
    return replace(row, behaviour=behaviour, old=own if decoupled or behaviour is None else behaviour)


def _expectation(rows: Sequence[Row], receiver: Sequence[Sequence[float] | None]) -> float:
    """The sampler's expectation over the group, computed before the batch is split."""
    known = rows[0].log_expectation
    if math.isnan(known):
        return log_expectation([mean_logprob(row.old or ()) for row in rows])
    if rows[0].external:
        # As for single tokens: a low claim would inflate the group's weights.
        return max(known, log_expectation([mean_logprob(own or ()) for own in receiver]) - LOG_MAX_CLAIMED_RATIO)
    return known


def _bounded(claims: Sequence[float], own: Sequence[float]) -> list[float]:
    """Without these bounds, a bad token would dominate the gradient: with a claim of near-zero probability in the
    objective, whose clip is one-sided, and with one of near-certainty in `update.behaviour_kl`."""
    bound = LOG_MAX_CLAIMED_RATIO
    return [min(max(claim, mine - bound), mine + bound) for claim, mine in zip(claims, own, strict=True)]
