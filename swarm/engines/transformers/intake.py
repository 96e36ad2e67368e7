"""Makes drafts of what an engine is asked, or says why it cannot answer."""

from __future__ import annotations

from itertools import count

from swarm.engines.contexts import MOST_RECENT, Contexts
from swarm.engines.sampling import completion_seed
from swarm.engines.transformers.scheduler import Draft, Room
from swarm.lru import LruDict
from swarm.policy.loading import Policy
from swarm.types import Context, NextTurn, Past, Prompt, Rejection, Sampling


class Intake:
    """The drafts of one call."""

    def __init__(self, policy: Policy, sampling: Sampling, seed: int, room: Room) -> None:
        """`room` holds them all."""
        self._contexts = Contexts(policy, sampling.max_new_tokens, ("the cache", room.longest))
        self._seed = seed
        self._places = policy.mrope_positions
        self._questions = count(-1, -1)
        """For turns; those of prompts are their indices."""
        self._starts = LruDict[Prompt, int](MOST_RECENT)
        """Questions of episodes' first prompts."""

    def prompt(self, index: int, prompt: Context, num_completions: int) -> list[Draft] | Rejection:
        """G drafts of one prompt."""
        ids = self._contexts.prompt(index, prompt)
        if isinstance(ids, Rejection):
            return ids
        following = self._following(ids)
        return [
            Draft(index, k, ids, completion_seed(self._seed, index, k), following=following)
            for k in range(num_completions)
        ]

    def turn(self, turn: NextTurn) -> Draft | Rejection:
        """The draft of an episode's next turn."""
        ids = self._contexts.turn(turn)
        if isinstance(ids, Rejection):
            return ids
        seed = completion_seed(self._seed, turn.episode, turn.number)
        question = self._question(turn.context)
        return Draft(
            question,
            turn.episode,
            ids,
            seed,
            episode=turn.episode,
            turn=turn.number,
            following=self._following(ids),
        )

    def _following(self, ids: list[int]) -> int | None:
        return None if self._places is None else int(self._places(ids).max()) + 1

    def _question(self, context: Context) -> int:
        """The same for those that can share a reading."""
        if isinstance(context, Past):
            return next(self._questions)
        if context not in self._starts:
            self._starts[context] = next(self._questions)
        return self._starts[context]
