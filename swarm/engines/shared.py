"""Generation by all ranks that hold a policy: each answers a part of the questions with the complete weights."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from swarm.engines.base import PolicyEngine
from swarm.errors import Interrupted
from swarm.policy.loading import Policy
from swarm.protocols import RolloutEngine, Turns
from swarm.types import Answers, Context, Sampling


class SharedEngine(PolicyEngine):
    """A `RolloutEngine` that every rank calls with the same arguments; every rank gets all answers."""

    def __init__(self, engine: RolloutEngine, policy: Policy) -> None:
        """`engine` generates with `policy`, on this rank."""
        super().__init__(policy)
        self._engine = engine

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Yield this rank's groups as they complete, then those of the others.

        See `RolloutEngine`. Raises `Interrupted` on every rank if one was interrupted. Samples depend on the number of
        ranks. Several ranks leave `turns` to the caller: they would have to agree on what is ready.
        """
        ranks = self._policy.ranks
        if ranks.size == 1:
            yield from self._engine.stream(prompts, num_completions, sampling, seed, turns)
            return
        mine = range(ranks.rank, len(prompts), ranks.size)
        own: dict[int, Answers] = {}
        parts: list[dict[int, Answers] | None]
        with ranks.gathered():
            try:
                asked = [prompts[i] for i in mine]
                for i, answers in self._engine.stream(asked, num_completions, sampling, seed + ranks.rank):
                    own[mine[i]] = answers
                    yield mine[i], answers
            except (Interrupted, GeneratorExit):
                ranks.gather(None)  # tell the other ranks
                raise
        parts = [*ranks.gather(own)]
        for rank, part in enumerate(parts):
            if part is None:
                raise Interrupted("generation was cancelled")
            if rank != ranks.rank:
                yield from part.items()
