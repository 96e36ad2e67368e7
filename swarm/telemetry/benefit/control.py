"""Gain by control: rewards of nodes that learned together over those of a lone node, their control.

Nodes and control have the same policy, questions and completions a round, and as many groups in an update; the
control's are all its own. They are compared after as many rounds, and in the same time: a round with others takes
longer, because updates have more groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from swarm.figures import means_by_task
from swarm.telemetry.history import PeerHistory, mean, reward_window
from swarm.telemetry.intervals import percentile_interval
from swarm.types import Estimate

Curve = npt.NDArray[np.float64]

NUM_RESAMPLES = 4_000
MIN_REWARDS = 30
"""Rewards of the control before a gain is claimed. The interval ignores the noise of a node's rewards, a fifth of so
few."""


class InSeconds(TypedDict):
    """Rewards up to the same number of seconds."""

    seconds: float
    """Wall-clock time of rounds that every node has."""
    ratio: float
    """Mean reward of the answers up to then, the nodes' over the control's; each task weighs alike."""
    low: float
    high: float
    """95% interval, as that of all rounds."""
    rounds_together: float
    """The nodes' mean number of rounds up to then."""
    rounds_alone: int
    alone_rewards: float
    """Sum of the control's rewards up to then."""


class Benefit(TypedDict):
    """`help` of `summary.json`, over the rounds that every node has finished."""

    rounds: int
    together: float
    """Mean reward of the nodes over the last rounds, as many as `reward_window` says."""
    alone: float
    """Mean reward of the control, likewise."""
    cumulative_ratio: float
    """Rewards of all rounds, the nodes' mean over the control's; each task weighs alike."""
    low: float
    high: float
    """95% interval of the ratio, over nodes and tasks: a percentile bootstrap of both."""
    rounds_to_match: int | None
    """Rounds after which the nodes' mean over as many rounds reaches `alone`; None if it does not."""
    alone_rewards: float
    """Sum of the control's rewards in all rounds: as many right answers, where a reward is 0 or 1."""
    seconds_together: float
    """Wall-clock time of these rounds, mean over the nodes."""
    seconds_alone: float
    """Wall-clock time of the control's."""
    processor_s_together: float | None
    """Processor seconds of these rounds, likewise, of a node's processes; None where they were not counted."""
    processor_s_alone: float | None
    in_time: InSeconds | None
    """The comparison by the clock; None before every node has finished a round."""
    in_processor_time: InSeconds | None
    """The same by processor seconds, for nodes that share a machine's cores."""


def benefit(nodes: Sequence[PeerHistory], control: PeerHistory) -> Benefit | None:
    """Gain of the nodes over the control; None when there is nothing to compare yet."""
    rounds = min((max(history.rounds, default=0) for history in (*nodes, control)), default=0)
    if not nodes or rounds == 0:
        return None
    found = _ratio(nodes, [rounds] * len(nodes), control, rounds)
    if found is None:
        return None
    curve = _mean_curve(nodes, rounds)
    window = reward_window(rounds)
    last_alone = float(np.nanmean(_curve(control, rounds)[-window:]))
    return Benefit(
        rounds=rounds,
        together=float(np.nanmean(curve[-window:])),
        alone=last_alone,
        cumulative_ratio=found.value,
        low=found.low,
        high=found.high,
        rounds_to_match=_rounds_to_match(curve, window, last_alone),
        alone_rewards=_rewards(control, rounds),
        seconds_together=_mean_of(nodes, rounds, _seconds) or 0.0,
        seconds_alone=_mean_of([control], rounds, _seconds) or 0.0,
        processor_s_together=_mean_of(nodes, rounds, _processor_seconds),
        processor_s_alone=_mean_of([control], rounds, _processor_seconds),
        in_time=_in_seconds(nodes, control, _seconds),
        in_processor_time=_in_seconds(nodes, control, _processor_seconds),
    )


def is_enough(found: Benefit | InSeconds) -> bool:
    """True if the control has enough rewards for the interval to be relied on."""
    return found["alone_rewards"] >= MIN_REWARDS


Seconds = Callable[[PeerHistory], list[float]]
"""Cumulative seconds after each round."""


def _seconds(history: PeerHistory) -> list[float]:
    """Wall-clock time, without pauses, evaluations, checkpoints and the rounds that a restart lost."""
    return list(accumulate(event.seconds for event in history.series()))


