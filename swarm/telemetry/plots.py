"""The plots of a report: rewards, the composition of updates, and the outcomes of received groups.

Each function draws on given axes and so serves both the PNG and the page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from swarm.figures import LAG_MAX, LAG_MEAN
from swarm.files import open_private
from swarm.reasons import NO_LOSS
from swarm.telemetry.history import Mixture, PeerHistory, drop_reasons, mean, split_drops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = npt.NDArray[np.float64]
Draw = Callable[["Axes", Sequence[PeerHistory], "Ink"], None]

# Okabe and Ito's colours, safe for colour blindness, without yellow, which is too pale for thin lines.
BLUE, ORANGE, GREEN, PINK, SKY, VERMILION = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"
PEER_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)
GREY = "#9a9a9a"
MAX_NAMED_PEERS = 6
"""Beyond this many peers, lines share one style and only the mean is labelled."""
FONT = {"font.family": "sans-serif", "text.parse_math": False}
"""Disables math text: dollar signs in names are literal."""
MAX_POINTS = 500
MAX_BARS = 60
MAX_REASONS = 4
SMOOTHING = 0.08
"""Window of the moving average, as a fraction of the rounds."""


class Ink(Struct, frozen=True):
    """Colours of everything but data."""

    text: str
    faint: str
    nothing: str
    """Fill for missing or undecided groups: fainter than any data."""


PAPER = Ink(text="#222222", faint="#8a8a8a", nothing="#dedede")
# Placeholders for the page's colours, which differ in light and dark mode: replaced in the finished SVG.
_PAGE = Ink(text="#0a0b0c", faint="#8a8b8c", nothing="#dadbdc")
_PAGE_VARIABLES = {_PAGE.text: "var(--ink)", _PAGE.faint: "var(--faint)", _PAGE.nothing: "var(--nothing)"}


def smoothed(values: Curve, window: int) -> Curve:
    """Centred moving average over `window` rounds, shorter at the ends; ignores NaN values."""
    known = ~np.isnan(values)
    kernel = np.ones(window)
    half = (window - 1) // 2
    sums = np.convolve(np.where(known, values, 0.0), kernel)[half : half + len(values)]
    counts = np.convolve(known.astype(float), kernel)[half : half + len(values)]
    average: Curve = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return average


def smoothing_window(histories: Sequence[PeerHistory]) -> int:
    """Window in rounds of the averaged reward curves; odd, 1 for short runs."""
    longest = max((len(history.rounds) for history in histories), default=0)
    return max(1, int(longest * SMOOTHING) // 2 * 2 + 1)


def draw_rewards(axes: Axes, histories: Sequence[PeerHistory], ink: Ink, control: PeerHistory | None = None) -> None:
    """Smoothed mean reward per round of each peer's own completions, the mean over peers, and the control's."""
    window = smoothing_window(histories)
    trained = [history for history in histories if history.rounds]
    named = len(trained) <= MAX_NAMED_PEERS
    by_round: dict[int, list[float | None]] = {}
    for index, history in enumerate(trained):
        series = history.series()
        for event in series:
            by_round.setdefault(event.round, []).append(event.reward)
        _line(
            axes,
            [event.round for event in series],
            [event.reward for event in series],
            window,
            color=PEER_COLOURS[index % len(PEER_COLOURS)] if named else GREY,
            linewidth=1.4 if named else 0.8,
            alpha=0.9 if named else 0.5,
            label=history.name if named else (f"{len(trained)} peers" if index == 0 else None),
        )
    if len(trained) > 1:
        rounds = sorted(by_round)
        means = [mean(by_round[number]) for number in rounds]
        _line(axes, rounds, means, window, color=ink.text, linewidth=2.6, label="mean")
    if control is not None and control.rounds:
        series = control.series()
        rounds = [event.round for event in series]
        rewards = [event.reward for event in series]
        _line(axes, rounds, rewards, window, color=ink.text, linewidth=2.0, label=control.name, dashed=True)
    over = f", averaged over {window} rounds" if window > 1 else ""
    _finish(axes, ink, "Reward", f"mean reward of own completions{over}", empty=not trained)
    _round_axis(axes, ink, histories)
    axes.set_ylim(bottom=0)


def draw_mix(axes: Axes, histories: Sequence[PeerHistory], ink: Ink) -> None:
    """Groups per update by origin, mean over peers; in long runs a bar covers several rounds."""
    mixtures = [mixture for history in histories for mixture in history.mixtures()]
    last = max((mixture.round for mixture in mixtures), default=0)
    step = max(1, -(-last // MAX_BARS))
    bars: dict[int, list[Mixture]] = {}
    for mixture in mixtures:
        bars.setdefault((mixture.round - 1) // step, []).append(mixture)
    num_bars = max(bars, default=-1) + 1
    edges = np.arange(num_bars + 1) * step + 0.5
    bottom = np.zeros(num_bars)
    kinds: tuple[tuple[str, str, Callable[[Mixture], int]], ...] = (
        ("own", BLUE, lambda mixture: mixture.local),
        ("of others", ORANGE, lambda mixture: mixture.external),
        ("own, as fill", SKY, lambda mixture: mixture.filled),
        ("missing", ink.nothing, lambda mixture: mixture.missing),
    )
    for label, colour, count in kinds:
        heights = np.array([mean(count(mixture) for mixture in bars.get(bar, [])) or 0.0 for bar in range(num_bars)])
        if heights.any():
            axes.stairs(bottom + heights, edges, baseline=bottom, fill=True, color=colour, label=label, linewidth=0)
            bottom = bottom + heights
    per_bar = f", {step} rounds per bar" if step > 1 else ""
    _finish(axes, ink, "Mix", f"groups in an update, mean over peers{per_bar}", empty=not bottom.any())
    _round_axis(axes, ink, histories)
    axes.set_ylim(0, max(1.0, float(bottom.max(initial=0)) * 1.02))


def draw_ledger(axes: Axes, histories: Sequence[PeerHistory], ink: Ink) -> None:
    """Outcomes of the groups that each peer received; drops that are no loss are one part."""
    from matplotlib.ticker import MaxNLocator

    names = [history.name for history in histories]
    counts = [history.groups for history in histories]
    latest = [history.latest for history in histories]
    reasons = [reason for reason, _ in drop_reasons(counts) if reason not in NO_LOSS]
    parts = [("used", ORANGE, [groups["used_external"] for groups in counts])]
    parts.append(("no loss", SKY, [sum(n for _, n in split_drops(groups)[0]) for groups in counts]))
    for reason, colour in zip(reasons[:MAX_REASONS], (VERMILION, PINK, GREEN, BLUE), strict=False):
        parts.append((f"refused: {reason}", colour, [groups["dropped"].get(reason, 0) for groups in counts]))
    others = [sum(groups["dropped"].get(reason, 0) for reason in reasons[MAX_REASONS:]) for groups in counts]
    parts.append(("refused: other reasons", GREY, others))
    parts.append(("still held", ink.nothing, [event.pool + event.pending if event else 0 for event in latest]))
    rows = np.arange(len(names))
    left = np.zeros(len(names))
    for label, colour, values in parts:
        if any(values):
            axes.barh(rows, values, left=left, color=colour, label=label, height=0.72, linewidth=0)
            left += np.array(values, dtype=float)
    _finish(axes, ink, "Ledger", "outcomes of the groups that each peer received", empty=not left.any())
    axes.set_yticks(rows, names)
    # From top to bottom, with room for at least two bars, so that a single one does not fill the plot.
    axes.set_ylim(max(2, len(names)) - 0.4, -0.6)
    axes.set_xlabel("groups", color=ink.faint)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=ink.faint, alpha=0.25, linewidth=0.7)


def draw_versions(axes: Axes, histories: Sequence[PeerHistory], ink: Ink) -> None:
    """The learner's version, and the version that each worker has installed, over time."""
    started = min((event.time for history in histories for event in history.series()), default=0.0)
    workers = [history for history in histories if history.role == "worker"]
    for index, history in enumerate(workers):
        points = [(event.time, event.following.version) for event in history.series() if event.following]
        known = [((at - started) / 60, version) for at, version in points if version is not None]
        axes.step(
            [at for at, _ in known],
            [version for _, version in known],
            where="post",
            color=PEER_COLOURS[index % len(PEER_COLOURS)],
            linewidth=1.2,
            alpha=0.8,
            label=history.name if len(workers) <= MAX_NAMED_PEERS else ("workers" if index == 0 else None),
        )
    for history in histories:
        learned = [(event.time, event.learning.version) for event in history.series() if event.learning]
        if learned:
            axes.step(
                [(at - started) / 60 for at, _ in learned],
                [version for _, version in learned],
                where="post",
                color=ink.text,
                linewidth=2.2,
                label=history.name,
            )
    _finish(axes, ink, "Versions", "the learner's, and those installed by workers", empty=not histories)
    axes.set_xlabel("minutes", color=ink.faint)
    axes.set_ylim(bottom=0)


