"""More from senders whose groups have helped."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from swarm.sapo.mixing.base import Candidate, Decision, History, MixPolicy


class Worth(MixPolicy):
    """I and J as configured; a candidate's weight is the measured worth of its sender.

    While no sender's worth is known, all candidates are alike.
    """

    unknown: float = Field(1.0, ge=0)
    """Weight of senders of unknown worth; 1 is the worth of an own group."""
    floor: float = Field(0.0, ge=0)
    """Least weight of senders of known worth; with 0, those whose groups do not help are not drawn."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        known = {each.sender for each in candidates if each.worth is not None}
        weights = [worth_weight(each, self.unknown, self.floor) for each in candidates]
        return Decision(history.local, history.external, weights, f"worth of {len(known)} senders known")


def worth_weight(candidate: Candidate, unknown: float, floor: float) -> float:
    """The worth of a candidate's sender as a weight."""
    return unknown if candidate.worth is None else max(floor, candidate.worth)
