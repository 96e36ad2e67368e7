"""Groups as screens read them, from lists of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.received.pushes import ReadGroup
from swarm.types import ReadTurn


def read(
    task: str, ids: Sequence[Sequence[int]], advantages: Sequence[float], logprobs: Sequence[Sequence[float]] = ()
) -> ReadGroup:
    """A group of completions with these tokens [G][T], advantages [G] and log-probabilities [G][T], by default -0.5."""
    known = logprobs or [[-0.5] * len(each) for each in ids]
    reading = [[ReadTurn(each, values)] if each else [] for each, values in zip(ids, known, strict=True)]
    return ReadGroup(task, reading, [[value] for value in advantages])