def draw_staleness(axes: Axes, histories: Sequence[PeerHistory], ink: Ink) -> None:
    """Staleness of the tokens of each step, and the bound."""
    steps = [
        event for history in histories for event in history.series() if event.learning and LAG_MAX in event.figures
    ]
    rounds = [event.round for event in steps]
    oldest = [event.figures[LAG_MAX] for event in steps]
    means = [event.figures[LAG_MEAN] for event in steps]
    budget = [event.learning.max_staleness for event in steps if event.learning]
    axes.step(rounds, budget, where="mid", color=ink.faint, linewidth=1.2, linestyle="--", label="budget")
    axes.step(rounds, oldest, where="mid", color=VERMILION, linewidth=1.2, label="oldest token")
    axes.plot(rounds, means, color=BLUE, linewidth=1.6, label="mean")
    _finish(axes, ink, "Staleness", "versions between sampling and learning, by step", empty=not steps)
    axes.set_xlabel("step", color=ink.faint)
    axes.set_ylim(bottom=0)


def as_svg(draw: Draw, histories: Sequence[PeerHistory], height_in: float, label: str) -> str:
    """A plot for the page: text stays text, and colours follow the page's light or dark mode."""
    import matplotlib
    from matplotlib.figure import Figure

    # The salt makes ids unique on the page and the same in every run.
    with matplotlib.rc_context({**FONT, "svg.fonttype": "none", "svg.hashsalt": label}):
        figure = Figure(figsize=(8.6, height_in), layout="constrained")
        draw(figure.subplots(), histories, _PAGE)
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for stand_in, variable in _PAGE_VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # The page sets the width.
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{label}"', svg, count=1)


