"""Plots of comparisons: each row against the first, rewards by round, accuracy against its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from swarm.telemetry.benefit.comparison import Cost, SwarmOutcome, compare, mean_learning_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = npt.NDArray[np.float64]

# Okabe and Ito's colours, safe for colour blindness, without yellow, which is too pale for thin lines.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
INK, FAINT = "#222222", "#8a8a8a"
FONT = {"font.family": "sans-serif", "text.parse_math": False}
"""Disables math text: dollar signs in names are literal."""
SMOOTHING = 0.08
"""Window of the moving average, as a fraction of the rounds."""
STYLES = ("-", "--", ":", "-.")
MIN_POINTS = 3
"""A curve through fewer evaluations shows nothing that the table does not."""


class Section(Struct, frozen=True):
    """One comparison of a picture."""

    title: str
    outcomes: Mapping[str, Sequence[SwarmOutcome]]
    """Results by row; the first row is the baseline."""


class _Line(Struct, frozen=True):
    """Two plots beside each other."""

    section: Section
    left: Callable[[Axes, Section], None]
    right: Callable[[Axes, Section], None]

    @property
    def height(self) -> float:
        return 1.2 + 0.3 * max(6, len(self.section.outcomes))


def write_comparisons(path: Path, sections: Sequence[Section]) -> None:
    """One PNG with a line of plots for each section, and another where its nodes were evaluated in between."""
    import matplotlib
    from matplotlib.figure import Figure

    lines = [line for section in sections for line in _lines(section)]
    with matplotlib.rc_context(FONT):
        heights = [line.height for line in lines]
        figure = Figure(figsize=(11, sum(heights)), dpi=120, layout="constrained", facecolor="white")
        plots = figure.subplots(len(lines), 2, squeeze=False, width_ratios=(1, 1.3), height_ratios=heights)
        for line, (left, right) in zip(lines, plots, strict=True):
            line.left(left, line.section)
            line.right(right, line.section)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.partial")
        figure.savefig(unfinished, format="png")
        unfinished.rename(path)


def _lines(section: Section) -> list[_Line]:
    rewards = _Line(section, _draw_gains, _draw_curves)
    points = max(len(mean_learning_curve(outcomes)) for outcomes in section.outcomes.values())
    if points < MIN_POINTS:
        return [rewards]
    by_tokens = partial(_draw_accuracy, kind="tokens", label="tokens that a node has generated")
    by_seconds = partial(_draw_accuracy, kind="seconds", label="seconds of a node's rounds")
    return [rewards, _Line(section, by_tokens, by_seconds)]


def _draw_gains(axes: Axes, section: Section) -> None:
    """Cumulative reward against the first row, in percent, with intervals."""
    baseline, *_ = names = list(section.outcomes)
    for row in compare(section.outcomes):
        if row.ratio is None:
            continue
        y = names.index(row.row)
        low, high = row.ratio.interval or (row.ratio.value, row.ratio.value)
        ends = [100 * (low - 1), 100 * (high - 1)]
        axes.plot(ends, [y, y], color=_colour(y), linewidth=2, solid_capstyle="butt")
        axes.plot(100 * (row.ratio.value - 1), y, "o", color=_colour(y), markersize=6)
    axes.axvline(0, color=FAINT, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    _finish(axes, f"{section.title}: cumulative reward", f"percent over {baseline}, 95% intervals over seeds", "x")


def _draw_curves(axes: Axes, section: Section) -> None:
    """Mean reward of nodes and seeds by round, smoothed."""
    for row, (name, outcomes) in enumerate(section.outcomes.items()):
        if not outcomes:
            continue
        curve = mean_curve(outcomes)
        window = max(1, int(len(curve) * SMOOTHING) // 2 * 2 + 1)
        rounds = np.arange(1, len(curve) + 1)
        axes.plot(rounds, smoothed(curve, window), _style(row), color=_colour(row), linewidth=1.6, label=name)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", integer=True)
    _name_rows(axes)
    _finish(axes, "Reward, mean of nodes and seeds", "round", "y")


def _draw_accuracy(axes: Axes, section: Section, kind: Cost, label: str) -> None:
    """Accuracy on held-out questions against what it has cost, with intervals."""
    for row, (name, outcomes) in enumerate(section.outcomes.items()):
        curve = mean_learning_curve(outcomes)
        if not curve:
            continue
        costs = [point.cost(kind).value for point in curve]
        values = [point.accuracy.value for point in curve]
        low, high = np.transpose([point.accuracy.interval or (point.accuracy.value,) * 2 for point in curve])
        axes.plot(costs, values, _style(row), color=_colour(row), linewidth=1.6, label=name)
        axes.fill_between(costs, low, high, color=_colour(row), alpha=0.15, linewidth=0)
    axes.set_ylim(bottom=0)
    if kind == "seconds":
        _name_rows(axes)
    _finish(axes, f"{section.title}: held-out accuracy", f"{label}; 95% intervals over seeds", "y")


def mean_curve(outcomes: Sequence[SwarmOutcome]) -> Curve:
    """Mean reward by round [rounds], over the nodes that got that far."""
    rewards = [node.rewards for outcome in outcomes for node in outcome.nodes]
    longest = max(map(len, rewards), default=0)
    padded = np.full((len(rewards), longest), np.nan)
    for line, each in zip(padded, rewards, strict=True):
        line[: len(each)] = each
    curve: Curve = np.nanmean(padded, axis=0)
    return curve


def smoothed(values: Curve, window: int) -> Curve:
    """Centred moving average over `window` rounds, shorter at the ends; ignores NaN values."""
    known = ~np.isnan(values)
    kernel = np.ones(window)
    half = (window - 1) // 2
    sums = np.convolve(np.where(known, values, 0.0), kernel)[half : half + len(values)]
    counts = np.convolve(known.astype(float), kernel)[half : half + len(values)]
    average: Curve = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return average


def _finish(axes: Axes, title: str, label: str, grid: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(label, color=FAINT, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=FAINT, labelcolor=INK, labelsize=9)
    axes.grid(visible=True, axis=grid, color=FAINT, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)


def _name_rows(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _style(row: int) -> str:
    return STYLES[row // len(COLOURS) % len(STYLES)]


def _colour(row: int) -> str:
    return COLOURS[row % len(COLOURS)]
