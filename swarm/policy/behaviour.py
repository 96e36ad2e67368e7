"""What stands for the behaviour policy: `old` log-probabilities that are set or bounded by this node's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from swarm.algorithms.losses.gepo import log_group_expectation
from swarm.policy.rows import Row

LOG_MAX_CLAIMED_RATIO = math.log(10.0)
"""A sender's log-probabilities are believed as far as the importance ratio at the first step stays below 10."""

OwnLogprobs = Iterable[tuple[Row, list[float]]]
"""Rows with this node's log-probabilities of their completions, one a token."""


def freeze(own: OwnLogprobs) -> None:
    """The node's log-probabilities at batch time become the behaviour policy's."""
    for row, logprobs in own:
        row.old = logprobs


def bound_claims(own: OwnLogprobs) -> None:
    """A sampler that claims near-zero probability for a bad token would own the gradient: the clip is one-sided."""
    for row, logprobs in own:
        claims = row.old or []
        row.old = [max(claim, mine - LOG_MAX_CLAIMED_RATIO) for claim, mine in zip(claims, logprobs, strict=True)]


def set_group_expectations(groups: Sequence[list[Row]]) -> None:
    """Every row learns its group's expectation of the behaviour policy, before a batch is cut across groups."""
    for rows in groups:
        log_q = torch.tensor([sum(row.old or []) / len(row.completion) for row in rows], dtype=torch.float64)
        expectation = float(log_group_expectation(log_q, torch.zeros(len(rows)))[0])
        for row in rows:
            row.log_expectation = expectation
