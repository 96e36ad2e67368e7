"""The figures of a node by round in bounded memory, however long the run, and what alerts need to know of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from swarm.figures import LAG_MAX, LAG_MEAN
from swarm.reasons import Reason
from swarm.telemetry.records import (
    EvaluationEvent,
    Event,
    GroupCounts,
    MixDecision,
    NoteEvent,
    RoundEvent,
    StartEvent,
)

MAX_BINS = 120
"""Points of a curve: what a chart of 300 pixels shows without noise."""
RECENT = 20
"""Rounds in what counts as the present, as in the first and the best mean; single rounds are too noisy."""
SHARE_OF_OTHERS = "share of others"
"""Fraction of an update's groups that came from others."""
SPEED = "tokens per second of generation"
"""`tokens_per_s` is a mean over the whole round, with grading and updates."""
SCORER_FAILURES = "verifier/scorer_failures"
"""The counter of completions whose reward function failed."""
MAX_TASKS = 64
MAX_DECISIONS = 8
LEAST_ZERO = 5
"""Rounds without reward before a collapse is considered."""
UNLIKELY = 1e-4
"""Probability below which chance explains nothing."""
FIGURES = {
    "entropy": "entropy",
    "KL to the reference": "kl",
    "KL to the sampler": "sampling/behaviour_kl",
    "gradient norm": "grad_norm",
    "mean length": "completions/mean_length",
    "cut off": "completions/clipped_ratio",
    "mean lag": LAG_MEAN,
    "largest lag": LAG_MAX,
    "no signal": "frac_reward_zero_std",
    "skipped steps": "train/num_skipped_steps",
}
"""Curves of `RoundEvent.figures`, by the name that people see."""
TRAFFIC = {"sent": "network/published_bytes", "received": "network/received_bytes"}
"""Counters of the bytes of a node's own records, and of others', each record once."""


class Curve:
    """Means over bins of equally many rounds. When there are too many bins, each two become one."""

    def __init__(self) -> None:
        self.stride = 1
        """Rounds in a bin: a power of two."""
        self._bins: dict[int, tuple[float, int]] = {}
        """(sum, number of rounds) by (round - 1) // stride, in order."""
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._first: list[float] = []
        self.best: float | None = None
        """The highest mean of `RECENT` consecutive values."""
        self.best_error = math.inf
        """Its standard error."""

    def add(self, round: int, value: float | None) -> None:
        """Add a round's value; an unknown or infinite one is left out. Rounds come in order."""
        if value is None or not math.isfinite(value):
            return
        index = (round - 1) // self.stride
        total, count = self._bins.get(index, (0.0, 0))
        self._bins[index] = (total + value, count + 1)
        if len(self._bins) > MAX_BINS:
            self._halve()
        self._recent.append(value)
        if len(self._first) < RECENT:
            self._first.append(value)
        if (now := self.recent) is not None and (self.best is None or now > self.best):
            self.best, self.best_error = now, self.error

    def cut(self, round: int) -> None:
        """Forget the rounds after `round`: a process has resumed there and repeats them."""
        self._bins = {index: found for index, found in self._bins.items() if index * self.stride < round}
        self._recent.clear()

    @property
    def first(self) -> float | None:
        """Mean of the first `RECENT` values; None while there are fewer."""
        return sum(self._first) / RECENT if len(self._first) == RECENT else None

    @property
    def recent(self) -> float | None:
        """Mean of the last `RECENT` values; None while there are fewer."""
        return sum(self._recent) / RECENT if len(self._recent) == RECENT else None

    @property
    def error(self) -> float:
        """Standard error of `recent`; infinite while there are too few values."""
        if (mean := self.recent) is None:
            return math.inf
        return math.sqrt(sum((value - mean) ** 2 for value in self._recent) / (RECENT - 1) / RECENT)

    @property
    def last(self) -> float | None:
        """The latest value."""
        return self._recent[-1] if self._recent else None

    def points(self, stride: int = 1) -> list[tuple[int, float]]:
        """(last round of the bin, mean over the bin to five digits), at most `MAX_BINS`; bins have at least `stride`
        rounds, a power of two."""
        stride = max(stride, self.stride)
        means = ((index, total / count) for index, (total, count) in self._merged(stride).items())
        return [((index + 1) * stride, float(f"{mean:.5g}")) for index, mean in means]

    def _halve(self) -> None:
        self._bins = self._merged(2 * self.stride)
        self.stride *= 2

    def _merged(self, stride: int) -> dict[int, tuple[float, int]]:
        merged: dict[int, tuple[float, int]] = {}
        for index, (total, count) in self._bins.items():
            place = index * self.stride // stride
            before, others = merged.get(place, (0.0, 0))
            merged[place] = (before + total, others + count)
        return merged


def thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most `most` of the points, evenly spaced; the last one always stays."""
    step = max(1, math.ceil(len(points) / most))
    return list(points[::-1][::step][::-1])


class Decision(Struct, frozen=True):
    """A decision of the mixing policy, from its first round on."""

    round: int
    mix: MixDecision


class NodeCurves:
    """A curve of each figure, fed with a node's events in order."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.curves: dict[str, Curve] = {}
        """Reward, accuracy, those of `FIGURES`, and the increments of `between`."""
        self.tasks: dict[str, Curve] = {}
        """Mean reward by task."""
        self.decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        """Each differs from the one before."""
        self.traffic: dict[str, int] = {}
        """Bytes over all processes, by the names of `TRAFFIC`; without those that are not counted."""
        self.share_at_best: float | None = None
        """Fraction of others' groups in updates when the reward was at its best."""
        self.reward_failure = ""
        """Text of the first failure of a reward function."""
        self.problem = ""
        """The first of the rounds that `num_empty` counts."""
        self._new_process()

    def _new_process(self) -> None:
        self.num_rounds = 0
        self.num_empty = 0
        """Rounds in a row, up to the latest, in which none of the node's own questions got a group."""
        self.num_unrewarded = 0
        """Rounds in a row, up to the latest, in which the reward function failed and nothing earned a reward."""
        self.num_zero = 0
        """Rounds in a row, up to the latest, in which no answer earned a reward."""
        self.num_informative = 0
        """Own groups with signal."""
        self._num_useless = 0
        self._before: RoundEvent | None = None

    @property
    def has_collapsed(self) -> bool:
        """True if chance hardly explains that the last rounds earned nothing.

        If groups with signal came at an even rate, all of them would be in the rounds before with this probability.
        """
        before = self.num_rounds - self.num_zero
        if not before or self.num_zero < LEAST_ZERO:
            return False
        return (before / self.num_rounds) ** self.num_informative < UNLIKELY

    @property
    def useless(self) -> bool:
        """True if each of the process's rounds, at least one, had no group or a reward function that failed."""
        return 0 < self.num_rounds == self._num_useless

    def read_event(self, event: Event) -> None:
        """Add what an event says."""
        match event:
            case StartEvent(resumed_from=None):
                self._forget()
            case StartEvent():
                for curve in (*self.curves.values(), *self.tasks.values()):
                    curve.cut(event.resumed_from or 0)
                self._new_process()
            case RoundEvent():
                self._add_round(event)
            case NoteEvent(alert="scorer_failures"):
                self.reward_failure = self.reward_failure or event.text
            case EvaluationEvent():
                self._curve("accuracy").add(max(1, event.round), event.accuracy)

    def _add_round(self, event: RoundEvent) -> None:
        self.num_rounds += 1
        if event.problem and not self.num_empty:
            self.problem = event.problem
        self.num_empty = self.num_empty + 1 if event.problem else 0
        self.num_unrewarded = self.num_unrewarded + 1 if self._was_unrewarded(event) else 0
        informative = _informative(event) - (_informative(self._before) if self._before else 0)
        self.num_zero = self.num_zero + 1 if event.reward == 0 and not informative else 0
        self.num_informative += informative
        self._num_useless += bool(self.num_empty or self.num_unrewarded)
        values: dict[str, float | None] = {"reward": event.reward, "tokens per second": event.tokens_per_s}
        values |= {name: event.figures.get(key) for name, key in FIGURES.items()}
        values["weights"] = _weights(event)
        self._add_traffic(event)
        self._add_tasks_and_mix(event)
        before, self._before = self._before, event
        if before is not None and before.round == event.round - 1:
            values |= between(before, event)
        for name, value in values.items():
            if value is not None:
                self._curve(name).add(event.round, value)
        reward = self.curves.get("reward")
        if reward is not None and reward.recent is not None and reward.recent == reward.best:
            share = self.curves.get(SHARE_OF_OTHERS)
            self.share_at_best = share.recent if share is not None else None

    def _add_traffic(self, event: RoundEvent) -> None:
        for name, counter in TRAFFIC.items():
            if (now := event.counters.get(counter)) is not None:
                before = self._before.counters.get(counter, 0) if self._before is not None else 0
                self.traffic[name] = self.traffic.get(name, 0) + (now - before if now >= before else now)

    def _add_tasks_and_mix(self, event: RoundEvent) -> None:
        for task, (rewards, count) in event.tasks.items():
            if count and (task in self.tasks or len(self.tasks) < MAX_TASKS):
                self.tasks.setdefault(task, Curve()).add(event.round, rewards / count)
        if event.mix is not None and not (self.decisions and _same(self.decisions[-1].mix, event.mix)):
            self.decisions.append(Decision(event.round, event.mix))

    def _was_unrewarded(self, event: RoundEvent) -> bool:
        """Equal completions are graded once, so that fewer failures are counted than completions."""
        before = self._before.counters.get(SCORER_FAILURES, 0) if self._before is not None else 0
        return event.reward == 0 and event.counters.get(SCORER_FAILURES, 0) > before

    def _curve(self, name: str) -> Curve:
        return self.curves.setdefault(name, Curve())


