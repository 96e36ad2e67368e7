"""What stands for the policy that sampled: the sampler's word as far as it is believed, or this node's own.

A row's `behaviour` is the sampler's log-probabilities, where they are known, and `receiver` this node's own from before
the first step, where something needs them. `old`, which the objective's ratio is against, is one of the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def settle(rows: Sequence[Row], decoupled: bool) -> None:
    """Bound what strangers claim, and decide what the objective's ratio is against."""
    for row in rows:
        if row.external and row.behaviour is not None:
            row.behaviour = _bounded(row.behaviour, row.receiver or [])
        row.old = row.receiver if decoupled or row.behaviour is None else row.behaviour


def set_group_expectations(groups: Sequence[list[Row]]) -> None:
    """Every row learns its group's expectation of the sampler, before a batch is cut across groups."""
    for rows in groups:
        known = rows[0].log_expectation
        if math.isnan(known):
            known = log_expectation([mean_logprob(row.old or ()) for row in rows])
        elif rows[0].external:
            # As for single tokens: a low claim would make the group's weights large.
            known = max(
                known, log_expectation([mean_logprob(row.receiver or ()) for row in rows]) - LOG_MAX_CLAIMED_RATIO
            )
        for row in rows:
            row.log_expectation = known


def _bounded(claims: Sequence[float], own: Sequence[float]) -> list[float]:
    """A sampler that claims near-zero probability for a bad token would own the gradient: the clip is one-sided."""
    return [max(claim, mine - LOG_MAX_CLAIMED_RATIO) for claim, mine in zip(claims, own, strict=True)]
