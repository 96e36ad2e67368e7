"""The end of a run: `summary.json`, the page as a file, and the verdict with a table in the terminal.

All three work with partial data: an interrupted run, a peer without a round, one peer or many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import msgspec

from swarm.files import replace_file
from swarm.kinds import extra, has_extra
from swarm.sanitize import clean
from swarm.telemetry.alerts import alerts_at_end
from swarm.telemetry.benefit.control import Benefit, benefit
from swarm.telemetry.benefit.verdict import verdict
from swarm.telemetry.history import PeerHistory, PeerSummary, mean, num_dropped
from swarm.telemetry.live import STYLES, drawable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SUMMARY_FILE = "summary.json"
PAGE_FILE = "report.html"
PAGE = "page.report"


class SwarmSummary(TypedDict):
    """`summary.json`. Means are over the peers that train and know the figure."""

    peers: list[PeerSummary]
    mean_reward_first: float | None
    mean_reward_last: float | None
    mean_eval_before: float | None
    mean_eval_after: float | None
    control: PeerSummary | None
    """A lone node that the others are compared with; in no mean."""
    help: Benefit | None
    """Gain of the others over the control."""
    config: Mapping[str, object]
    versions: Mapping[str, str]


def swarm_summary(
    histories: Sequence[PeerHistory], config: Mapping[str, object], versions: Mapping[str, str]
) -> SwarmSummary:
    """The content of `summary.json`, for nodes of which at most one is a control."""
    nodes = [history for history in histories if not history.control]
    control = next((history for history in histories if history.control), None)
    peers = [history.peer_summary() for history in nodes]
    trained = [peer for peer in peers if peer["role"] != "worker"]
    return SwarmSummary(
        peers=peers,
        mean_reward_first=mean(peer["reward_first"] for peer in trained),
        mean_reward_last=mean(peer["reward_last"] for peer in trained),
        mean_eval_before=mean(peer["eval_before"] for peer in trained),
        mean_eval_after=mean(peer["eval_after"] for peer in trained),
        control=control.peer_summary() if control else None,
        help=benefit(nodes, control) if control else None,
        config=config,
        versions=versions,
    )


def write_report(out_dir: Path, histories: Sequence[PeerHistory], summary: SwarmSummary) -> Path:
    """Write the summary, and the page if it is installed; returns the file for people to open. Raises `OSError`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(summary, enc_hook=str), indent=2) + b"\n"
    replace_file(out_dir / SUMMARY_FILE, text)
    if not has_extra(PAGE):
        return out_dir / SUMMARY_FILE
    replace_file(out_dir / PAGE_FILE, extra(PAGE).frozen(histories, summary["config"], summary["versions"]))
    return out_dir / PAGE_FILE


def print_end(console: Console, summary: SwarmSummary, histories: Sequence[PeerHistory]) -> None:
    """Print the verdict first, then alerts and the table of `summary.json`."""
    from rich.text import Text

    ascii_only = console.options.ascii_only
    answer = verdict(histories)
    console.print(Text(drawable(answer.line, ascii_only), STYLES[answer.standing]), soft_wrap=True)
    if answer.why:
        console.print(Text(drawable(answer.why, ascii_only)), soft_wrap=True)
    for name, alert in alerts_at_end(histories):
        style = "bold red" if alert.level == "error" else "yellow"
        prefix = f"{name}: " if len(histories) > 1 else ""
        console.print(Text(f"{clean(prefix)}{alert.text} {alert.advice}", style), soft_wrap=True)
    console.print()
    console.print(summary_table(summary, ascii_only))


ENDED = {"running": "not ended"}


def summary_table(summary: SwarmSummary, ascii_only: bool = False) -> Table:
    """`summary.json` as a table: one row per peer and one for all."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

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
    shown = [*summary["peers"], *([summary["control"]] if summary["control"] is not None else [])]
    # A process without an end event was killed, or still runs. Beside a name there may be no room for it.
    states: dict[str, list[str]] = {}
    for each in shown:
        states.setdefault(ENDED.get(each["state"], each["state"]), []).append(each["name"])
    ended = "".join(f"{state}: {', '.join(names)}\n" for state, names in states.items() if state != "done")
    table.caption = Text(
        f"{ended}reward: mean of the first {to} last tenth of the rounds, at least 8 of them or half; accuracy: on "
        f"held-out questions, before {to} after; used: own+others' groups; dropped: received and never used "
        "(docs/reasons.md)"
    )
    table.caption_justify = "left"
    return table


def _add_peer(table: Table, peer: PeerSummary, to: str) -> None:
    from rich.text import Text

    groups = peer["groups"]
    table.add_row(
        Text(peer["name"], no_wrap=True),
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
