"""What corroboration computes, one token after the other, with exact counts instead of sketches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import quantiles

from swarm.received.pushes import ReadGroup

FADING = 1 - 1 / 4_000
Key = tuple[str, int | None, int]
"""Whether lengths count, the token before (None: any; -1: the start), the token."""


def keys(before: int, token: int) -> list[Key]:
    """What a token counts as."""
    return [(scale, previous, token) for scale in ("by length", "plain") for previous in (None, before)]


def tokens(group: ReadGroup) -> Iterator[tuple[int, int, int, float, float, int]]:
    """Completion, token before, token, advantage, log-probability, length of the completion."""
    for number, (turns, advantages) in enumerate(zip(group.reading, group.advantages, strict=True)):
        length, before = sum(len(turn.ids) for turn in turns), -1
        for turn, advantage in zip(turns, advantages, strict=False):
            for token, logprob in zip(turn.ids, turn.logprobs, strict=True):
                yield number, before, token, advantage, logprob, length
                before = token


def push(group: ReadGroup) -> dict[Key, tuple[float, float]]:
    """Up and down on each key."""
    most: dict[int, float] = defaultdict(float)
    for number, _, _, advantage, _, _ in tokens(group):
        most[number] = max(most[number], advantage)
    raised = sum(most.values())
    if not raised:
        return {}
    mean_length = sum(sum(len(turn.ids) for turn in turns) for turns in group.reading) / len(group.reading)
    found: dict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for _, before, token, advantage, _, length in tokens(group):
        for key in keys(before, token):
            scale = mean_length / length if key[0] == "by length" else 1.0
            found[key][0 if advantage > 0 else 1] += abs(advantage) * scale / raised
    return {key: (min(4.0, up), min(4.0, down)) for key, (up, down) in found.items()}


def pull(group: ReadGroup, factors: Sequence[float]) -> float:
    """How much the raised tokens change probabilities."""
    values = zip(tokens(group), factors, strict=True)
    return sum(max(0.0, a) * f / length * (1 - math.exp(min(0.0, p))) for (_, _, _, a, p, length), f in values)


class Evidence:
    """Pushes of some groups, the newest last."""

    def __init__(self) -> None:
        """None yet."""
        self.pushes: list[tuple[str, dict[Key, tuple[float, float]]]] = []

    def parts(self) -> dict[str, float]:
        """Of the tasks."""
        found: dict[str, float] = defaultdict(float)
        for (task, _), weight in zip(self.pushes, self._weights(), strict=True):
            found[task] += weight
        return {task: weight / self.num for task, weight in found.items()}

    @property
    def num(self) -> float:
        """Groups."""
        return sum(self._weights())

    def mean(self, key: Key) -> tuple[float, float, float]:
        """Push up and down, and the variance of the mean of both."""
        each = [
            (weight, *found.get(key, (0.0, 0.0)))
            for (_, found), weight in zip(self.pushes, self._weights(), strict=True)
        ]
        up, down, square = (
            sum(value for value in column) / self.num
            for column in zip(*((w * up, w * down, w * (up - down) ** 2) for w, up, down in each), strict=True)
        )
        return up, down, max(0.0, square - (up - down) ** 2) / self.num

    def _weights(self) -> list[float]:
        return [FADING ** (len(self.pushes) - 1 - number) for number in range(len(self.pushes))]


class PlainCorroboration:
    """The same factors as `Corroboration` with its default settings."""

    def __init__(self) -> None:
        """Nothing is known."""
        self.own: dict[str, Evidence] = defaultdict(Evidence)
        self.others: dict[tuple[str, str], Evidence] = defaultdict(Evidence)
        self.pulls: list[float] = []

    def learn(self, group: ReadGroup) -> None:
        """Add an own group."""
        if any(advantage > 0 for _, _, _, advantage, _, _ in tokens(group)):
            self.own[group.task].pushes.append((group.task, push(group)))
            self.pulls.append(pull(group, [1.0] * sum(1 for _ in tokens(group))))

    def observe(self, names: Sequence[str], group: ReadGroup) -> None:
        """Add another's group."""
        for place in self._places(names, group):
            self.others[place].pushes.append((group.task, push(group)))

    def factors(self, names: Sequence[str], group: ReadGroup) -> list[float]:
        """Of each token."""
        known = [self.others[place] for place in self._places(names, group)]
        newest = min(self.others["author", name].num for name in names)
        found = [
            min(1.0, newest / 4) * min(self._factor(each, key, a) for each in known for key in keys(before, token))
            for _, before, token, a, _, _ in tokens(group)
        ]
        if len(self.pulls) >= 16:
            most = 2.0 * quantiles(self.pulls[-256:], n=4, method="inclusive")[2]
            scale = min(1.0, most / max(pull(group, found), 1e-9))
            found = [each * scale for each in found]
        return found

    def _factor(self, known: Evidence, key: Key, advantage: float) -> float:
        sign = math.copysign(1.0, advantage) if advantage else 0.0
        up, down, variance = known.mean(key)
        own = error = doubt = 0.0
        for task, part in known.parts().items():
            if task not in self.own:
                doubt += part**2
                continue
            own_up, own_down, own_variance = self.own[task].mean(key)
            own += part * (own_up - own_down) * sign
            error += part**2 * own_variance
            doubt += part**2 / self.own[task].num
        along, against = (up, down) if sign > 0 else (down, up)
        wanted = max(0.0, own)
        excess = along - against - wanted - 2 / known.num - 2 * doubt - 0.01
        return (wanted + against) / along if excess > math.sqrt(variance + error) else 1.0

    @staticmethod
    def _places(names: Sequence[str], group: ReadGroup) -> list[tuple[str, str]]:
        return [*(("author", name) for name in names), ("all", ""), ("task", group.task)]
