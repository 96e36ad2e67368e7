"""A task and a reward of one's own, used without a change to this project:

swarm tasks try examples/own-task.yaml
swarm bootstrap examples/own-task.yaml
swarm join /ip4/.../p2p/... --code.halve examples/own_task.py:Halve    members name their copy of this file
"""

from random import Random

from pydantic import Field

from swarm.environments.task import Task


class Halve(Task):
    """Halve an even number; the reward falls with the distance from the half."""

    largest: int = Field(20, ge=1)
    """Largest half."""

    def question(self, random: Random) -> tuple[str, str]:
        """See `Task`."""
        half = random.randint(1, self.largest)
        return f"Calculate {2 * half} / 2.", str(half)

    def reward(self, question: str, completion: str, reference: str) -> float:
        """See `Task`. `int` of a completion that is no number fails, and a failure is worth 0."""
        distance = abs(int(completion) - int(reference))
        return 1 / (1 + distance)


def brief(question: str, completion: str, reference: str) -> float:
    """For the answers of a data set: a completion that ends with the reference is right, and better if it is short."""
    return float(completion.rstrip(" .").endswith(reference)) * min(1.0, 200 / max(1, len(completion)))