def write_png(path: Path, histories: Sequence[PeerHistory], control: PeerHistory | None = None) -> None:
    """All plots in one PNG; `control` is a lone node to compare with."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(FONT):
        trained = training(histories)
        pictures: list[tuple[Draw, float, Sequence[PeerHistory]]] = [
            (partial(draw_rewards, control=control), 3.2, trained),
            (draw_mix, 2.4, trained),
            (draw_ledger, ledger_height_in(trained), trained),
        ]
        if len(trained) < len(histories):
            pictures[1:1] = [(draw_versions, 2.8, histories), (draw_staleness, 2.4, histories)]
        heights = [height for _, height, _ in pictures]
        figure = Figure(figsize=(9, sum(heights)), dpi=120, layout="constrained", facecolor="white")
        subplots = figure.subplots(len(pictures), 1, gridspec_kw={"height_ratios": heights})
        for axes, (draw, _, drawn) in zip(subplots, pictures, strict=True):
            draw(axes, drawn, PAPER)
        with open_private(path, "wb") as file:
            figure.savefig(file, format="png")


def training(histories: Sequence[PeerHistory]) -> list[PeerHistory]:
    """The peers that train, or all if none does; workers only sample."""
    return [history for history in histories if history.role != "worker"] or list(histories)


def ledger_height_in(histories: Sequence[PeerHistory]) -> float:
    """Height in inches with room for every peer's name."""
    return 1.2 + 0.24 * max(2, len(histories))


def _line(
    axes: Axes,
    rounds: Sequence[int],
    values: Sequence[float | None],
    window: int,
    *,
    color: str,
    linewidth: float,
    label: str | None,
    alpha: float = 1.0,
    dashed: bool = False,
) -> None:
    curve = smoothed(np.array([np.nan if value is None else value for value in values], dtype=np.float64), window)
    at = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), MAX_POINTS)).astype(int))
    axes.plot(
        np.array(rounds)[at],
        curve[at],
        color=color,
        linewidth=linewidth,
        alpha=alpha,
        label=label,
        linestyle="--" if dashed else "-",
        solid_capstyle="round",
        # A line through a single point would be invisible.
        marker="o" if len(at) == 1 else None,
    )


def _round_axis(axes: Axes, ink: Ink, histories: Sequence[PeerHistory]) -> None:
    """The same scale for every plot over rounds."""
    from matplotlib.ticker import MaxNLocator

    last = max((number for history in histories for number in history.rounds), default=1)
    axes.set_xlabel("round", color=ink.faint)
    axes.set_xlim(0, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _finish(axes: Axes, ink: Ink, title: str, subtitle: str, empty: bool) -> None:
    axes.set_title(f"{title}: {subtitle}", loc="left", fontsize=10.5, color=ink.text)
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(ink.faint)
    axes.tick_params(colors=ink.faint, labelcolor=ink.text, labelsize=9)
    axes.grid(visible=True, axis="y", color=ink.faint, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)
    if empty:
        axes.text(0.5, 0.5, "nothing recorded", ha="center", va="center", color=ink.faint, transform=axes.transAxes)
    else:
        # Place the legend beside the data.
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1.005, 1.0),
            borderaxespad=0,
            frameon=False,
            fontsize=9,
            labelcolor=ink.text,
        )
