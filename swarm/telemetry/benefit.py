"""Whether sharing helped: the rewards of nodes that learned together, over those of a lone node that is their control.

Nodes and control have the same policy, questions and completions a round, and as many groups in an update; the
control's are all its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from swarm.figures import means_by_task
from swarm.telemetry.history import PeerHistory, mean, reward_window
from swarm.telemetry.intervals import percentile_interval

Curve = npt.NDArray[np.float64]

NUM_RESAMPLES = 4_000
MIN_REWARDS = 30
"""Of the control, before a gain is claimed. The interval leaves out the chance in a node's own rewards, a fifth of so
few."""


class Benefit(TypedDict):
    """`help` of `summary.json`, over the rounds that every node has finished."""

    rounds: int
    together: float
    """Mean reward of the nodes over the last rounds, as many as `reward_window` says."""
    alone: float
    """That of the control."""
    cumulative_ratio: float
    """Rewards of all rounds, the nodes' mean over the control's; each task weighs alike."""
    low: float
    high: float
    """95% interval of the ratio, over nodes and tasks: a percentile bootstrap of both."""
    rounds_to_match: int | None
    """Rounds after which the nodes' mean over as many rounds reaches `alone`; None if it does not."""
    alone_rewards: float
    """Sum of the control's rewards in all rounds: as many right answers, where a reward is 0 or 1."""


def benefit(nodes: Sequence[PeerHistory], control: PeerHistory) -> Benefit | None:
    """What the nodes have gained over the control; None when there is nothing to compare yet."""
    rounds = min((max(history.rounds, default=0) for history in (*nodes, control)), default=0)
    if not nodes or rounds == 0:
        return None
    by_task, alone_by_task = [_by_task(history, rounds) for history in nodes], _by_task(control, rounds)
    tasks = sorted(set(alone_by_task).intersection(*by_task))
    together = np.array([[found[task] for task in tasks] for found in by_task])  # [nodes, tasks]
    alone = np.array([alone_by_task[task] for task in tasks])  # [tasks]
    if alone.sum() <= 0:
        return None
    low, high = _interval(together, alone)
    curve = _mean_curve(nodes, rounds)
    window = reward_window(rounds)
    last_alone = float(np.nanmean(_curve(control, rounds)[-window:]))
    return Benefit(
        rounds=rounds,
        together=float(np.nanmean(curve[-window:])),
        alone=last_alone,
        cumulative_ratio=float(together.mean(axis=0).sum() / alone.sum()),
        low=low,
        high=high,
        rounds_to_match=_rounds_to_match(curve, window, last_alone),
        alone_rewards=sum(total for event in control.series()[:rounds] for total, _ in event.tasks.values()),
    )


def is_enough(found: Benefit) -> bool:
    """Whether the control has rewards enough for the interval to be relied on."""
    return found["alone_rewards"] >= MIN_REWARDS


def in_words(found: Benefit) -> str:
    """The answer to "did the swarm help?", in a sentence or two."""
    gain, low, high = (100 * (found[key] - 1) for key in ("cumulative_ratio", "low", "high"))
    matched = found["rounds_to_match"]
    if matched is None:
        reached = f"With others {found['alone']:.2f} was not reached in {found['rounds']} rounds."
    elif matched == reward_window(found["rounds"]):
        reached = f"The lone node's {found['alone']:.2f} is no more than what the others began with."
    else:
        rounds = f"{matched} rounds instead of {found['rounds']}"
        reached = f"With others a reward of {found['alone']:.2f} came after {rounds}."
    if not is_enough(found):
        reached = f"The lone node has earned too few rewards to rely on this: {found['alone_rewards']:.3g}."
    return (
        f"With others {found['together']:.2f}, alone {found['alone']:.2f} after {found['rounds']} rounds; "
        f"rewards of all rounds {gain:+.0f}% (95% interval {low:+.0f}% to {high:+.0f}%). {reached}"
    )


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
