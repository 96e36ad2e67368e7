"""The picture of comparisons: each row against the first, and the rewards by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from swarm.telemetry.comparison.outcome import SwarmOutcome
from swarm.telemetry.comparison.table import compare
from swarm.telemetry.plots import FONT, PAPER, PEER_COLOURS, SMOOTHING, Curve, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = ("-", "--", ":", "-.")


class Section(Struct, frozen=True):
    """One comparison of a picture."""

    title: str
    outcomes: Mapping[str, Sequence[SwarmOutcome]]
    """By row; the first is the baseline."""


def write_comparisons(path: Path, sections: Sequence[Section]) -> None:
    """One PNG with a line of plots for each section."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(FONT):
        heights = [1.2 + 0.3 * max(6, len(section.outcomes)) for section in sections]
        figure = Figure(figsize=(11, sum(heights)), dpi=120, layout="constrained", facecolor="white")
        plots = figure.subplots(len(sections), 2, squeeze=False, width_ratios=(1, 1.3), height_ratios=heights)
        for section, (gains, curves) in zip(sections, plots, strict=True):
            _draw_gains(gains, section)
            _draw_curves(curves, section)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.partial")
        figure.savefig(unfinished, format="png")
        unfinished.rename(path)


def _draw_gains(axes: Axes, section: Section) -> None:
    """Cumulative reward against the first row, in percent, with intervals."""
    baseline, *_ = names = list(section.outcomes)
    for row in compare(section.outcomes):
        if row.ratio is None:
            continue
        place = names.index(row.row)
        low, high = row.ratio.interval or (row.ratio.value, row.ratio.value)
        ends = [100 * (low - 1), 100 * (high - 1)]
        axes.plot(ends, [place, place], color=_colour(place), linewidth=2, solid_capstyle="butt")
        axes.plot(100 * (row.ratio.value - 1), place, "o", color=_colour(place), markersize=6)
    axes.axvline(0, color=PAPER.faint, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    _finish(axes, f"{section.title}: cumulative reward", f"percent over {baseline}, 95% intervals over seeds", "x")


def _draw_curves(axes: Axes, section: Section) -> None:
    """Mean reward of nodes and seeds by round, smoothed."""
    for place, (name, outcomes) in enumerate(section.outcomes.items()):
        if not outcomes:
            continue
        curve = mean_curve(outcomes)
        window = max(1, int(len(curve) * SMOOTHING) // 2 * 2 + 1)
        style = STYLES[place // len(PEER_COLOURS) % len(STYLES)]
        rounds = np.arange(1, len(curve) + 1)
        axes.plot(rounds, smoothed(curve, window), style, color=_colour(place), linewidth=1.6, label=name)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, labelcolor=PAPER.text, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _finish(axes, "Reward, mean of nodes and seeds", "round", "y")


def mean_curve(outcomes: Sequence[SwarmOutcome]) -> Curve:
    """Mean reward by round [rounds], over the nodes that got that far."""
    rewards = [node.rewards for outcome in outcomes for node in outcome.nodes]
    longest = max(map(len, rewards), default=0)
    padded = np.full((len(rewards), longest), np.nan)
    for line, each in zip(padded, rewards, strict=True):
        line[: len(each)] = each
    curve: Curve = np.nanmean(padded, axis=0)
    return curve


def _finish(axes: Axes, title: str, label: str, grid: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=PAPER.text)
    axes.set_xlabel(label, color=PAPER.faint, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PAPER.faint)
    axes.tick_params(colors=PAPER.faint, labelcolor=PAPER.text, labelsize=9)
    axes.grid(visible=True, axis=grid, color=PAPER.faint, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)


def _colour(place: int) -> str:
    return PEER_COLOURS[place % len(PEER_COLOURS)]
