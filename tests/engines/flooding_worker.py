"""A process of a `ProcessEngine` without a model: all episodes take their turns in the same step, at length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import swarm.engines.process.worker as worker
from swarm.protocols import Turns
from swarm.types import Answers, Completion, Context, Sampling

NUM_TOKENS = 2_048
NUM_TURNS = 2
SAID = (Completion("x" * NUM_TOKENS, "length", (7,) * NUM_TOKENS, (-0.5,) * NUM_TOKENS),)
"""32 of these exceed what a socket holds."""


class Flood:
    """In place of `TransformersEngine`."""

    def __init__(self, setup: object, look_up: Callable[[], bool]) -> None:
        self._look_up = look_up

    def swap(self, weights: Mapping[str, object], version: int) -> None:
        """Nothing uses them."""

    def stream(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int, turns: Turns | None
    ) -> Iterator[tuple[int, Answers]]:
        assert turns is not None
        for _ in range(NUM_TURNS):
            ready: list[int] = []
            while len(ready) < turns.num_episodes:
                ready += [turn.episode for turn in turns.next_turns(wait=True)]
            for episode in ready:
                yield episode, SAID
            self._look_up()


if __name__ == "__main__":
    vars(worker).update(open_engine=Flood)
    worker.main()
