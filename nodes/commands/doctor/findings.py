"""The outcome of a check, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from swarm.foreign import clean_lines

if TYPE_CHECKING:
    pass

Level = Literal["ok", "warn", "fail"]
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class Finding(Struct, frozen=True):
    """The outcome of one check."""

    check: str
    level: Level
    seen: str
    fix: str = ""
    """The fix; empty when nothing is wrong."""


def unchecked(why: str, fix: str, checks: Sequence[str]) -> Iterator[Finding]:
    """Findings for checks that could not run, and how to enable them."""
    for check in checks:
        yield Finding(check, "warn", f"not checked: {why}", fix)


def summary(findings: Sequence[Finding]) -> Text:
    """One line with the counts of each level."""
    counts = {level: sum(finding.level == level for finding in findings) for level in ("ok", "warn", "fail")}
    words = f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed"
    return Text(words, style=STYLES["fail" if counts["fail"] else "warn" if counts["warn"] else "ok"])


def line_of(finding: Finding) -> Table:
    """A finding for a terminal."""
    line = Table.grid(padding=(0, 2))
    line.add_column(width=4)
    line.add_column(width=11)
    line.add_column(overflow="fold")
    text = Text(clean_lines(finding.seen))
    if finding.fix:
        text.append(f"\nto do: {clean_lines(finding.fix)}", style="dim")
    line.add_row(Text(finding.level, style=STYLES[finding.level]), finding.check, text)
    return line
