"""Curves of every figure of the rounds, small and side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from msgspec import Struct

from swarm.foreign import clean
from swarm.telemetry.history import PeerHistory, mean
from swarm.telemetry.plots import MAX_NAMED_PEERS, PEER_COLOURS
from swarm.telemetry.records import RoundEvent
from swarm.telemetry.sections.traffic import rates

WIDTH, HEIGHT = 200.0, 56.0
MARGIN = 3.0
"""Above and below a curve, so that its line is whole."""
MAX_POINTS = 100
"""Of a curve; in longer runs a point is the mean of several rounds."""
MAX_FIGURES = 120
"""Curves at most: what a task or a figure is called is not this program's choice."""

TITLES = {
    "Rewards and answers": ("reward/", "frac_reward_", "completions/"),
    "The policy": ("entropy", "kl", "loss", "grad_norm", "learning_rate", "clip_ratio/", "train/"),
    "Between sampling and training": ("sampling/",),
    "Others' groups": ("mix/", "worth/", "peers"),
    "Time and bytes": ("time/", "generate/", "network/"),
}
"""Prefixes of the names under each title, in the order of the page."""
REST = "Other figures"

Points = list[tuple[float, float]]
"""(round, value), by round."""


class Curve(Struct, frozen=True):
    """A figure of one node, or of the mean over many."""

    colour: str
    points: Points


def curves(histories: Sequence[PeerHistory]) -> str:
    """Every figure that changes, by node for few nodes and as their mean for many; then those that never do."""
    shown = dict(sorted(_by_figure(histories).items()))
    moving = {name: found for name, found in shown.items() if _moves(found)}
    last = max((number for history in histories for number in history.rounds), default=1)
    cards = {name: _card(name, found, last) for name, found in list(moving.items())[:MAX_FIGURES]}
    parts = [
        f'<h3>{escape(title)}</h3><div class="curves">{"".join(cards[name] for name in names)}</div>'
        for title, names in _titled(list(cards))
    ]
    constant = ", ".join(
        f"{clean(name)} {_short(found[0].points[0][1])}" for name, found in shown.items() if name not in moving
    )
    still = f'<p class="note">The same in all rounds: {escape(constant)}.</p>' if constant else ""
    return f"{_legend(histories)}{''.join(parts)}{still}" if parts else ""


def _moves(nodes: Sequence[Curve]) -> bool:
    """Whether values differ by more than the rounding of their means."""
    values = [y for curve in nodes for _, y in curve.points]
    return max(values) - min(values) > 1e-9 * max(map(abs, values))


def _titled(names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    left = list(names)
    for title, prefixes in TITLES.items():
        if found := [name for name in left if name.startswith(prefixes)]:
            yield title, found
            left = [name for name in left if name not in found]
    if left:
        yield REST, left


def _by_figure(histories: Sequence[PeerHistory]) -> dict[str, list[Curve]]:
    """The curves of each figure: one a node, or their mean if they are many."""
    found: dict[str, list[Curve]] = {}
    for index, history in enumerate(histories):
        for name, points in _figures(history).items():
            found.setdefault(name, []).append(Curve(_colour(index, len(histories)), _thinned(points)))
    if len(histories) <= MAX_NAMED_PEERS:
        return found
    return {name: [Curve("var(--ink)", _mean_of(each))] for name, each in found.items()}


def _figures(history: PeerHistory) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for event in history.series():
        for name, value in _of_round(event).items():
            if value is not None:
                found.setdefault(name, []).append((event.round, value))
    for number, sent, received in rates(history):
        found.setdefault("network/sent_bytes_per_s", []).append((number, sent))
        found.setdefault("network/received_bytes_per_s", []).append((number, received))
    return found


def _of_round(event: RoundEvent) -> dict[str, float | None]:
    tasks = {f"reward/{task}": total / count for task, (total, count) in event.tasks.items() if count}
    times: dict[str, float | None] = {f"time/{stage}_s": seconds for stage, seconds in event.timings.items()}
    own = {"reward/mean": event.reward, "generate/tokens_per_s": event.tokens_per_s, "peers/connected": event.peers}
    return {**own, **tasks, **event.figures, **times}


def _thinned(points: Points) -> Points:
    """At most `MAX_POINTS`, each the mean of neighbours."""
    size = -(-len(points) // MAX_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), max(1, size))]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def _mean_of(nodes: Sequence[Curve]) -> Points:
    """The mean over nodes at each of their points' rounds, in as many steps as a curve has points."""
    last = max(x for curve in nodes for x, _ in curve.points)
    bins: dict[int, list[tuple[float, float]]] = {}
    for curve in nodes:
        for x, y in curve.points:
            bins.setdefault(int(x / last * (MAX_POINTS - 1)), []).append((x, y))
    return [(mean(x for x, _ in part) or 0.0, mean(y for _, y in part) or 0.0) for _, part in sorted(bins.items())]


def _card(name: str, nodes: Sequence[Curve], last: int) -> str:
    values = [y for curve in nodes for _, y in curve.points]
    low, high = min(values), max(values)
    lines = "".join(_line(curve, low, high, last) for curve in nodes)
    latest = mean(curve.points[-1][1] for curve in nodes) or 0.0
    label = f"{clean(name)}, by round, from {_short(low)} to {_short(high)}"
    return (
        f'<figure class="curve"><figcaption>{escape(clean(name))} <b>{_short(latest)}</b></figcaption>'
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"{lines}</svg><small>{_short(low)} to {_short(high)}</small></figure>"
    )


def _line(curve: Curve, low: float, high: float, last: int) -> str:
    room = HEIGHT - 2 * MARGIN
    points = [
        (x / max(1, last) * WIDTH, HEIGHT - MARGIN - ((y - low) / (high - low) if high > low else 0.5) * room)
        for x, y in curve.points
    ]
    if len(points) == 1:
        x, y = points[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{curve.colour}"></circle>'
    at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{at}" stroke="{curve.colour}"></polyline>'


def _colour(index: int, num_nodes: int) -> str:
    return PEER_COLOURS[index % len(PEER_COLOURS)] if num_nodes > 1 else "var(--ink)"


def _legend(histories: Sequence[PeerHistory]) -> str:
    """Whose curve has which colour."""
    few = len(histories) <= MAX_NAMED_PEERS
    named = enumerate(histories if few and len(histories) > 1 else ())
    keys = "".join(
        f'<span><i style="background:{_colour(index, len(histories))}"></i>{escape(history.name)}</span>'
        for index, history in named
    )
    whose = "" if few else f", mean over {len(histories)} peers"
    note = (
        f"Each curve over all rounds, with its last value and its range{whose}. docs/objectives.md explains the names."
    )
    return f'<p class="note">{note}</p>' + (f'<p class="legend">{keys}</p>' if keys else "")


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
