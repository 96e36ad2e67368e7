"""Gradings that must be the same on every machine, as a digest for each hundred:

    python -m tests.extras.wasm.repeated 0 25000 > here.txt

Each is one of the problems' programs, right, wrong or crashing, on tests whose numbers are drawn. Its digest has the
verdict, and of each run all that was written, how it ended, and the fuel that it took.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import ClassVar

from swarm.extras.wasm import interpreter
from swarm.extras.wasm.code.evaluating import Unreadable
from swarm.extras.wasm.code.running import Bounds, Runner
from swarm.extras.wasm.code.tests import Test, read_tests
from swarm.extras.wasm.wasm import Limits, Program, Report, Run
from tests.extras.wasm.programs import PROBLEMS

BATCH = 100
BOUNDS = Bounds(fuel_per_test=2 * 10**7, fuel=10**8, memory_bytes=2**25, output_bytes=2**14)


class Watched(Program):
    """Keeps what became of its runs."""

    seen: ClassVar[list[tuple[bytes, str, int]]] = []

    def run(self, arguments: Sequence[bytes], limits: Limits, report: Report | None = None) -> Run:
        """See `Program`."""
        found = super().run(arguments, limits, report)
        self.seen.append((found.output, found.ending, found.fuel))
        return found


def grading(number: int) -> tuple[str, Sequence[Test]]:
    """A program and its tests, half of them with other numbers than the problem's."""
    draw = random.Random(number)
    problem = PROBLEMS[number % len(PROBLEMS)]
    crashing = f"{problem.right}\n\nraise ValueError({number})\n"
    code = (problem.right, problem.wrong, crashing, problem.right)[number // len(PROBLEMS) % 4]

    def drawn(text: str) -> str:
        return re.sub(
            r"(?<![\w.])\d+(?![\w.])", lambda each: str(draw.choice((int(each[0]), draw.randrange(40)))), text
        )

    if draw.random() < 0.5:
        return code, read_tests(list(problem.tests), None)
    while True:
        with suppress(Unreadable):
            return code, read_tests([drawn(each) for each in problem.tests], None)


def main(first: int, last: int) -> None:
    """Print the digests, and how many programs pass."""
    interpreter.Program = Watched  # type: ignore[misc]
    runner, passed = Runner("micropython", BOUNDS), 0
    for start in range(first, last, BATCH):
        digest = blake2b(digest_size=16)
        for number in range(start, min(start + BATCH, last)):
            code, tests = grading(number)
            verdict = runner.verdict(code, "", tests, to_the_end=True)
            passed += verdict.passed == verdict.of
            digest.update(repr((number, verdict, Watched.seen)).encode())
            Watched.seen.clear()
        print(start, digest.hexdigest(), flush=True)
    print(f"{passed} of {last - first} programs pass their tests", file=sys.stderr)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
