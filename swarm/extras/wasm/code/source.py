"""The source of questions with tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from msgspec import Struct

from swarm.environments.answering import MAX_PROMPT_CHARS, FindSettings
from swarm.environments.config import Failures, StoredRows
from swarm.environments.digests import digest
from swarm.environments.scoring.finding import Find, finder
from swarm.environments.sources.columns import Column, MalformedRow, Row, Template, as_plain
from swarm.environments.sources.hf_datasets import RowsSource
from swarm.environments.sources.lru import LruCache
from swarm.environments.sources.procedural import last_text, with_last_text
from swarm.extras.wasm.code.evaluating import Unreadable
from swarm.extras.wasm.code.running import Bounds, Runner, Verdict
from swarm.extras.wasm.code.task import CodeTask
from swarm.extras.wasm.code.tests import Test, read_tests
from swarm.types import Prompt, TaskRef, as_text

MAX_PROGRAM_CHARS = 2**15
MAX_GIVEN_CHARS = 2**19
"""Most characters of all calls and inputs of a question that are run, together."""
NUM_ROWS, NUM_VERDICTS = 64, 512
"""Rows that are kept with their tests, and verdicts: an answer is graded, then explained."""

_TESTS = (
    *("test_list", "test", "reward_model.ground_truth", "verification_info", "input_output", "test_cases"),
    *("public_test_cases", "tests"),
)
_FUNCTION = ("entry_point", "fn_name")
_SETUP = ("test_setup_code", "test_imports")
_FENCE = re.compile(r"^[ \t]*(`{3,}+|~{3,}+)[^\n`]*+\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


class Item(Struct, frozen=True):
    """A question with its tests."""

    prompt: Prompt
    tests: tuple[Test, ...]
    setup: str
    before: str


class ItemReader:
    """Makes items of a task's rows."""

    def __init__(self, config: CodeTask, columns: Collection[str]) -> None:
        """`columns` are the data set's. Raises `ValueError` for an unknown column, and without one for the tests."""
        self._config = config
        self._prompt = Template(config.prompt, columns)
        tests = config.tests or _first(_TESTS, columns)
        if tests is None:
            raise ValueError(f"`tests` must name the column with the tests; the columns are {', '.join(columns)}")
        function = config.function or _first(_FUNCTION, columns)
        setup = config.setup or _first(_SETUP, columns)
        is_humaneval = tests == "test" and function == "entry_point" and "prompt" in columns
        before = config.before or ("prompt" if is_humaneval else None)
        self._tests = Template(tests, columns)
        self._function, self._setup, self._before = (
            None if each is None else Template(each, columns) for each in (function, setup, before)
        )
        templates = (self._prompt, self._tests, self._function, self._setup, self._before)
        self.columns: list[Column] = [column for each in templates if each is not None for column in each.columns]
        self.with_media: set[str] = set()

    def read(self, values: Row, row: int) -> Item:
        """The item of row number `row`. Raises `MalformedRow`."""
        prompt = self._prompt.prompt(values)
        if not last_text(prompt).strip():
            raise MalformedRow("empty prompt")
        asked = with_last_text(prompt, self._config.asked)
        if (num_chars := len(as_text(asked))) > MAX_PROMPT_CHARS:
            raise MalformedRow(f"a question of {num_chars} characters, more than {MAX_PROMPT_CHARS}")
        function = _text(self._function, values) or None
        try:
            tests = read_tests(self._tests.value(values), function)
        except Unreadable as error:
            raise MalformedRow(str(error)) from error
        return Item(
            asked, _within(tests, self._config.max_tests), _text(self._setup, values), _text(self._before, values)
        )


class CodeSource(RowsSource[Item]):
    """Implements `TaskSource` for questions whose answers are programs."""

    def __init__(self, config: CodeTask, *, counts: Failures | None = None, stored: StoredRows | None = None) -> None:
        """Open the data set and compile the interpreter. Raises `TaskError`."""
        super().__init__(
            config, lambda columns: ItemReader(config, columns), keep=NUM_ROWS, counts=counts, stored=stored
        )
        bounds = Bounds(config.fuel_per_test, config.fuel, config.memory_bytes, config.output_bytes)
        self._partial = config.partial
        self._find = _finder(config)
        self._runner = Runner(config.interpreter, bounds)
        self._options_digest = digest(self._options_digest, *self._runner.version)
        self._verdicts: LruCache[tuple[TaskRef, str], Verdict] = LruCache(NUM_VERDICTS)

    def score(self, ref: TaskRef, completion: str) -> float:
        """The share of tests that the program in a completion passes; without `partial`, 1 for all of them."""
        verdict = self._verdict(ref, completion)
        if verdict is None:
            return 0.0
        return verdict.passed / verdict.of if self._partial else float(verdict.passed == verdict.of)

    def solution(self, ref: TaskRef) -> str:
        """The tests. See `Answered`."""
        return "; ".join(test.text for test in self._recall(ref).tests)

    def found(self, ref: TaskRef, completion: str) -> str | None:
        """How many tests the program passes, and why not the others. See `Answered`."""
        verdict = self._verdict(ref, completion)
        if verdict is None:
            return None
        passed = f"a program that passes {verdict.passed} of {verdict.of} tests"
        return f"{passed}: {verdict.why}" if verdict.why else passed

    def _verdict(self, ref: TaskRef, completion: str) -> Verdict | None:
        """None where there is no program."""
        item = self._recall(ref)
        program = self._find(completion)
        if program is None or not program.strip():
            return None
        if len(program) > MAX_PROGRAM_CHARS:
            return Verdict(0, len(item.tests), f"it has more than {MAX_PROGRAM_CHARS} characters")
        verdict = self._verdicts.get((ref, program))
        if verdict is None:
            whole = f"{item.before.rstrip()}\n{program}" if item.before else program
            verdict = self._runner.verdict(whole, item.setup, item.tests, self._partial)
            self._verdicts.put((ref, program), verdict)
        return verdict


def program_in(answer: str) -> str:
    """The last block of code in an answer, be it closed or not; without a block, the whole answer."""
    blocks = [found for found in _FENCE.finditer(answer)]
    return blocks[-1][2] if blocks else answer.strip("\n")


def _finder(config: FindSettings) -> Find:
    if config.find is None:
        return program_in
    find: Callable[[str], str | None] = finder(config)

    def found(answer: str) -> str | None:
        place = find(answer)
        return None if place is None else program_in(place)

    return found


def _first(paths: Collection[str], columns: Collection[str]) -> str | None:
    return next((path for path in paths if path.partition(".")[0] in columns), None)


def _text(template: Template | None, values: Row) -> str:
    """The text of a column, or the lines of a list; empty for none."""
    value = None if template is None else template.value(values)
    if value is None:
        return ""
    return "\n".join(as_plain(each, "code") for each in value) if isinstance(value, list) else as_plain(value, "code")


def _within(tests: tuple[Test, ...], max_tests: int) -> tuple[Test, ...]:
    """The first tests, whose inputs and calls are not too long together. Raises `MalformedRow`."""
    room = MAX_GIVEN_CHARS
    kept = []
    for test in tests[:max_tests]:
        room -= sum(len(call) + len(given or "") for given, call in test.runs)
        if room < 0:
            break
        kept.append(test)
    if not kept:
        raise MalformedRow(f"its first test has more than {MAX_GIVEN_CHARS} characters")
    return tuple(kept)
