"""One plot for each quantity, one line for each node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.soak.census import UNITS
from swarm.telemetry.benefit.picture import COLOURS, FONT


class Drawn(Protocol):
    """What was seen of one node."""

    name: str
    times: list[float]

    def series(self, quantity: str) -> list[float]:
        """The values of a quantity."""


def draw(courses: Sequence[Drawn], quantities: Sequence[str], path: Path) -> None:
    """Write a PNG, if there is anything to draw."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(FONT):
        figure = Figure(figsize=(9, 2.2 * len(quantities)), dpi=100, layout="constrained", facecolor="white")
        for axes, quantity in zip(figure.subplots(len(quantities), 1, sharex=True), quantities, strict=True):
            for i, course in enumerate(courses):
                again, colour = divmod(i, len(COLOURS))
                axes.plot(
                    course.times,
                    course.series(quantity),
                    color=COLOURS[colour],
                    linestyle="--" if again else "-",
                    linewidth=1,
                    label=course.name,
                )
            axes.set_title(f"{quantity}, {UNITS[quantity]}" if quantity in UNITS else quantity, loc="left")
            axes.set_ylim(bottom=0)
        axes.set_xlabel("hours")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
        figure.savefig(path)
