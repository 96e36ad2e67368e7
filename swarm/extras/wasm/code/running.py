"""Runs a program on tests, within limits that are the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from swarm.extras.wasm.code.guest import MARK, program_text
from swarm.extras.wasm.code.tests import Test
from swarm.extras.wasm.code.values import Failed, read_value
from swarm.extras.wasm.interpreter import Interpreter, InterpreterName
from swarm.extras.wasm.wasm import Ending, Limits

_LINE_CHARS = 64
"""Characters of an outcome's line beside the value."""


_ENDED: dict[Ending, str] = {
    "exited": "it ended the interpreter, or left it no memory",
    "crashed": "it crashed the interpreter",
    "out of fuel": "out of fuel",
}


class Bounds(Struct, frozen=True):
    """What the tests of one program may take."""

    fuel_per_test: int
    fuel: int
    """Fuel of all tests together, the interpreter's starts included."""
    memory_bytes: int
    output_bytes: int
    """Most bytes of a result or what is printed, as text; a longer one is wrong."""


class Verdict(Struct, frozen=True):
    """What became of a program's tests."""

    passed: int
    of: int
    why: str
    """Why the first test is failed that is; empty if all are passed."""


class Runner:
    """An interpreter with limits."""

    def __init__(self, name: InterpreterName, bounds: Bounds) -> None:
        """Compile the interpreter. Raises `TaskError`."""
        self._name = name
        self._interpreter = Interpreter(name)
        self._bounds = bounds
        self.version = (name, self._interpreter.sha256, self._interpreter.compiler)
        """Names all that verdicts depend on, beside programs, tests and bounds."""

    def verdict(self, program: str, setup: str, tests: Sequence[Test], to_the_end: bool) -> Verdict:
        """Run a program's tests, without `to_the_end` only up to the first that fails."""
        passed, why, fuel = 0, "", self._bounds.fuel
        waiting = list(tests)
        while waiting and fuel > 0:
            outcomes, used = self._run(program, setup, waiting, fuel)
            fuel -= used
            for test, results in zip(waiting, outcomes, strict=False):
                if test.is_passed(results):
                    passed += 1
                else:
                    why = why or test.why(results)
            if why and not to_the_end:
                break
            waiting = waiting[len(outcomes) :]
        return Verdict(passed, len(tests), why or ("out of fuel" if passed < len(tests) else ""))

    def _run(self, program: str, setup: str, tests: Sequence[Test], fuel: int) -> tuple[list[tuple[object, ...]], int]:
        """The results of the first tests, of one at least, and the fuel used.

        The interpreter is started once for as many tests as it survives: one that ends it has failed.
        """
        runs = [run for test in tests for run in test.runs]
        numbered = [(number, *run) for number, run in enumerate(runs)]
        meter = _Meter(self._bounds.fuel_per_test, len(runs))
        start = min(fuel, self._interpreter.start_fuel + self._bounds.fuel_per_test)
        meter.left = fuel - start
        chars = 2 * self._bounds.output_bytes + _LINE_CHARS
        limits = Limits(start, self._bounds.memory_bytes, len(runs) * chars)
        text = program_text(self._name, program, setup, numbered, self._bounds.output_bytes)
        run = self._interpreter.run(text, self._bounds.memory_bytes // 2, limits, meter.report)
        results = [read_value(each) for each in meter.outcomes]
        if len(results) < len(runs):
            results.append(Failed(_ENDED[run.ending]))
        outcomes: list[tuple[object, ...]] = []
        for test in tests:
            here, results = results[: len(test.runs)], results[len(test.runs) :]
            if not here:
                break
            outcomes.append((*here, *(Failed("it was not reached") for _ in range(len(test.runs) - len(here)))))
        return outcomes, run.fuel


class _Meter:
    """Reads outcomes from standard error as they are written, and gives each test its fuel."""

    def __init__(self, per_test: int, num_runs: int) -> None:
        self._per_test = per_test
        self._num_runs = num_runs
        self._line = bytearray()
        self.left = 0
        """Fuel beside that of the tests begun."""
        self.outcomes: list[str] = []

    def report(self, written: bytes, fuel: int) -> int | None:
        """See `Report`."""
        self._line += written
        if b"\n" not in written:
            return None
        *lines, self._line = self._line.split(b"\n")
        before = len(self.outcomes)
        for line in lines:
            mark, _, value = line.partition(b" ")
            if mark == f"{MARK}{len(self.outcomes)}".encode() and len(self.outcomes) < self._num_runs:
                self.outcomes.append(value.decode("ascii", "replace"))
        if len(self.outcomes) == before:
            return None
        both = fuel + self.left
        now = min(self._per_test, both)
        self.left = both - now
        return now