def _processor_seconds(history: PeerHistory) -> list[float]:
    """Processor time of the node's processes; infinite from the first round on for which it is unknown."""
    known = (math.inf if event.processor_s is None else event.processor_s for event in history.series())
    return list(accumulate(known))


def _mean_of(histories: Sequence[PeerHistory], rounds: int, seconds: Seconds) -> float | None:
    found = [seconds(history)[:rounds] for history in histories]
    total = sum(each[-1] for each in found if each)
    return total / len(found) if math.isfinite(total) and all(found) else None


def _in_seconds(nodes: Sequence[PeerHistory], control: PeerHistory, seconds: Seconds) -> InSeconds | None:
    *each, alone = (seconds(history) for history in (*nodes, control))
    most = min((took[-1] for took in (*each, alone) if took), default=0.0)
    rounds = [sum(at <= most for at in took) for took in each]
    rounds_alone = sum(at <= most for at in alone)
    if not 0 < most < math.inf or not min(*rounds, rounds_alone):
        return None
    found = _ratio(nodes, rounds, control, rounds_alone)
    if found is None:
        return None
    return InSeconds(
        seconds=most,
        ratio=found.value,
        low=found.low,
        high=found.high,
        rounds_together=sum(rounds) / len(rounds),
        rounds_alone=rounds_alone,
        alone_rewards=_rewards(control, rounds_alone),
    )


def _ratio(
    nodes: Sequence[PeerHistory], rounds: Sequence[int], control: PeerHistory, rounds_alone: int
) -> Estimate | None:
    """Mean reward of each node's first `rounds` rounds over that of the control's first `rounds_alone`.

    Each task weighs alike. None while the control has earned nothing in the tasks that all were asked.
    """
    by_task = [_by_task(history, number) for history, number in zip(nodes, rounds, strict=True)]
    alone_by_task = _by_task(control, rounds_alone)
    tasks = sorted(set(alone_by_task).intersection(*by_task))
    together = np.array([[found[task] for task in tasks] for found in by_task])  # [nodes, tasks]
    alone = np.array([alone_by_task[task] for task in tasks])  # [tasks]
    if alone.sum() <= 0:
        return None
    low, high = _interval(together, alone)
    return Estimate(float(together.mean(axis=0).sum() / alone.sum()), low, high)


def _rewards(history: PeerHistory, rounds: int) -> float:
    return sum(total for event in history.series()[:rounds] for total, _ in event.tasks.values())


def _by_task(history: PeerHistory, rounds: int) -> dict[str, float]:
    """Mean reward by task over the first `rounds` rounds."""
    return means_by_task(event.tasks for event in history.series()[:rounds])


def _interval(together: Curve, alone: Curve) -> tuple[float, float]:
    """Percentile bootstrap of the ratio, nodes and tasks drawn with replacement; always the same draws."""
    rng = np.random.default_rng(0)
    num_nodes, num_tasks = together.shape
    nodes = rng.integers(num_nodes, size=(NUM_RESAMPLES, num_nodes))
    tasks = rng.integers(num_tasks, size=(NUM_RESAMPLES, num_tasks))
    drawn = together[nodes[:, :, None], tasks[:, None, :]].mean(axis=1).sum(axis=1)  # [resamples]
    lone = alone[tasks].sum(axis=1)
    return percentile_interval(drawn[lone > 0] / lone[lone > 0])


def _curve(history: PeerHistory, rounds: int) -> Curve:
    """Mean reward by round, [rounds]; NaN where it is not known."""
    events = [history.rounds.get(number) for number in range(1, rounds + 1)]
    return np.array([np.nan if event is None or event.reward is None else event.reward for event in events])


def _mean_curve(nodes: Sequence[PeerHistory], rounds: int) -> Curve:
    columns = zip(*(_curve(history, rounds) for history in nodes), strict=True)
    means = [mean(value for value in column if not np.isnan(value)) for column in columns]
    return np.array([np.nan if value is None else value for value in means])


def _rounds_to_match(curve: Curve, window: int, target: float) -> int | None:
    """First round at which the mean of the last `window` rounds reaches `target`."""
    for end in range(window, len(curve) + 1):
        if np.nanmean(curve[end - window : end]) >= target:
            return end
    return None
