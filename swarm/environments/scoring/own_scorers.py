"""Our own scorers for data sets whose library scorer must not see a foreign answer.

Nine of the library's scorers evaluate the answer as code; one compares trees in time that grows with the fourth power
of their size; the others reward wrong answers. Rewards for right answers equal the library's, as does partial credit
for answers in another form. Nothing here evaluates text, and every function's time is bounded.
`benchmarks/results/scorers.md` lists the problem of each data set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from os.path import commonprefix

from pydantic import JsonValue

from swarm.environments.scoring.antiderivatives import is_antiderivative
from swarm.environments.scoring.bounded_json import read_json
from swarm.environments.scoring.expressions import Number, Rationals, Unreadable, evaluate, parse
from swarm.environments.scoring.polynomials import WrittenOut

Entry = Mapping[str, object]
"""The library's item: `question`, `answer`, `metadata`."""

COIN_TOLERANCE = Fraction(1, 10_000)

_DECIMAL = r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"
_PROBABILITY = re.compile(rf"{_DECIMAL}(?:[eE][+-]?[0-9]{{1,2}})?|[+-]?[0-9]{{1,40}}/[0-9]{{1,40}}")


def binary_matrix(answer: str, entry: Entry) -> float:
    """Rows of numbers."""
    return _rows(answer, (_oracle(entry),), 0.1)


def n_queens(answer: str, entry: Entry) -> float:
    """Rows of squares; any placement that solves the board."""
    solutions = _metadata(entry)["valid_answers"]
    assert isinstance(solutions, Collection)
    return _rows(answer, solutions, 0.5)


def spiral_matrix(answer: str, entry: Entry) -> float:
    """Numbers separated by spaces."""
    answer, oracle = answer.strip(), _oracle(entry).strip()
    if answer == oracle:
        return 1.0
    numbers = _list(answer)
    return 0.1 if numbers is not None and " ".join(map(str, numbers)) == oracle else 0.0


def string_insertion(answer: str, entry: Entry) -> float:
    """One word."""
    if answer == _oracle(entry):
        return 1.0
    letters = _list(answer)
    return 0.1 if letters is not None and "".join(map(str, letters)) == _oracle(entry) else 0.0


def countdown(answer: str, entry: Entry) -> float:
    """An expression that uses each number once and has the target as its value."""
    return _arithmetic(answer, _metadata(entry)["numbers"], _metadata(entry)["target"], 0.05)


def puzzle24(answer: str, entry: Entry) -> float:
    """An expression of the four numbers whose value is 24."""
    return _arithmetic(answer, _metadata(entry)["numbers"], 24, 0.01)


def polynomial_multiplication(answer: str, entry: Entry) -> float:
    """The expanded product."""
    answer, oracle = answer.strip(), _oracle(entry)
    if answer == oracle:
        return 1.0
    try:
        return float(evaluate(parse(answer), WrittenOut()) == evaluate(parse(oracle), WrittenOut()))
    except (Unreadable, ZeroDivisionError):
        return 0.0


def integration(answer: str, entry: Entry) -> float:
    """An antiderivative, up to a constant."""
    answer = answer.strip()
    if answer == _oracle(entry):
        return 1.0
    metadata = _metadata(entry)
    try:
        steps, integrand = parse(answer), parse(str(metadata["integrand"]))
    except Unreadable:
        return 0.0
    return float(is_antiderivative(steps, integrand, str(metadata["variable"]), answer))


def coin_flip(answer: str, entry: Entry) -> float:
    """A probability as a decimal or a fraction, within 1e-4; else the fraction of its correct digits."""
    given, wanted = (text.replace(",", "").strip() for text in (answer, _oracle(entry)))
    if _PROBABILITY.fullmatch(given) is None:
        return 0.0
    try:
        value, oracle = Fraction(given), Fraction(wanted)
    except ZeroDivisionError:
        return 0.0
    if abs(value - oracle) <= COIN_TOLERANCE:
        return 1.0
    digits, oracle_digits = f"{float(value):.10g}", f"{float(oracle):.10g}"
    return len(commonprefix([digits, oracle_digits])) / max(len(digits), len(oracle_digits))


def codeio(answer: str, entry: Entry) -> float:
    """The requested JSON object; surrounding text lowers the reward."""
    answer, oracle = answer.strip(), _oracle(entry).strip()
    if answer == oracle:
        return 1.0
    start, end = answer.find("{"), answer.rfind("}") + 1
    value = read_json(answer[start:end], max_string=len(answer)) if 0 <= start < end else None
    if value is None or value != json.loads(oracle):
        return 0.0
    num_extra = len(answer) - (end - start)
    return max(len(oracle) / (len(oracle) + 0.5 * num_extra), 0.2)


def game_of_life_halting(answer: str, entry: Entry) -> float:
    """True or False."""
    return float(answer.strip().casefold() == _oracle(entry).casefold())


OWN_SCORERS: dict[str, Callable[[str, Entry], float]] = {
    "binary_matrix": binary_matrix,
    "codeio": codeio,
    "coin_flip": coin_flip,
    "countdown": countdown,
    "game_of_life_halting": game_of_life_halting,
    "intermediate_integration": integration,
    "n_queens": n_queens,
    "polynomial_multiplication": polynomial_multiplication,
    "puzzle24": puzzle24,
    "simple_integration": integration,
    "spiral_matrix": spiral_matrix,
    "string_insertion": string_insertion,
}
"""Scorers by the library's name of the data set."""


def _oracle(entry: Entry) -> str:
    return str(entry["answer"])


def _metadata(entry: Entry) -> Mapping[str, object]:
    metadata = entry["metadata"]
    assert isinstance(metadata, Mapping)
    return metadata


def _list(answer: str) -> list[JsonValue] | None:
    """A list of numbers and words, or of such lists, in Python's notation or JSON's; None for anything else."""
    value = read_json(answer.replace("'", '"'))
    return value if isinstance(value, list) else None


def _rows(answer: str, accepted: Collection[str], partial: float) -> float:
    """1 for one of the texts accepted, `partial` for a list of lists that makes one of them."""
    if answer in accepted:
        return 1.0
    rows = [row for row in _list(answer) or [] if isinstance(row, list)]
    return partial if "\n".join(" ".join(map(str, row)) for row in rows) in accepted else 0.0


def _arithmetic(answer: str, numbers: object, target: object, credit: float) -> float:
    """1 for an expression that uses each of `numbers` once and gives the target; `credit` if it can be read."""
    assert isinstance(numbers, list) and isinstance(target, int)
    try:
        steps = parse(answer.strip())
        if sorted(step.value for step in steps if isinstance(step, Number)) != sorted(numbers):
            return credit
        return 1.0 if evaluate(steps, Rationals()) == target else credit
    except (Unreadable, ZeroDivisionError):
        return 0.01
