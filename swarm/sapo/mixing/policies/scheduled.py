"""I and J by round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pydantic import Field, field_validator

from swarm.sapo.mixing.base import Candidate, Decision, History, MixPolicy


class Scheduled(MixPolicy):
    """I and J by round, all candidates alike."""

    schedule: tuple[tuple[int, int, int], ...] = Field(min_length=1)
    """(first round, I, J), rounds rising and counted from 1: `[[1, 8, 0], [50, 4, 4]]`. Before the first of them,
    `mix.local` and `mix.external` apply."""

    @field_validator("schedule")
    @classmethod
    def _in_order(cls, schedule: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
        for first_round, local, external in schedule:
            if first_round < 1 or local < 0 or external < 0 or local + external == 0:
                raise ValueError(
                    "each entry must be a round of at least 1, and I and J of at least 0 and not both 0, got "
                    f"{[first_round, local, external]}"
                )
        if any(first[0] >= second[0] for first, second in pairwise(schedule)):
            raise ValueError(f"rounds must rise, got {[entry[0] for entry in schedule]}")
        return schedule

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        begun = [entry for entry in self.schedule if entry[0] <= history.rounds[-1].round]
        if not begun:
            return Decision(history.local, history.external, reason=f"scheduled from round {self.schedule[0][0]} on")
        first_round, local, external = begun[-1]
        return Decision(local, external, reason=f"since round {first_round}")
