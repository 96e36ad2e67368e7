"""Combines a task's named rewards: pure functions on untrusted text, in linear time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from swarm.environments.rewards import AnswerReward, FormatReward, JudgeReward, OverlongReward, RewardPart
from swarm.types import Actions, Earned, Observation, by_turn

Parts = dict[str, tuple[float, ...]]
"""[G] rewards of a group's completions by name, each in [0, 1]."""


class Combination:
    """The named rewards of one task, without the judge's, which needs a network or a model."""

    def __init__(self, rewards: Sequence[RewardPart]) -> None:
        """Raises `TaskError` for a pattern that is not valid."""
        self._rewards = tuple(rewards)
        self._scorers = {part.name: scorer for part in rewards if (scorer := _scorer(part)) is not None}

    @property
    def answers_share(self) -> float:
        """The weight of the task's own reward in the mean, in [0, 1]."""
        own = sum(part.weight for part in self._rewards if isinstance(part, AnswerReward))
        return own / sum(part.weight for part in self._rewards)

    def rewards(self, completions: Sequence[Actions], answers: Sequence[float]) -> tuple[tuple[float, ...], Parts]:
        """[G] the weighted mean, and the rewards by name; `answers` [G] are the task's own."""
        found: Parts = {}
        for part in self._rewards:
            if isinstance(part, AnswerReward):
                found[part.name] = tuple(answers)
            elif part.name in self._scorers:
                found[part.name] = tuple(map(self._scorers[part.name], completions))
        return weighted_mean(self._rewards, found, len(completions)), found

    def credited(self, observations: Sequence[Observation]) -> tuple[Observation, ...]:
        """Observations in which what turns earn is a part of the mean, as it is of the task's own reward."""
        return tuple(
            tuple(Earned(part.reward * self.answers_share) if isinstance(part, Earned) else part for part in shown)
            for shown in observations
        )


def weighted_mean(rewards: Sequence[RewardPart], parts: Mapping[str, Sequence[float]], size: int) -> tuple[float, ...]:
    """[G = size] the weighted mean of those rewards that `parts` has, in [0, 1]; zeros if none of them has a weight."""
    weights = {part.name: part.weight for part in rewards if part.name in parts}
    total = sum(weights.values())
    if not total:
        return (0.0,) * size
    sums = (sum(weight * parts[name][k] for name, weight in weights.items()) for k in range(size))
    return tuple(min(1.0, each / total) for each in sums)


def names_of(rewards: Sequence[RewardPart]) -> frozenset[str]:
    """The names of those that `Combination` computes."""
    return frozenset(part.name for part in rewards if not isinstance(part, JudgeReward))


def overlong(part: OverlongReward, completion: Actions) -> float:
    """DAPO's soft punishment plus 1, in [0, 1]; the turns of an episode count together."""
    num_chars = sum(map(len, by_turn(completion)))
    return min(1.0, max(0.0, (part.max_chars - num_chars) / part.cache_chars))


def has_tags(tags: Sequence[str], completion: str) -> float:
    """1 if the text consists of these pairs of tags in this order, each once, and white space around them.

    The first opening tag of several may be missing: many chat templates write `<think>` before the completion begins.
    """
    if len(tags) > 1 and f"<{tags[0]}>" not in completion:
        completion = f"<{tags[0]}>{completion}"
    rest = completion
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if completion.count(opening) != 1 or completion.count(closing) != 1:
            return 0.0
        before, _, after = rest.partition(opening)
        _, found, rest = after.partition(closing)
        if before.strip() or not found:
            return 0.0
    return 0.0 if rest.strip() else 1.0


def _scorer(part: RewardPart) -> Callable[[Actions], float] | None:
    """None for rewards that do not follow from the completion alone."""
    match part:
        case OverlongReward():
            return partial(overlong, part)
        case FormatReward(pattern=None):
            return lambda completion: has_tags(part.tags, by_turn(completion)[-1])
        case FormatReward():
            # pyarrow takes 60 MB, which only patterns need
            from swarm.environments.scoring.patterns import LinearPattern

            assert part.pattern is not None
            pattern = LinearPattern(part.pattern)
            return lambda completion: 0.0 if pattern.last(by_turn(completion)[-1]) is None else 1.0
        case AnswerReward() | JudgeReward():
            return None
