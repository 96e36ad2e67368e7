"""The output of every benchmark: one table, one JSON format."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console
from rich.table import Table

from swarm.distribution import NAME
from swarm.machine import num_cores

Better = Literal["higher", "lower"]
PACKAGES = (NAME, "hivemind", "torch", "transformers", "msgspec", "zstandard")


@dataclass(frozen=True)
class Row:
    """One figure. `value` is the median of `n` repeats, `spread` their minimum and maximum."""

    what: str
    value: float | None
    """None when not measured; `what` or a note gives the reason."""
    unit: str
    baseline: float | None = None
    """The baseline's figure, measured in the same run."""
    ratio: float | None = None
    """`value / baseline`."""
    target: float | None = None
    met: bool | None = None
    """Whether `value` reaches `target`; None without a target, false without a value."""
    spread: tuple[float, float] | None = None
    n: int = 0


@dataclass
class Report:
    """The rows of one run, with the information to read and repeat them."""

    benchmark: str
    peer: str = "public peer"
    """Name of the baseline."""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Definitions and remarks: printed below the table, not part of the JSON."""
    versions: dict[str, str] = field(default_factory=dict)
    """Additional versions, for example of baselines."""
    started: float = field(default_factory=time.time)

    def add(self, rows: Iterable[Row], notes: Iterable[str] = ()) -> None:
        """Add the rows and notes of one measurement."""
        self.rows += rows
        self.notes += [note for note in notes if note not in self.notes]

    def as_json(self) -> str:
        """The JSON format."""
        shape = {
            "benchmark": self.benchmark,
            "rows": [asdict(row) for row in self.rows],
            "command": command(),
            "versions": {**versions(), **self.versions},
            "machine": machine(),
        }
        return json.dumps(shape, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write the JSON atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".partial")
        draft.write_text(self.as_json())
        draft.rename(path)

    def print(self, console: Console) -> None:
        """The table, then the notes."""
        table = Table("what", "value", "spread", "n", self.peer, "ratio", "target", "met", title=self.benchmark)
        for column in table.columns[1:]:
            column.justify = "right"
            column.no_wrap = True
        for row in self.rows:
            table.add_row(*cells(row), style="red" if row.met is False else "")
        console.print(table)
        for note in self.notes:
            console.print(f"- {note}", highlight=False, markup=False)

    def markdown(self) -> str:
        """The table for a document."""
        lines = [f"| what | value | spread | n | {self.peer} | ratio | target | met |", "| --- " + "| ---: " * 7 + "|"]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes), ""])


def row(
    what: str,
    values: Sequence[float | None],
    unit: str,
    *,
    baseline: Sequence[float | None] = (),
    target: float | None = None,
    better: Better = "higher",
) -> Row:
    """A row from repeats of ours and of the baseline's; repeats without a value do not count in `n`."""
    ours = [value for value in values if value is not None]
    theirs = [value for value in baseline if value is not None]
    value = statistics.median(ours) if ours else None
    against = statistics.median(theirs) if theirs else None
    met: bool | None = None
    if target is not None:
        met = value is not None and (value >= target if better == "higher" else value <= target)
    return Row(
        what=what,
        value=value,
        unit=unit,
        baseline=against,
        ratio=value / against if value is not None and against else None,
        target=target,
        met=met,
        spread=(min(ours), max(ours)) if ours else None,
        n=len(ours),
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def cells(row: Row) -> tuple[str, ...]:
    """A row as text: what, value, spread, n, peer, ratio, target, met."""
    low_high = f"{figure(row.spread[0])} - {figure(row.spread[1])}" if row.spread else ""
    met = {None: "", True: "yes", False: "no"}[row.met]
    value = f"{figure(row.value)} {row.unit}".rstrip() if row.value is not None else "none"
    return (row.what, value, low_high, str(row.n), figure(row.baseline), figure(row.ratio), figure(row.target), met)


def figure(value: float | None) -> str:
    """Four significant digits; integers from 1000 on; empty for None."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def command() -> str:
    """The command of this run, with only the last part of paths."""
    arguments = (Path(argument).name if os.sep in argument else argument for argument in sys.argv[1:])
    return " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).parent.name}", *arguments])


def versions() -> dict[str, str]:
    """Python, our packages, and the commit when this is a checkout."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    try:
        root = Path(__file__).parent
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        found["commit"] = done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found["commit"] = "unknown"
    return found


def machine() -> dict[str, str | int | float]:
    """The machine and its load."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": num_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1min": round(os.getloadavg()[0], 2),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
