"""Questions that this node solves about half of the time."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from swarm.sapo.mixing.base import MAX_ROUNDS, Candidate, Decision, History, MixPolicy


class Edge(MixPolicy):
    """I and J as configured; a candidate's weight is 4 p (1 - p), the variance of a reward of 0 or 1, scaled to 1.

    p estimates this node's success at the question: a mean of its recent success on the task and of the group's own.
    Source: arXiv:2408.15099 (learnability), with another policy's rewards in place of own ones.
    """

    window_rounds: int = Field(20, ge=1, le=MAX_ROUNDS)
    """Rounds over which own success is measured."""
    own: float = Field(0.5, ge=0, lt=1)
    """Weight of own success in p. Below 1, since a task that this node never solves would otherwise have no weight."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        return Decision(
            history.local, history.external, learnability(history, candidates, self.window_rounds, self.own)
        )


def learnability(history: History, candidates: Sequence[Candidate], window_rounds: int, own: float) -> list[float]:
    """4 p (1 - p) of each candidate; for a task without own completions p is the group's success."""
    success = history.success(window_rounds)
    weights = []
    for candidate in candidates:
        p = own * success.get(candidate.task, candidate.success) + (1 - own) * candidate.success
        weights.append(max(0.0, 4 * p * (1 - p)))
    return weights
