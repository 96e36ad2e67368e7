"""What a run prints at its end: the verdict, what is wrong, and a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from swarm.foreign import clean
from swarm.telemetry.alerts.checks import alerts_at_end
from swarm.telemetry.history import PeerHistory, PeerSummary, num_dropped
from swarm.telemetry.live import STYLES, drawable
from swarm.telemetry.summary import SwarmSummary
from swarm.telemetry.verdict.verdict import verdict


def print_end(
    console: Console, summary: SwarmSummary, histories: Sequence[PeerHistory], control: PeerHistory | None = None
) -> None:
    """Print the verdict first, then alerts and the table of `summary.json`."""
    ascii_only = console.options.ascii_only
    answer = verdict(histories, control)
    console.print(Text(drawable(answer.line, ascii_only), STYLES[answer.standing]), soft_wrap=True)
    if answer.why:
        console.print(Text(drawable(answer.why, ascii_only)), soft_wrap=True)
    for name, alert in alerts_at_end(histories, control):
        style = "bold red" if alert.level == "error" else "yellow"
        prefix = f"{name}: " if len(histories) > 1 else ""
        console.print(Text(f"{clean(prefix)}{alert.text} {alert.advice}", style), soft_wrap=True)
    console.print()
    console.print(summary_table(summary, ascii_only))


def summary_table(summary: SwarmSummary, ascii_only: bool = False) -> Table:
    """`summary.json` as a table: one row per peer and one for all."""
    to = drawable("→", ascii_only)
    table = Table(title="What the swarm learned", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.pad_edge = False
    # When space is short, names are cut: rich narrows wrapping columns first.
    table.add_column("peer", overflow="crop", min_width=8)
    for heading in ("rounds", "reward", "accuracy", "received", "used", "dropped"):
        table.add_column(heading, justify="right", no_wrap=True)
    for peer in summary["peers"]:
        _add_peer(table, peer, to)
    if len(summary["peers"]) > 1:
        table.add_section()
        counts = [peer["groups"] for peer in summary["peers"]]
        table.add_row(
            "all",
            str(sum(peer["rounds"] for peer in summary["peers"])),
            _change(summary["mean_reward_first"], summary["mean_reward_last"], to),
            _change(summary["mean_eval_before"], summary["mean_eval_after"], to),
            str(sum(groups["received"] for groups in counts)),
            f"{sum(groups['used_local'] for groups in counts)}+{sum(groups['used_external'] for groups in counts)}",
            str(sum(num_dropped(groups) for groups in counts)),
            style="bold",
        )
    if summary["control"] is not None:
        table.add_section()
        _add_peer(table, summary["control"], to)
    table.caption = (
        f"reward: mean of the first {to} last rounds, a tenth and at least 8; accuracy: on held-out questions, before "
        f"{to} after; used: own+others' groups; dropped: received and never used (docs/reasons.md)"
    )
    table.caption_justify = "left"
    return table


def _add_peer(table: Table, peer: PeerSummary, to: str) -> None:
    groups = peer["groups"]
    # A process that left no end event was killed, or is still at it.
    ended = "not ended" if peer["state"] == "running" else peer["state"]
    table.add_row(
        Text(peer["name"] + ("" if peer["state"] == "done" else f" ({ended})"), no_wrap=True),
        str(peer["rounds"]),
        _change(peer["reward_first"], peer["reward_last"], to),
        _change(peer["eval_before"], peer["eval_after"], to),
        str(groups["received"]),
        f"{groups['used_local']}+{groups['used_external']}",
        str(num_dropped(groups)),
    )


def _change(before: float | None, after: float | None, to: str) -> str:
    return "-" if before is None and after is None else f"{_figure(before)} {to} {_figure(after)}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
