"""Assertions of a data set, taken apart: calls for the interpreter, and a condition on what they return for here.

    assert sorted(pairs([3, 1])) == [(1, 3)]     call pairs([3, 1]); here: sorted(RESULT) == [(1, 3)]

Conditions are the row's, results are the program's and hostile: both are bounded, and nothing is evaluated but the few
operations of `evaluating.py`. An assertion that would let the program decide about itself is refused: one that compares
two calls, or whose call is not one of the function under test.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

from msgspec import Struct

from swarm.extras.wasm.code.evaluating import (
    FUNCTIONS,
    KNOWN_NAMES,
    MAX_ITEMS,
    NAMES,
    Unreadable,
    dotted,
    evaluated,
    items_of,
    literal,
    plain,
    shown,
    size_of,
)

MAX_CODE_CHARS = 2**20
MAX_CALLS = 8
"""Calls in one assertion."""
MAX_PARTS = 2**17
"""Most expressions that are read of one row, repetitions of loops and the items of names included."""
MAX_STEPS = 4_096
"""Statements that are read of one row, repetitions of loops included."""


class Assertion(Struct, frozen=True):
    """A condition on the results of calls."""

    text: str
    """The row's own text."""
    calls: tuple[str, ...]
    """Expressions for the interpreter."""
    condition: ast.expr
    """With the names `result0`, `result1`, ... for what they return."""
    known: Mapping[str, object]
    """Values of its other names."""

    def holds(self, results: Sequence[object]) -> bool:
        """Whether it does for these results, one for each call. Never raises: what fails does not hold."""
        names = {**self.known, **{f"result{number}": result for number, result in enumerate(results)}}
        try:
            return bool(plain(evaluated(self.condition, names)))
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError):
            return False

    @property
    def expected(self) -> object:
        """What the only call must return; raises `Unreadable` if that is not said plainly."""
        match self.condition:
            case ast.Compare(left=ast.Name(id="result0"), ops=[ast.Eq()], comparators=[right]):
                return evaluated(right, self.known)
        raise Unreadable("it is no comparison with one value")


def read_assertions(code: str, function: str | None) -> tuple[Assertion, ...]:
    """The assertions in a text of Python: bare ones, or those of `check(candidate)`.

    `function` is the one under test; by default that of the first call. Raises `Unreadable`.
    """
    if len(code) > MAX_CODE_CHARS:
        raise Unreadable(f"its tests have {len(code)} characters, more than {MAX_CODE_CHARS}")
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"its tests are no Python: {error}") from error
    reader = _Reader(function)
    try:
        found = tuple(reader.read(body, {}))
    except RecursionError as error:
        raise Unreadable("its tests are nested too deeply") from error
    if not found:
        raise Unreadable("there is no assertion in its tests")
    return found


class _Reader:
    def __init__(self, function: str | None) -> None:
        self._function = function
        self._candidate: str | None = None
        self._steps = MAX_STEPS
        self._parts = MAX_PARTS
        self._imported: set[str] = set()

    def read(self, body: Sequence[ast.stmt], known: dict[str, object]) -> Iterator[Assertion]:
        """The assertions of statements, in their order; `known` gets what they assign."""
        for statement in body:
            self._steps -= 1
            if self._steps < 0:
                raise Unreadable(f"it has more than {MAX_STEPS} statements")
            match statement:
                case ast.Assert(test=test):
                    yield self._assertion(test, known)
                case ast.FunctionDef(name="check", args=ast.arguments(args=[argument])) if self._function:
                    self._candidate = argument.arg
                    yield from self.read(statement.body, known)
                    self._candidate = None
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._charge(value, known)
                    known[name] = _constant(value, known, statement)
                case ast.For(target=ast.Name(id=name), iter=items, orelse=[]):
                    self._charge(items, known)
                    for item in items_of(_constant(items, known, statement)):
                        known[name] = item
                        yield from self.read(statement.body, known)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    self._imported |= {each.asname or each.name for each in names}
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case ast.Expr(value=ast.Call(func=ast.Name(id="check" | "print"))):
                    pass
                case _:
                    raise Unreadable(f"its tests have {shown(statement)}, which is no assertion of a known form")

    def _assertion(self, test: ast.expr, known: Mapping[str, object]) -> Assertion:
        self._charge(test, known)
        splitter, text = _Splitter(self, known), ast.unparse(test)
        condition = splitter.visit(deepcopy(test))  # a loop reads it again
        if not splitter.calls:
            raise Unreadable(f"{shown(test)} calls nothing")
        _check(test, condition, known)
        if len(splitter.calls) > MAX_CALLS:
            raise Unreadable(f"{shown(test)} has more than {MAX_CALLS} calls")
        for each in ast.walk(condition):
            if isinstance(each, ast.Compare) and sum(map(_has_result, (each.left, *each.comparators))) > 1:
                raise Unreadable(f"{shown(test)} compares results with one another, so that the program would decide")
            if isinstance(each, ast.Name) and not (_is_result(each) or each.id in KNOWN_NAMES | known.keys()):
                raise Unreadable(f"{shown(test)} has the name {each.id}, which is not known")
        named = {each.id for each in ast.walk(condition) if isinstance(each, ast.Name)}
        return Assertion(text, tuple(splitter.calls), condition, {name: known[name] for name in named & known.keys()})

    def _charge(self, expression: ast.expr, known: Mapping[str, object]) -> None:
        for each in ast.walk(expression):
            match each:
                case ast.Constant(value=value):
                    self._parts -= size_of(value)
                case ast.Name(id=name):
                    self._parts -= size_of(known.get(name))
                case _:
                    self._parts -= 1
        if self._parts < 0:
            raise Unreadable(f"its tests have more than {MAX_PARTS} parts")

    def is_under_test(self, name: str) -> bool:
        """Whether a name is that of the function under test; the first one that is called becomes it."""
        if self._function is None and name not in _NEVER_UNDER_TEST | self._imported:
            self._function = name
        return name in (self._function, self._candidate)

    def is_named(self, name: str | None) -> bool:
        """Whether the row names this function as the one under test, or has already called it."""
        return name is not None and name == self._function

    def renamed(self, name: str) -> str:
        """The name in the interpreter."""
        return self._function if name == self._candidate and self._function else name


