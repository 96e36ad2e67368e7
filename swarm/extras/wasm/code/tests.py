"""The tests of a question, in the layouts that data sets have.

| layout | rows |
| --- | --- |
| assertions | texts of Python: MBPP's `test_list`, HumanEval's `test` with `check(candidate)` |
| inputs and outputs | `{"inputs": [...], "outputs": [...], "fn_name": ...}`: APPS, verl's `reward_model.ground_truth` |
| cases | `[{"input", "output", "type" or "testtype", "fn_name"}]`: prime-rl's `verification_info`, LiveCodeBench |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import cast

from msgspec import Struct

from swarm.extras.wasm.code.conditions import Assertion, read_assertions
from swarm.extras.wasm.code.evaluating import Unreadable, literal, same
from swarm.extras.wasm.code.values import Failed, Iterated, Opaque

MAX_TEXT_CHARS = 2**22
"""Longest text of a row's tests."""
MAX_SHOWN_CHARS = 80
_NAME = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?", re.ASCII)
_FUNCTIONS = frozenset({"function_call", "functional", "function"})
_INPUTS = frozenset({"stdin_stdout", "stdin", "stdio"})


class Asserted(Struct, frozen=True):
    """An assertion about calls."""

    assertion: Assertion

    @property
    def runs(self) -> tuple[tuple[str | None, str], ...]:
        """(standard input, call) of each result."""
        return tuple((None, call) for call in self.assertion.calls)

    def is_passed(self, results: Sequence[object]) -> bool:
        """Whether these results pass, one of each run."""
        return self.assertion.holds(results)

    @property
    def text(self) -> str:
        """For people."""
        return self.assertion.text

    def why(self, results: Sequence[object]) -> str:
        """Why these results do not pass, for people."""
        came = "; ".join(
            f"{_cut(call)} {_came(result)}" for call, result in zip(self.assertion.calls, results, strict=True)
        )
        try:
            return f"{came}, expected {_cut(repr(self.assertion.expected))}"
        except Unreadable:
            return f"{came}, so not {_cut(self.assertion.text)}"


class Called(Struct, frozen=True):
    """A call with its result, as JSON has both: it knows no tuples, and no keys but texts."""

    call: str
    expected: object

    @property
    def runs(self) -> tuple[tuple[str | None, str], ...]:
        """See `Asserted`."""
        return ((None, self.call),)

    def is_passed(self, results: Sequence[object]) -> bool:
        """See `Asserted`. A list of one item may stand for the item, as in APPS."""
        found = _as_json(results[0])
        wrapped = isinstance(self.expected, list) and len(self.expected) == 1
        return same(found, self.expected) or (wrapped and same(found, cast(list[object], self.expected)[0]))

    @property
    def text(self) -> str:
        """See `Asserted`."""
        return f"{self.call} == {self.expected!r}"

    def why(self, results: Sequence[object]) -> str:
        """See `Asserted`."""
        return f"{_cut(self.call)} {_came(results[0])}, expected {_cut(repr(self.expected))}"


class Printed(Struct, frozen=True):
    """What a program prints for a standard input."""

    given: str
    expected: str

    @property
    def runs(self) -> tuple[tuple[str | None, str], ...]:
        """See `Asserted`."""
        return ((self.given, ""),)

    def is_passed(self, results: Sequence[object]) -> bool:
        """See `Asserted`: the same lines, but for white space at their ends, and numbers as they are equal."""
        (found,) = results
        return isinstance(found, str) and _same_text(found, self.expected)

    @property
    def text(self) -> str:
        """See `Asserted`."""
        return f"{self.given!r} -> {self.expected!r}"

    def why(self, results: Sequence[object]) -> str:
        """See `Asserted`."""
        (found,) = results
        came = _came(found) if isinstance(found, Failed) else f"is answered with {_cut(repr(found))}"
        return f"the input {_cut(repr(self.given))} {came}, expected {_cut(repr(self.expected))}"


Test = Asserted | Called | Printed


def read_tests(value: object, function: str | None) -> tuple[Test, ...]:
    """The tests in a column's value; `function` is the one under test, if another column says so.

    Raises `Unreadable`.
    """
    if isinstance(value, str):
        if len(value) > MAX_TEXT_CHARS:
            raise Unreadable(f"its tests have {len(value)} characters, more than {MAX_TEXT_CHARS}")
        text = value.strip()
        if not text.startswith(("{", "[")):
            return _asserted(value, function)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"its tests are no JSON: {error}") from error
    if isinstance(value, Mapping):
        return _of_mapping(value, function)
    if value is None or value == []:
        raise Unreadable("it has no tests")
    if not isinstance(value, list):
        raise Unreadable(f"its tests must be a text, a list or a mapping, got {type(value).__name__}")
    if all(isinstance(each, str) for each in value):
        return _asserted("\n".join(value), function)
    if all(isinstance(each, Mapping) for each in value):
        return tuple(_case(each, function) for each in value)
    raise Unreadable("its tests must be texts, or mappings with `input` and `output`")


