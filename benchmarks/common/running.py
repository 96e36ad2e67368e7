"""The frame of every benchmark: options, measurements in order, table and JSON at the end."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TypeVar

from rich.console import Console

from benchmarks.common.children import ChildFailed
from benchmarks.common.report import Report, Row, row
from nodes import exits
from swarm.errors import ConfigError

Result = tuple[list[Row], list[str]]
"""Rows, with explanatory notes."""
P = TypeVar("P")


def measure(
    measurements: Mapping[str, Callable[[P], Result]],
    names: Sequence[str] | None,
    plan: P,
    report: Report,
    console: Console,
    *,
    quick: bool,
) -> int:
    """Run the named measurements, or all, and add them to the report; returns 1 if one failed, else 0."""
    code = 0
    names = names or list(measurements)
    for index, name in enumerate(names, 1):
        began = time.monotonic()
        console.print(f"[{index}/{len(names)}] {name} ...", highlight=False, markup=False)
        try:
            rows, notes = measurements[name](plan)
            # Targets apply to full sizes only.
            report.add([replace(each, target=None, met=None) for each in rows] if quick else rows, notes)
            outcome = "done"
        except ChildFailed as error:
            # A failed measurement must not lose the others.
            report.add([row(f"{name}: not measured", [], "")], [f"{name} was not measured: {error}"])
            outcome, code = f"failed: {error}", 1
        console.print(f"      {outcome} in {time.monotonic() - began:.0f} s", highlight=False, markup=False)
    return code


def option_parser(
    name: str, doc: str | None, measurements: Collection[str], default: str = "all"
) -> argparse.ArgumentParser:
    """The options of every benchmark.

    `doc` is its module's docstring, of which the first line is shown. `default` describes the measurements without
    --only.
    """
    parser = argparse.ArgumentParser(prog=f"swarm bench {name}", description=(doc or "").partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, once: to check that it works, not for figures"
    )
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--markdown", type=Path, help="write the table as Markdown")
    if measurements:
        named = f"{' | '.join(measurements)}; default {default}"
        parser.add_argument("--only", nargs="+", choices=measurements, metavar="NAME", help=named)
    return parser


def at_least_one(text: str) -> int:
    """A whole number of at least 1, as an option's value. Raises `argparse.ArgumentTypeError`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def wide_console() -> Console:
    """A console with the terminal's width; otherwise wide enough for a table of figures."""
    return Console(width=None if sys.stdout.isatty() else 180, markup=False, emoji=False)


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for a benchmark."""
    return tempfile.TemporaryDirectory(prefix="swarm-bench-", ignore_cleanup_errors=True)


def conclude(take: Callable[[], int], report: Report, options: argparse.Namespace, console: Console) -> int:
    """Run the measurements, then print and write the results so far.

    Returns their exit code; 2 for what cannot be run so; 130 when interrupted, also by SIGTERM, after `take` has ended
    its children.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = take()
    except ConfigError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        return exits.USAGE
    except KeyboardInterrupt:
        console.print("interrupted: all processes have ended", style="red")
        code = exits.INTERRUPTED
    report.print(console)
    if options.out:
        report.write(options.out)
    if options.markdown:
        options.markdown.write_text(report.markdown())
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