class _Splitter(ast.NodeTransformer):
    """Replaces the calls of a program's functions by names for their results."""

    def __init__(self, reader: _Reader, known: Mapping[str, object]) -> None:
        self._reader = reader
        self._known = known
        self.calls: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        root = _root(node)
        name = node.func.id if isinstance(node.func, ast.Name) else dotted(node.func)
        if name in FUNCTIONS and not self._reader.is_named(name):
            node.args = [self.visit(each) for each in node.args]
            for keyword in node.keywords:
                keyword.value = self.visit(keyword.value)
            return node
        if root is None or not self._reader.is_under_test(root):
            raise Unreadable(f"{shown(node)} is no call of the function under test")
        return self._called(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        root = _root(node)
        if not any(isinstance(each, ast.Call) for each in ast.walk(node)):
            if dotted(node) in NAMES:
                return ast.Name(id=str(dotted(node)), ctx=ast.Load())
            raise Unreadable(f"{shown(node)} is not known")
        if root is None or not self._reader.is_under_test(root):
            raise Unreadable(f"{shown(node)} is no call of the function under test")
        return self._called(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        raise Unreadable(f"{shown(node)} is not known")

    def _called(self, node: ast.expr) -> ast.AST:
        inside = _Inside(self._reader, self._known).visit(node)
        self.calls.append(ast.unparse(ast.fix_missing_locations(inside)))
        return ast.Name(id=f"result{len(self.calls) - 1}", ctx=ast.Load())


class _Inside(ast.NodeTransformer):
    """A call as the interpreter gets it: with the values of the row's names."""

    def __init__(self, reader: _Reader, known: Mapping[str, object]) -> None:
        self._reader = reader
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._known:
            return ast.parse(literal(self._known[node.id]), mode="eval").body
        return ast.Name(id=self._reader.renamed(node.id), ctx=ast.Load())


def _check(test: ast.expr, condition: ast.expr, known: Mapping[str, object]) -> None:
    """Raises `Unreadable` for a condition whose parts are not all known, or whose constants cannot be computed."""
    for each in ast.walk(condition):
        if isinstance(each, ast.expr) and not isinstance(each, _KNOWN):
            raise Unreadable(f"{shown(test)} has {shown(each)}, which is of no known form")
        if isinstance(each, ast.Call) and not (isinstance(each.func, ast.Name) or dotted(each.func) in FUNCTIONS):
            raise Unreadable(f"{shown(test)} has {shown(each)}, which is of no known form")
        if isinstance(each, ast.Compare):
            for side in (each.left, *each.comparators):
                if not _has_result(side):
                    _constant(side, known, test)


def _root(node: ast.expr) -> str | None:
    """The name that a chain of calls, attributes and positions begins with."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_result(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith("result") and node.id[6:].isdigit()


def _has_result(node: ast.AST) -> bool:
    return any(map(_is_result, ast.walk(node)))


def _constant(node: ast.expr, known: Mapping[str, object], statement: ast.AST) -> object:
    try:
        value = plain(evaluated(node, known))
        if size_of(value) > MAX_ITEMS:
            raise OverflowError("it is too long")
        return value
    except Unreadable:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unreadable(f"{shown(statement)}: {error}") from error


_NEVER_UNDER_TEST = frozenset((*dir(builtins), "math"))
_KNOWN = (
    *(ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp),
    *(ast.Compare, ast.Subscript, ast.Slice, ast.Call, ast.Attribute),
)
