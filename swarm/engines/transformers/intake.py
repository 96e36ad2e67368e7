"""Makes drafts of what an engine is asked, or says why it cannot answer."""

from __future__ import annotations

from itertools import count

from swarm.engines.sampling import completion_seed
from swarm.engines.transformers.scheduler import BLOCK, Draft, Room
from swarm.policy.loading import Policy
from swarm.reasons import Reason
from swarm.types import Context, NextTurn, Past, Prompt, Rejection, Sampling


class Intake:
    """The drafts of one call."""

    def __init__(self, policy: Policy, sampling: Sampling, seed: int, room: Room) -> None:
        """`room` holds them all."""
        self._policy = policy
        self._max_new_tokens = sampling.max_new_tokens
        self._seed = seed
        self._room = room
        self._questions = count(-1, -1)
        """For turns; those of prompts are their indices."""
        self._starts: dict[Prompt, tuple[int, list[int]]] = {}
        """Question and ids of episodes' first prompts, which several may share."""
        self._pasts: dict[int, tuple[Past, list[int]]] = {}
        """What the last turn of each episode continued, and its ids."""

    def prompt(self, index: int, prompt: Context, num_completions: int) -> list[Draft] | Rejection:
        """G drafts of one prompt."""
        ids = self._policy.encode(prompt)
        return self._refusal(f"prompt {index}", ids) or [
            Draft(index, k, ids, completion_seed(self._seed, index, k)) for k in range(num_completions)
        ]

    def turn(self, turn: NextTurn) -> list[Draft] | Rejection:
        """The draft of an episode's next turn."""
        question, ids = self._read(turn)
        seed = completion_seed(self._seed, turn.episode, turn.number)
        return self._refusal(f"turn {turn.number} of episode {turn.episode}", ids) or [
            Draft(question, turn.episode, ids, seed, episode=turn.episode, turn=turn.number)
        ]

    def _read(self, turn: NextTurn) -> tuple[int, list[int]]:
        if isinstance(turn.context, Past):
            return next(self._questions), self._continued(turn.episode, turn.context)
        return self._start(turn.context)

    def _start(self, prompt: Prompt) -> tuple[int, list[int]]:
        if prompt not in self._starts:
            self._starts[prompt] = next(self._questions), self._policy.encode(prompt)
        return self._starts[prompt]

    def _continued(self, episode: int, past: Past) -> list[int]:
        """The ids of an episode's past; only the steps since its last turn are tokenized."""
        known, ids = self._pasts.get(episode, (None, []))
        if known is None or known != Past(past.prompt, past.steps[: len(known.steps)]):
            known, ids = Past(past.prompt, ()), self._start(past.prompt)[1]
        ids = [*ids, *self._policy.encode_steps(past.steps[len(known.steps) :])]
        self._pasts[episode] = past, ids
        return ids

    def _refusal(self, what: str, ids: list[int]) -> Rejection | None:
        if not ids:
            return Rejection(Reason.PROMPT_EMPTY, f"{what} has no tokens")
        needed = len(ids) + self._max_new_tokens
        asked = f"{what} has {len(ids)} tokens and may grow by {self._max_new_tokens}"
        if needed > self._policy.max_positions:
            limit = f"{self._policy.name} has {self._policy.positions}"
            return Rejection(Reason.PROMPT_TOO_LONG, f"{asked}, {limit}")
        if not self._room.fits(needed):
            return Rejection(
                Reason.PROMPT_TOO_LONG, f"{asked}, there is room for {self._room.tokens} less a block of {BLOCK}"
            )
        return None