def _asserted(code: str, function: str | None) -> tuple[Test, ...]:
    return tuple(map(Asserted, read_assertions(code, function)))


def _of_mapping(value: Mapping[str, object], function: str | None) -> tuple[Test, ...]:
    if (language := value.get("language")) not in (None, "python", "python3"):
        raise Unreadable(f"its programs are in {str(language)[:40]!r}, not in Python")
    function = _function(value.get("fn_name"), function)
    for name in ("test_cases", "tests"):
        if name in value:
            return read_tests(value[name], function)
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not (isinstance(inputs, list) and isinstance(outputs, list)):
        raise Unreadable(
            f"its tests must have `inputs` and `outputs` or `test_cases`, got {', '.join(map(str, value))[:80]}"
        )
    if not inputs or len(inputs) != len(outputs):
        raise Unreadable(f"its tests have {len(inputs)} inputs and {len(outputs)} outputs")
    return tuple(_pair(*pair, function) for pair in zip(inputs, outputs, strict=True))


def _case(case: Mapping[str, object], function: str | None) -> Test:
    if not {"input", "output"} <= case.keys():
        raise Unreadable(f"a test must have `input` and `output`, got {', '.join(map(str, case))[:80]}")
    kind = case.get("type") or case.get("testtype")
    metadata = case.get("metadata")
    named = case.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None)
    function = _function(named, function)
    if kind in _FUNCTIONS and function is None:
        raise Unreadable("a test of a function does not say which; `function` names the column that does")
    if not (kind is None or kind in _FUNCTIONS | _INPUTS):
        raise Unreadable(f"a test is of the type {str(kind)[:40]!r}, must be stdin_stdout or function_call")
    return _pair(case["input"], case["output"], None if kind in _INPUTS else function)


def _function(name: object, other: str | None) -> str | None:
    if name in (None, ""):
        return other
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Unreadable(f"the function under test must be a name, got {str(name)[:40]!r}")
    return name


def _pair(given: object, expected: object, function: str | None) -> Test:
    if function is None:
        return Printed(_lines(given), _lines(expected))
    if isinstance(given, str):  # each line an argument, as LiveCodeBench has it
        given = [_json(line) for line in given.splitlines() if line.strip()]
        expected = _json(expected) if isinstance(expected, str) else expected
    if not isinstance(given, list):
        raise Unreadable(f"the input of a function must be a list of arguments, got {type(given).__name__}")
    arguments = ", ".join(map(literal, given))
    return Called(
        f"(Solution().{function} if 'Solution' in globals() else {function})({arguments})", _as_json(expected)
    )


def _lines(value: object) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise Unreadable(f"standard input and output must be text, got {type(value).__name__}")
    return value


def _json(text: str) -> object:
    try:
        value: object = json.loads(text)
        return value
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{text[:80]!r} is no JSON") from error


def _as_json(value: object) -> object:
    """A value with tuples as lists and keys as texts."""
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _as_json(each) for key, each in value.items()}
    return value


def _same_text(found: str, expected: str) -> bool:
    pairs = zip_longest(_stripped(found), _stripped(expected))
    return all(here is not None and there is not None and _same_line(here, there) for here, there in pairs)


def _stripped(text: str) -> list[str]:
    """The lines without white space at their ends and empty ones at the text's."""
    return [line.strip() for line in text.strip().splitlines()]


def _same_line(found: str, expected: str) -> bool:
    if found == expected:
        return True
    here, there = found.split(), expected.split()
    return len(here) == len(there) and all(map(_same_word, here, there))


def _same_word(found: str, expected: str) -> bool:
    if found == expected:
        return True
    if not (_NUMBER.fullmatch(found) and _NUMBER.fullmatch(expected)):
        return False
    return same(_number(found), _number(expected))


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _came(result: object) -> str:
    if isinstance(result, Failed):
        return f"failed: {_cut(result.reason)}"
    if isinstance(result, Opaque):
        return f"gave an object of {_cut(result.name)}"
    if isinstance(result, Iterated):
        return f"gave an iterator of {_cut(repr(result.items))}"
    return f"gave {_cut(repr(result))}"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
