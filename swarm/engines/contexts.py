"""Token ids of what an engine is asked to continue."""

from __future__ import annotations

from swarm.lru import LruDict
from swarm.policy.loading import Policy
from swarm.policy.media.features import joined
from swarm.reasons import Reason
from swarm.types import Context, NextTurn, Past, Prompt, Rejection, media_of
from swarm.types.media import Media, modality

MOST_RECENT = 1024
"""Prompts and episodes of which something is remembered: a call may last as long as the node."""


class Contexts:
    """The prompts and turns of one call."""

    def __init__(self, policy: Policy, max_new_tokens: int, room: tuple[str, int]) -> None:
        """Each grows by at most `max_new_tokens`. `room`: what bounds a sequence besides the policy, and its tokens."""
        self._policy = policy
        self._max_new_tokens = max_new_tokens
        self._room = room
        self._starts = LruDict[Prompt, list[int]](MOST_RECENT)
        """Ids of episodes' first prompts, which several may share."""
        self._pasts = LruDict[int, tuple[Past, list[int]]](MOST_RECENT)
        """What the last turn of each episode continued, and its ids."""

    def prompt(self, index: int, prompt: Context) -> list[int] | Rejection:
        """The ids of one prompt."""
        if unread := self._unreadable(prompt):
            return unread
        return self._fitting(f"prompt {index}", self._policy.encode(prompt))

    def turn(self, turn: NextTurn) -> list[int] | Rejection:
        """Those of an episode's turn; of its past, only the steps since its last turn are tokenized."""
        context = turn.context
        if unread := self._unreadable(context):
            return unread
        ids = self._continued(turn.episode, context) if isinstance(context, Past) else self._start(context)
        return self._fitting(f"turn {turn.number} of episode {turn.episode}", ids)

    def _unreadable(self, context: Context) -> Rejection | None:
        """A refusal if a policy cannot read all of it."""
        last = context.steps[-1:] if isinstance(context, Past) else ()
        parts = [*media_of(context.prompt if isinstance(context, Past) else context)]
        parts += [part for step in last for part in step.observation if isinstance(part, Media)]
        missing = {modality(part) for part in parts} - self._policy.modalities
        if not missing:
            return None
        return Rejection(Reason.CANNOT_PERCEIVE, f"{self._policy.name} cannot read {', '.join(sorted(missing))}")

    def _start(self, prompt: Prompt) -> list[int]:
        if prompt not in self._starts:
            self._starts[prompt] = self._policy.encode(prompt)
        return self._starts[prompt]

    def _continued(self, episode: int, past: Past) -> list[int]:
        known, ids = self._pasts.get(episode, (None, []))
        if known is None or known != Past(past.prompt, past.steps[: len(known.steps)]):
            known, ids = Past(past.prompt, ()), self._start(past.prompt)
        ids = joined([ids, self._policy.encode_steps(past.steps[len(known.steps) :])])
        self._pasts[episode] = past, ids
        return ids

    def _fitting(self, what: str, ids: list[int]) -> list[int] | Rejection:
        if not ids:
            return Rejection(Reason.PROMPT_EMPTY, f"{what} has no tokens")
        needed = len(ids) + self._max_new_tokens
        asked = f"{what} has {len(ids)} tokens and may grow by {self._max_new_tokens}"
        if needed > self._policy.max_positions:
            return Rejection(Reason.PROMPT_TOO_LONG, f"{asked}, {self._policy.name} has {self._policy.positions}")
        whose, most = self._room
        if needed > most:
            return Rejection(Reason.PROMPT_TOO_LONG, f"{asked}, {whose} has room for {most}")
        return ids
