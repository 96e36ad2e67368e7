"""`swarm top`: the nodes on this machine in a terminal, live, with what is wrong and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nodes.commands.watching import finding
from swarm.telemetry.curves import FIGURES
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.live import ASCII_BLOCKS, BLOCKS, LiveView, sparkline
from swarm.telemetry.nodes import CLAIMS, Arrivals, Found, Leader, NodeReader, leaders

PER_SECOND = 1
SHOWN_LEADERS = 8
CURVE_WIDTH = 24
FIRST_CURVES = ("reward", "accuracy", "own groups", "others' groups", "seconds per round")


def show_top(runs: Sequence[Path], once: bool, console: Console) -> None:
    """Show the nodes in `runs`, or all that run here, until Ctrl-C; `once`, or without a terminal, one frame.

    Raises `ConfigError` when there is none.
    """
    finding.check(runs)
    frame = Frame(partial(finding.find, runs))
    if once or not console.is_terminal:
        console.print(frame)
        return
    with suppress(KeyboardInterrupt), Live(frame, console=console, refresh_per_second=PER_SECOND, screen=True):
        while True:
            time.sleep(PER_SECOND)


class Frame:
    """One frame: the live view's table, then the alerts; of a single node also its curves."""

    def __init__(self, find: Callable[[], Sequence[Found]]) -> None:
        """Rendering reads new data, also of nodes that `find` finds only then."""
        self._arrivals = Arrivals(find)
        self._nodes: list[NodeReader] = []
        self._histories: list[PeerHistory] = []
        self._view = LiveView(self._histories, "swarm top")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The frame for the terminal's width."""
        for found in self._arrivals.new():
            self._nodes.append(NodeReader(found.folder, found.name, found.control))
            self._histories.append(self._nodes[-1].history)
        for node in self._nodes:
            node.read()
        yield self._view
        yield from _leaders(leaders(self._nodes))
        if len(self._nodes) == 1:
            yield _curves(self._nodes[0], options.ascii_only)


def _leaders(found: Sequence[Leader]) -> Iterator[RenderableType]:
    """Who is how far, where other members tell it."""
    if not any(leader.claimed for leader in found):
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("member", "accuracy", "rounds", "gave", "used"):
        table.add_column(title, justify="left" if title == "member" else "right")
    for leader in found[:SHOWN_LEADERS]:
        known = leader.accuracy
        accuracy = "-" if known is None else f"{known[0]:.2f} ({known[1]:.2f} to {known[2]:.2f})"
        cells = (leader.name or leader.peer, accuracy, str(leader.rounds), str(leader.given), str(leader.used))
        table.add_row(*map(Text, cells), style="yellow" if leader.claimed else "")
    yield table
    yield Text(f"yellow: {CLAIMS}", "dim")


def _curves(node: NodeReader, ascii_only: bool) -> Table:
    """The latest value of each figure, and its course."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure")
    table.add_column("now", justify="right")
    table.add_column("by round")
    names = dict.fromkeys((*FIRST_CURVES, *FIGURES, *node.curves))
    for name in (name for name in names if name in node.curves):
        curve = node.curves[name]
        values = [value for _, value in curve.points()]
        now = curve.recent if curve.recent is not None else curve.last
        course = sparkline(values, CURVE_WIDTH, max(values, default=0.0), ASCII_BLOCKS if ascii_only else BLOCKS)
        table.add_row(name, "-" if now is None else f"{now:.4g}", Text(course, "cyan"))
    return table
