"""Filters foreign answers before the library's scorers see them, for every data set; also checks a founder's options.

An answer is text from outside. A scorer of the library sees it only if a review of its source has shown that it cannot
evaluate the text, and only in a form that is cheap and judged correctly: bounded length, finite numbers, no large
repetition counts. `benchmarks/results/scorers.md` holds the results of the review,
`tests/environments/scorers_read.json` a digest of each reviewed source. Data sets that are not listed here are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum

from pydantic import JsonValue

MAX_CHARACTERS = 2**16
MAX_DEPTH = 16
MAX_STRING = 200
"""Characters of one text in it: some scorers take quadratic time."""

_LONG_NUMBER = re.compile(r"[0-9]{400}")
MAX_ANSWER = 4096
"""Characters of an answer, in addition to twice those of the library's own."""
MAX_MOVES = 1000
MAX_NUMBER = 1e12
"""Largest option value; a worker's limits end whatever is still too large or too slow."""
MAX_WORD = 64
MAX_ELEMENTS = 256
MAX_OPTION_DEPTH = 3
_SEPARATORS = re.compile(r"[\s,_]")  # some scorers remove these from numbers
_EXPONENT = re.compile(r"[\d.]e[-+]?\d{3}")
_TWO_DIGITS = re.compile(r"\d\d")
_ASSIGNED = re.compile(r"\b(?!(?:is|an?|and)\b)\w+", re.IGNORECASE)
"""Names and roles in an answer of `knights_knaves`."""
_OPTION = re.compile(r"[^()\[\]{}'\"`\\/]*|//?")  # `/` alone is an operator; within a word it is a path


def read_json(text: str, max_string: int = MAX_STRING) -> JsonValue:
    """The parsed value; None for text that is not JSON, exceeds the bounds, or has a non-finite number."""
    if len(text) > MAX_CHARACTERS or _LONG_NUMBER.search(text) is not None:
        return None
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if _is_sane(value, MAX_DEPTH, max_string) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"not a number: {constant}")


def _is_sane(value: JsonValue, depth: int, max_string: int) -> bool:
    match value:
        case str():
            return len(value) <= max_string
        case float():
            return math.isfinite(value)
        case list():
            return depth > 0 and all(_is_sane(element, depth - 1, max_string) for element in value)
        case dict():
            return depth > 0 and all(
                len(key) <= max_string and _is_sane(element, depth - 1, max_string) for key, element in value.items()
            )
    return True


class Reach(StrEnum):
    """Use of an answer by its scorer, which determines the filter."""

    COMPARED = "compared"
    """The scorer splits and compares it, or each part is one step of a simulation: passed on up to a length."""
    NUMBERS = "numbers"
    """It becomes a float, a Decimal or a complex number: passed on if no number is infinite, NaN or has a huge
    exponent."""
    JSON = "json"
    """It is JSON: parsed here within bounds, then serialized again and passed on."""
    JSON_NUMBERS = "json of numbers"
    """`JSON` in which texts become numbers."""
    MOVES = "moves"
    """Digits in it repeat a move: passed on if below ten, up to a length."""
    OWN = "own"
    """The library's scorer must not see it: scored by `scorers.py`."""


def admitted(dataset: str, answer: str, oracle: str) -> str | None:
    """The text that a data set's scorer may see for an answer; None when the answer is wrong in any case."""
    if len(answer) > MAX_ANSWER + 2 * len(oracle) or _is_mistaken_for_right(dataset, answer, oracle):
        return None
    match REACH[dataset]:
        case Reach.COMPARED | Reach.OWN:
            return answer
        case Reach.NUMBERS:
            return answer if _has_sane_numbers(answer) else None
        case Reach.JSON:
            if dataset == "knight_swap" and answer.strip().casefold() == "no":
                return answer
            return _same_json(answer)
        case Reach.JSON_NUMBERS:
            return _same_json(answer.replace("'", '"')) if _has_sane_numbers(answer) else None
        case Reach.MOVES:
            return answer if len(answer) <= MAX_MOVES and _TWO_DIGITS.search(answer) is None else None


