"""One measurement after the other, none of them losing the others' rows."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TypeVar

from rich.console import Console

from benchmarks.children import ChildFailed
from benchmarks.report import Report, Row, row

Result = tuple[list[Row], list[str]]
"""Rows, and notes that explain them."""
P = TypeVar("P")


def measure(
    measurements: Mapping[str, Callable[[P], Result]],
    names: Sequence[str],
    plan: P,
    report: Report,
    console: Console,
    *,
    quick: bool,
) -> int:
    """Take the measurements of these names into the report; 1 if one of them could not be had, else 0."""
    code = 0
    for index, name in enumerate(names, 1):
        began = time.monotonic()
        console.print(f"[{index}/{len(names)}] {name} ...", highlight=False, markup=False)
        try:
            rows, notes = measurements[name](plan)
            # Targets are for full sizes: a quick run neither meets nor misses them.
            report.add([replace(each, target=None, met=None) for each in rows] if quick else rows, notes)
            outcome = "done"
        except ChildFailed as error:
            # One row that cannot be had is no reason to lose the others.
            report.add([row(f"{name}: not measured", [], "")], [f"{name} was not measured: {error}"])
            outcome, code = f"failed: {error}", 1
        console.print(f"      {outcome} in {time.monotonic() - began:.0f} s", highlight=False, markup=False)
    return code


def interrupt_on_sigterm() -> None:
    """SIGTERM ends a benchmark as Ctrl-C does, with its children ended."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
