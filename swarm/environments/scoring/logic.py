"""Scores conclusions of propositional logic: one must say something that the premises do not say already.

The library rewards every formula that the premises entail: the premises themselves, and what is weaker (`P ∨ Q` alone
is right in 84% of its questions). A formula is equivalent to the conjunction of its prime implicates, its shortest
clauses. Here each of them must be one of all premises together, which excludes weaker ones; it must be no part of a
premise, or else follow from several. A conclusion must be no longer than its clauses, and shorter than the premises
that it is equivalent to.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import cast

MAX_NAMES = 6
"""Distinct variables of a conclusion; the library's own have two at most."""
MAX_CHARACTERS = 500
MAX_NESTED = 60
"""Parentheses and negations of a conclusion."""
NOT_ENTAILED = 0.05
"""The library's score of a formula that the premises do not entail."""
_TOKEN = re.compile(r"\s*([A-Z∧∨¬→↔()])")
_BY_PRECEDENCE = "↔→∨∧"
"""The weakest first; all are left-associative, as in the library."""


class Unreadable(Exception):
    """Not a formula in the question's variables."""


def propositional_logic(answer: str, entry: Mapping[str, object]) -> float:
    """Score in [0, 1] of a conclusion."""
    if len(answer) > MAX_CHARACTERS or answer.count("(") + answer.count("¬") > MAX_NESTED:
        return 0.0
    metadata = cast(Mapping[str, Sequence[str]], entry["metadata"])
    table = _Table(metadata["variables"])
    texts = metadata["premises"]
    premises = [table.read(premise) for premise in texts]
    parts = frozenset(table.parts)
    try:
        conclusion = table.read(answer)
    except Unreadable:
        return 0.0
    together = _conjunction(premises)
    if together & ~conclusion:
        return NOT_ENTAILED
    names = sorted(set(answer) & set(metadata["variables"]))
    if not together or len(names) > MAX_NAMES:  # contradictions entail anything
        return 0.0
    clauses = table.prime_implicates(conclusion, names)
    new = clauses.keys() <= table.prime_implicates(together, names).keys()
    new &= _length(answer) <= sum(clauses.values())
    new &= not _restated(answer, conclusion, dict(zip(premises, texts, strict=True)))
    for clause in clauses:
        new &= clause not in parts or all(premise & ~clause for premise in premises)
    return float(new and bool(clauses))


def _restated(answer: str, conclusion: int, premises: Mapping[int, str]) -> bool:
    """Whether an answer is equivalent to a premise, or to several, of which none is superfluous, and not shorter.

    Premises are texts by table.
    """
    said = {table: _length(text) for table, text in premises.items() if not conclusion & ~table}
    for table in sorted(said, key=said.__getitem__, reverse=True):
        others = said.keys() - {table}
        if _conjunction(others) == conclusion:
            del said[table]
    return conclusion in premises or (_conjunction(said) == conclusion and _length(answer) >= sum(said.values()))


def _conjunction(tables: Iterable[int]) -> int:
    return functools.reduce(operator.and_, tables, ~0)


def _length(formula: str) -> int:
    return sum(map(str.isalpha, formula))


class _Table:
    """Truth tables as integers, whose bit i is the value under assignment i."""

    def __init__(self, names: Sequence[str]) -> None:
        size = 2 ** len(names)
        self.everything = (1 << size) - 1
        self.parts = set[int]()
        """Tables of all parts of what was read."""
        self._of = {name: sum(1 << i for i in range(size) if i >> place & 1) for place, name in enumerate(names)}

    def read(self, formula: str) -> int:
        """The table of a formula. Raises `Unreadable`."""
        tokens = _TOKEN.findall(formula)
        if _TOKEN.sub("", formula).strip():
            raise Unreadable(formula)
        tokens.reverse()
        found = self._operation(tokens, 0)
        if tokens:
            raise Unreadable(formula)
        return found

    def prime_implicates(self, formula: int, names: Sequence[str]) -> dict[int, int]:
        """The clauses in these variables that a formula entails, but no part of them, with their lengths."""
        primes: dict[int, int] = {}
        for size in range(1, len(names) + 1):
            for chosen in combinations(names, size):
                for signs in product((0, self.everything), repeat=size):
                    clause = 0
                    for name, sign in zip(chosen, signs, strict=True):
                        clause |= self._of[name] ^ sign
                    if not formula & ~clause and all(prime & ~clause for prime in primes):
                        primes[clause] = size
        return primes

    def _operation(self, tokens: list[str], level: int) -> int:
        if level == len(_BY_PRECEDENCE):
            return self._operand(tokens)
        left = self._operation(tokens, level + 1)
        while tokens and tokens[-1] == _BY_PRECEDENCE[level]:
            symbol = tokens.pop()
            right = self._operation(tokens, level + 1)
            match symbol:
                case "↔":
                    left = self.everything ^ left ^ right
                case "→":
                    left = self.everything ^ left | right
                case "∨":
                    left |= right
                case _:
                    left &= right
            self.parts.add(left)
        return left

    def _operand(self, tokens: list[str]) -> int:
        found: int
        match tokens.pop() if tokens else "":
            case "¬":
                found = self.everything ^ self._operand(tokens)
            case "(":
                found = self._operation(tokens, 0)
                if not tokens or tokens.pop() != ")":
                    raise Unreadable("an open parenthesis")
            case name:
                if name not in self._of:
                    raise Unreadable(name)
                found = self._of[name]
        self.parts.add(found)
        return found
