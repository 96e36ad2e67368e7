"""Where the processor time of a demo goes: network, checks of others' and own groups, and everything else.

    python -m benchmarks.demo [--quick] [--out FILE] [--peers K] [--rounds N] [--repeats N] [--against CHECKOUT]

With --against, demos of another checkout of this repository are measured in turn with this one's: the baseline.
Only on Linux, which counts the time of each thread.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.children import ROOT, ChildFailed
from benchmarks.common.report import Report, Row, row
from benchmarks.common.running import at_least_one, conclude, option_parser, scratch, wide_console
from benchmarks.demo.processor_time import NETWORK_AND_CHECKS, processor_time, with_named_threads
from swarm.errors import ConfigError

SUM = "network and checks"
WALL = "wall time"
STOP_TIMEOUT_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 130 when interrupted."""
    parser = option_parser("demo", __doc__, ())
    parser.add_argument("--peers", type=at_least_one, default=4)
    parser.add_argument("--rounds", type=at_least_one, default=30)
    parser.add_argument("--repeats", type=at_least_one, default=3)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, as the baseline")
    options = parser.parse_args(arguments)
    rounds, repeats = (2, 1) if options.quick else (options.rounds, options.repeats)
    report = Report("demo", peer="other checkout")
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []

    def take() -> int:
        if sys.platform != "linux":
            raise ConfigError("only Linux counts the processor time of each thread")
        checkouts = [(ROOT, ours)] + ([(options.against.resolve(), theirs)] if options.against else [])
        try:
            for repeat in range(repeats):
                for checkout, found in checkouts:
                    found.append(_measure(checkout, options.peers, rounds, seed=repeat))
        finally:
            report.add(_rows(ours, theirs), [f"{options.peers} peers, {rounds} rounds; the start of all is included."])
        return 0

    return conclude(take, report, options, wide_console())


def _measure(checkout: Path, peers: int, rounds: int, seed: int) -> dict[str, float]:
    """Seconds by purpose of one demo. Raises `ChildFailed`."""
    with scratch() as name:
        folder = Path(name)
        told = ["--peers", str(peers), "--rounds", str(rounds), "--seed", str(seed), "--out", str(folder / "demo")]
        command = [sys.executable, "-m", "swarm", "demo", "--start", "dense", "--no-control", "--no-ui", *told]
        began = time.monotonic()
        with (folder / "log").open("wb") as log:
            demo = subprocess.Popen(
                command,
                cwd=checkout,
                env=with_named_threads(folder, checkout),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            found = processor_time(demo)
        finally:
            demo.terminate()  # it stops its nodes
            demo.wait(STOP_TIMEOUT_S)
        if demo.returncode:
            raise ChildFailed(f"the demo of {checkout.name} failed: {(folder / 'log').read_text()[-500:]}")
        return {SUM: sum(map(found.__getitem__, NETWORK_AND_CHECKS)), **found, WALL: time.monotonic() - began}


def _rows(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> list[Row]:
    names = ours[0] if ours else {}
    return [row(name, [each[name] for each in ours], "s", baseline=[each[name] for each in theirs]) for name in names]


if __name__ == "__main__":
    sys.exit(main())