def _informative(event: RoundEvent) -> int:
    local = event.groups.get("local", {})
    return event.groups["used_local"] + sum(
        local.get(reason, 0) for reason in (Reason.NOT_SAMPLED, Reason.UPDATE_SKIPPED)
    )


def _weights(event: RoundEvent) -> int | None:
    """Version of a learner's or a worker's weights."""
    if event.learning is not None:
        return event.learning.version
    return event.following.version if event.following is not None else None


def _same(one: MixDecision, other: MixDecision) -> bool:
    return (one.policy, one.local, one.external) == (other.policy, other.local, other.external)


def between(before: RoundEvent, now: RoundEvent) -> dict[str, float | None]:
    """Increments of a round, from the cumulative counts before and after it."""
    own = now.groups["used_local"] - before.groups["used_local"]
    others = external_uses(now.groups) - external_uses(before.groups)
    seconds = now.wall_s - before.wall_s
    tokens, generating = now.tokens_generated - before.tokens_generated, now.timings.get("generate", 0.0)
    values: dict[str, float | None] = {
        "own groups": own,
        "others' groups": others,
        SHARE_OF_OTHERS: others / (own + others) if own + others > 0 else None,
        "seconds per round": seconds if seconds > 0 else None,
        SPEED: tokens / generating if generating > 0 else now.tokens_per_s,  # a stage unless rollouts come early
    }
    for name, counter in TRAFFIC.items():
        if seconds > 0 and (moved := _moved(before.counters, now.counters, counter)) is not None:
            values[f"bytes {name} per second"] = moved / seconds
    return values


def external_uses(groups: GroupCounts) -> int:
    """Uses of others' groups in updates, further ones of the same group included."""
    return groups["used_external"] + groups.get("reused_external", 0)


def _moved(before: Mapping[str, int], now: Mapping[str, int], counter: str) -> int | None:
    """None after the counter was reset, or where the node does not have it."""
    moved = now.get(counter, 0) - before.get(counter, 0)
    return moved if counter in now and moved >= 0 else None
