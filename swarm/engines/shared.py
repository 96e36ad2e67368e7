"""Generation by all processes that hold a policy: each answers a part of the questions with the whole weights."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.errors import Interrupted
from swarm.policy.loading import Policy
from swarm.protocols import RolloutEngine
from swarm.types import Answers, Sampling


class SharedEngine:
    """A `RolloutEngine` that every rank calls with the same arguments; every rank gets all answers."""

    def __init__(self, engine: RolloutEngine, policy: Policy) -> None:
        """`engine` generates with `policy`, on this rank."""
        self._engine = engine
        self._policy = policy

    def generate(self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        """[P][G]. Raises `Interrupted` on every rank when one was. Samples depend on the number of ranks."""
        ranks = self._policy.ranks
        mine = range(ranks.rank, len(prompts), ranks.size)
        answers: list[Answers] | None = None
        with ranks.gathered():
            try:
                own = [prompts[i] for i in mine]
                answers = self._engine.generate(own, num_completions, sampling, seed + ranks.rank)
            except Interrupted:
                pass  # the others have to learn of it
        parts = ranks.gather(answers)
        results: list[Answers] = [()] * len(prompts)
        for rank, part in enumerate(parts):
            if part is None:
                raise Interrupted("generation was cancelled")
            results[rank :: ranks.size] = part
        return results
