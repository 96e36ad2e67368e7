"""Code that all engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence

from swarm.engines.sampling import check_sampling
from swarm.engines.stopping import Stops
from swarm.policy.loading import Policy
from swarm.protocols import Turns
from swarm.types import Answers, Context, Sampling


class PolicyEngine(ABC):
    """Base of a `RolloutEngine` for one policy; subclasses implement the generation."""

    def __init__(self, policy: Policy) -> None:
        """`policy` validates sampling settings."""
        self._policy = policy

    def check(self, sampling: Sampling) -> None:
        """Raises `SamplingError` for settings that do not work with this policy."""
        self._stops(sampling)

    def generate(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> list[Answers]:
        """G completions for each of P prompts, [P][G], or a `Rejection`. See `RolloutEngine`."""
        answers = dict(self.stream(prompts, num_completions, sampling, seed))
        return [answers[i] for i in range(len(prompts))]

    @abstractmethod
    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Yield each prompt's index and its G completions as soon as they are complete. See `RolloutEngine`."""

    def _stops(self, sampling: Sampling) -> Stops:
        check_sampling(sampling)
        return Stops(self._policy, sampling)
