"""What may reach the library's scorers that run answers as code.

Nine ReasoningGYM scorers pass the answer to `eval`, five of them through sympy's `parse_expr`. An answer here is a
stranger's text, so for those data sets only text that cannot call anything is passed on; any other scores 0. The
options of a task come from a run's founder and end up in the same expressions, or name a file.
"""

from __future__ import annotations

import re

from pydantic import JsonValue

EVALUATED_LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Scorers that try `eval(answer)`, hoping for a list."""

EVALUATED_MATHEMATICS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Scorers that call sympy's `parse_expr(answer)`, which is `eval` after a rewriting of tokens."""

_LITERAL = re.compile(r"[A-Za-z0-9_\s,.\[\]'\"-]*")  # no parenthesis, so no call; no `*`, so no giant power or list
_MATHEMATICS = re.compile(r"[A-Za-z0-9\s+\-*/^().,]*")  # no quotes, brackets, underscores
_WORD = re.compile(r"\w+")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]")
_FUNCTIONS = frozenset(
    ("exp", "log", "ln", "sqrt", "Abs", "pi", "erf", "Integral")
    + ("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh")
)
_OPTION = re.compile(r"[^()\[\]{}'\"`\\/]*|//?")  # `/` alone is an operator; within a word it would be a path


def is_safe_answer(dataset: str, answer: str) -> bool:
    """Whether the scorer of this data set may see this answer."""
    if dataset in EVALUATED_LITERALS:
        return _LITERAL.fullmatch(answer) is not None
    if dataset in EVALUATED_MATHEMATICS:
        if _MATHEMATICS.fullmatch(answer) is None or _ATTRIBUTE.search(answer) is not None:
            return False
        return all(word.isdigit() or len(word) == 1 or word in _FUNCTIONS for word in _WORD.findall(answer))
    return True


def is_safe_option(value: JsonValue) -> bool:
    """Whether an option's value is free of code and of paths."""
    if isinstance(value, str):
        return _OPTION.fullmatch(value) is not None and ".." not in value
    if isinstance(value, list):
        return all(is_safe_option(element) for element in value)
    if isinstance(value, dict):
        return all(is_safe_option(key) and is_safe_option(element) for key, element in value.items())
    return True
