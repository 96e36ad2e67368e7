"""Grading of answers with known truth: our rules, Math-Verify in a sandbox, and ours with Math-Verify after them.

Math-Verify runs under `--math-verify-python`, an interpreter that has `math-verify[antlr4_13_2]`; without it only our
rules are measured. Median times are of one answer, without the start of processes.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.report import Report, Row, row
from benchmarks.common.running import Result, conclude, measure, option_parser, wide_console
from benchmarks.grading.pairs import SETS, Pair, graded

MOST_SECONDS = 5.0
"""For an answer of Math-Verify's, whose process is then ended: the answer is wrong."""
STARTS_WITHIN_SECONDS = 120.0
MOST_MEDIAN_MS = 20.0
AT_LEAST = {"math_verify": 185}
"""Of the pairs of a set; of each other one all."""

Way = Callable[[Pair], tuple[bool, float]]
"""Whether an answer is right, and the seconds it took."""


@dataclass
class Plan:
    """What is measured."""

    pairs: int | None
    """Of each set at most; None for all."""
    python: Path | None


class Theirs:
    """A process with Math-Verify, started again after an answer that took long."""

    def __init__(self, python: Path) -> None:
        """Starts nothing yet."""
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self.version = ""
        self.num_ended = 0

    def __call__(self, pair: Pair) -> tuple[bool, float]:
        """What it says, and the seconds it took."""
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps([pair.reference, pair.completion]).encode() + b"\n")
        process.stdin.flush()
        found = self._line(process, MOST_SECONDS)
        if found is None:
            self.num_ended += 1
            self.close()
            return False, MOST_SECONDS
        return found[0], found[1]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        root = Path(__file__).parents[2]
        command = [str(self._python), "-m", "benchmarks.grading.theirs"]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        self._process = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        started = self._line(self._process, STARTS_WITHIN_SECONDS)
        if started is None:
            raise SystemExit(f"error: {self._python} does not run Math-Verify")
        self.version = started[0]
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> list[Any] | None:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        line = process.stdout.readline() if ready else b""
        return json.loads(line) if line else None


def ours(pair: Pair) -> tuple[bool, float]:
    """As a data set's task grades."""
    began = time.perf_counter()
    return graded(pair), time.perf_counter() - began


def measure_way(name: str, way: Way, plan: Plan) -> list[Row]:
    """For each set how many pairs are graded as they should be, and the median time of an answer."""
    rows = []
    for label, pairs in SETS.items():
        chosen = pairs[: plan.pairs]
        found = [way(pair) for pair in chosen]
        agreed = sum(right == pair.right for (right, _), pair in zip(found, chosen, strict=True))
        target = AT_LEAST.get(label, len(pairs)) if name == "ours" else None
        rows.append(row(f"{name}: {label}, right of {len(chosen)}", [agreed], "", target=target))
        wrong = sum(right and not pair.right for (right, _), pair in zip(found, chosen, strict=True))
        rows.append(row(f"{name}: {label}, wrong answers that count as right", [wrong], ""))
        median = statistics.median(seconds for _, seconds in found) * 1000
        rows.append(row(f"{name}: {label}, an answer", [median], "ms", target=MOST_MEDIAN_MS, better="lower"))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all ways."""
    names = ["ours", "math-verify", "ours, then math-verify"]
    parser = option_parser("grading", __doc__, names)
    parser.add_argument("--math-verify-python", type=Path, metavar="PYTHON", help="an interpreter with math-verify")
    options = parser.parse_args(arguments)
    report, console = Report("grading"), wide_console()
    theirs = None if options.math_verify_python is None else Theirs(options.math_verify_python)

    def both(pair: Pair) -> tuple[bool, float]:
        right, seconds = ours(pair)
        if right or theirs is None:
            return right, seconds
        also, more = theirs(pair)
        return also, seconds + more

    ways: dict[str, Way] = {"ours": ours}
    if theirs is not None:
        ways |= {"math-verify": theirs, "ours, then math-verify": both}

    def measurement(name: str) -> Callable[[Plan], Result]:
        def take(plan: Plan) -> Result:
            if name not in ways:
                return [row(f"{name}: not measured", [], "")], ["Math-Verify needs --math-verify-python"]
            ended = 0 if theirs is None else theirs.num_ended
            rows = measure_way(name, ways[name], plan)
            notes = []
            if theirs is not None and theirs.version:
                report.versions["math-verify"] = theirs.version
                notes.append(f"{name}: {theirs.num_ended - ended} processes ended after {MOST_SECONDS:g} s")
            return rows, notes

        return take

    plan = Plan(20 if options.quick else None, options.math_verify_python)
    measurements = {name: measurement(name) for name in names}
    try:
        return conclude(
            lambda: measure(measurements, options.only, plan, report, console, quick=options.quick),
            report,
            options,
            console,
        )
    finally:
        if theirs is not None:
            theirs.close()


if __name__ == "__main__":
    sys.exit(main())
