"""A mixing policy of one's own, used without a change to this project:

swarm join --mix.policy examples/own_mix.py:Unsolved --mix.settings.solved 0.9
"""

from collections.abc import Sequence

from pydantic import Field

from swarm.sapo.mixing import Candidate, Decision, History, MixPolicy

WINDOW_ROUNDS = 20
HALF_LIFE_S = 120.0


class Unsolved(MixPolicy):
    """External groups only of tasks that this node does not solve yet, rather young ones; own groups fill the rest."""

    solved: float = Field(0.8, gt=0, le=1)
    """Mean own reward from which a task counts as solved."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        success = history.success(WINDOW_ROUNDS)
        weights = [
            0.5 ** (each.age_s / HALF_LIFE_S) if success.get(each.task, 0.0) < self.solved else 0.0
            for each in candidates
        ]
        num_useful = sum(weight > 0 for weight in weights)
        external = min(history.external, num_useful)
        reason = f"{num_useful} of {len(candidates)} candidates of unsolved tasks"
        return Decision(history.total - external, external, weights, reason)