def _is_mistaken_for_right(dataset: str, answer: str, oracle: str) -> bool:
    """Whether the scorer would reward a wrong answer because of a peculiar reference answer."""
    if dataset == "calendar_arithmetic" and oracle.startswith("-"):
        return answer.strip() != oracle  # the error is relative to the oracle: a negative oracle raises the score
    if dataset == "knights_knaves":
        # A sentence of the question has the right pairs in it, too: "if Zoey is a sage then Riley is a sinner".
        return len(_ASSIGNED.findall(answer)) != len(_ASSIGNED.findall(oracle))
    if dataset == "polynomial_equations" and not oracle:
        return answer.strip("\"' ") != ""  # no solution; the scorer treats any non-number as none
    return False


def _has_sane_numbers(answer: str) -> bool:
    squeezed = _SEPARATORS.sub("", answer).casefold()
    return "nan" not in squeezed and "inf" not in squeezed and _EXPONENT.search(squeezed) is None


def _same_json(answer: str) -> str | None:
    value = read_json(answer)
    return None if value is None else json.dumps(value)


def is_safe_option(value: JsonValue, depth: int = MAX_OPTION_DEPTH) -> bool:
    """Whether an option's value is small and contains neither code nor paths."""
    match value:
        case str():
            return len(value) <= MAX_WORD and ".." not in value and "__" not in value and _is_plain(value)
        case int() | float():
            return math.isfinite(value) and abs(value) <= MAX_NUMBER
        case list():
            return _is_short(value, depth) and all(is_safe_option(element, depth - 1) for element in value)
        case dict():
            return _is_short(value, depth) and all(
                is_safe_option(key) and is_safe_option(element, depth - 1) for key, element in value.items()
            )
    return True


def _is_plain(word: str) -> bool:
    return word.isprintable() and _OPTION.fullmatch(word) is not None


def _is_short(value: list[JsonValue] | dict[str, JsonValue], depth: int) -> bool:
    return depth > 0 and len(value) <= MAX_ELEMENTS


def _reach() -> Mapping[str, Reach]:
    compared = """
        ab acre aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation bitwise_arithmetic
        caesar_cipher calendar_arithmetic circuit_logic color_cube_rotation count_bits count_primes course_schedule
        cryptarithm dice emoji_mystery family_relationships figlet_font fraction_simplification futoshiki gcd
        gsm_symbolic isomorphic_strings kakurasu knights_knaves largest_island lcm leg_counting letter_counting
        letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid needle_haystack
        number_filtering number_sequence palindrome_generation path_star prime_factorization quantum_lock ransom_note
        rearc rectangle_count rotate_matrix rotten_oranges self_reference sentence_reordering shortest_path
        simple_equations simple_geometry sokoban spell_backward string_manipulation string_splitting string_synthesis
        sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting
        zebra_puzzles"""
    numbers = """
        advanced_geometry chain_sum complex_arithmetic decimal_arithmetic decimal_chain_sum number_format
        polynomial_equations pool_matrix power_function products"""
    by_reach = {
        Reach.COMPARED: compared,
        Reach.NUMBERS: numbers,
        Reach.JSON: "boxnet game_of_life graph_color group_anagrams jugs knight_swap palindrome_partitioning",
        Reach.JSON_NUMBERS: "number_sorting",
        Reach.MOVES: "rubiks_cube rush_hour",
        Reach.OWN: """
            binary_matrix codeio coin_flip countdown game_of_life_halting intermediate_integration n_queens
            polynomial_multiplication propositional_logic puzzle24 simple_integration spiral_matrix string_insertion""",
    }
    return {name: reach for reach, names in by_reach.items() for name in names.split()}


REACH = _reach()
"""Every data set that a task may use."""
