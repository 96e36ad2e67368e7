"""Replays the policy's turns in an environment: the only way to observations and returns, for own and others' episodes.

    begin ──▶ step(turn 1) ──▶ observation ──▶ step(turn 2) ──▶ ... ──▶ end with the return, or the next turn can follow

The limits are here, not in the environments: an episode is over after `max_turns`, and an observation is cut off. Time
and memory are limited by the process (`verification/`).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from swarm.errors import Refusal
from swarm.protocols import Episode, TaskSource
from swarm.reasons import Reason
from swarm.types import Actions, Observation, Part, StepReward, TaskRef, Terminal, by_turn, earned
from swarm.types.media import Media

MAX_OBSERVATION_CHARS = 8_192


class Replay(Struct, frozen=True):
    """What became of an episode."""

    observations: tuple[Observation, ...]
    """What the environment answered to each turn except one that ended the episode."""
    reward: float
    """What all turns earned, at most 1."""


class OneTurn:
    """A question of a `TaskSource` as an episode: its score ends it."""

    def __init__(self, source: TaskSource, ref: TaskRef) -> None:
        """`recall` of `source` accepts `ref`."""
        self._source = source
        self._ref = ref

    def step(self, action: str) -> Terminal:
        """The end. See `Episode`."""
        return Terminal(self._source.score(self._ref, action))


def replay(episode: Episode, actions: Actions, max_turns: int) -> Replay:
    """Tell a new episode all `actions`.

    Raises `Refusal` with `episode_mismatch` when one follows the end.
    """
    turns = by_turn(actions)
    observations: list[Observation] = []
    reward = 0.0
    for number, action in enumerate(turns, start=1):
        answer = episode.step(action)
        reward = min(1.0, reward + (answer.reward if isinstance(answer, Terminal) else earned(answer)))
        if isinstance(answer, Terminal) or number == max_turns:
            if number < len(turns):
                raise Refusal(Reason.EPISODE_MISMATCH, f"the episode ends with turn {number}, got {len(turns)}")
            return Replay(tuple(observations), reward)
        observations.append(tuple(_within(answer, MAX_OBSERVATION_CHARS)))
    return Replay(tuple(observations), reward)


def _within(observation: Observation, num_chars: int) -> Iterator[Part]:
    """The parts of an observation, its texts up to so many characters in all."""
    for part in observation:
        if isinstance(part, StepReward | Media):
            yield part
            continue
        yield replace(part, text=part.text[:num_chars])
        num_chars = max(0, num_chars - len(part.text))
