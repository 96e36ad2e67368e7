"""Assertions of a data set, taken apart: calls for the interpreter, and a condition on what they return for here.

    assert sorted(pairs([3, 1])) == [(1, 3)]     call pairs([3, 1]); here: sorted(RESULT) == [(1, 3)]

Conditions are the row's, results are the program's and hostile: both are bounded, and nothing is evaluated but the few
operations below. An assertion that would let the program decide about itself is refused: one that compares two calls,
or whose call is not one of the function under test.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy

from msgspec import Struct

from swarm.extras.wasm.code.values import MAX_BITS, Failed, Iterated, Opaque, hashed

MAX_CODE_CHARS = 2**20
MAX_CALLS = 8
"""Calls in one assertion."""
MAX_ITEMS = 2**17
"""Of a value that is computed here, the items of its items included."""
MAX_PARTS = 2**17
"""Of the expressions that are read of one row, repetitions of loops and the items of names included."""
CHARS_PER_PART = 8
MAX_STEPS = 4_096
"""Statements that are read of one row, repetitions of loops included."""
RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Floating-point numbers are equal within these: libraries differ in the last digits."""
EXACT = 10**8
"""Whole numbers from here on are equal to no other: the next one would soon be within `RELATIVE`."""


class Unreadable(ValueError):
    """Code of a row that is not of the known forms."""


class Assertion(Struct, frozen=True):
    """A condition on the results of calls."""

    text: str
    """As the row has it."""
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
            return bool(_plain(_value(self.condition, names)))
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError):
            return False

    @property
    def expected(self) -> object:
        """What the only call must return; raises `Unreadable` if that is not said plainly."""
        match self.condition:
            case ast.Compare(left=ast.Name(id="result0"), ops=[ast.Eq()], comparators=[right]):
                return _value(right, self.known)
        raise Unreadable("it is no comparison with one value")


def same(found: object, expected: object) -> bool:
    """Python's equality of plain values, except that floating-point numbers may differ in the last digits."""
    if isinstance(found, Failed | Iterated | Opaque):
        return False
    if isinstance(found, float) or isinstance(expected, float):
        if not (isinstance(found, int | float) and isinstance(expected, int | float)):
            return False
        is_exact = any(isinstance(each, int) and abs(each) >= EXACT for each in (found, expected))
        is_near = not is_exact and math.isclose(found, expected, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        return found == expected or is_near
    if isinstance(found, complex) and isinstance(expected, complex):
        return same(found.real, expected.real) and same(found.imag, expected.imag)
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        alike = isinstance(found, list) == isinstance(expected, list) and len(found) == len(expected)
        return alike and all(map(same, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    return found == expected


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
                    for item in _items(_constant(items, known, statement)):
                        known[name] = item
                        yield from self.read(statement.body, known)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    self._imported |= {each.asname or each.name for each in names}
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case ast.Expr(value=ast.Call(func=ast.Name(id="check" | "print"))):
                    pass
                case _:
                    raise Unreadable(f"its tests have {_shown(statement)}, which is no assertion of a known form")

    def _assertion(self, test: ast.expr, known: Mapping[str, object]) -> Assertion:
        self._charge(test, known)
        splitter, text = _Splitter(self, known), ast.unparse(test)
        condition = splitter.visit(deepcopy(test))  # a loop reads it again
        if not splitter.calls:
            raise Unreadable(f"{_shown(test)} calls nothing")
        _check(test, condition, known)
        if len(splitter.calls) > MAX_CALLS:
            raise Unreadable(f"{_shown(test)} has more than {MAX_CALLS} calls")
        for each in ast.walk(condition):
            if isinstance(each, ast.Compare) and sum(map(_has_result, (each.left, *each.comparators))) > 1:
                raise Unreadable(f"{_shown(test)} compares results with one another, so that the program would decide")
            if isinstance(each, ast.Name) and not (_is_result(each) or each.id in _KNOWN_NAMES | known.keys()):
                raise Unreadable(f"{_shown(test)} has the name {each.id}, which is not known")
        named = {each.id for each in ast.walk(condition) if isinstance(each, ast.Name)}
        return Assertion(text, tuple(splitter.calls), condition, {name: known[name] for name in named & known.keys()})

    def _charge(self, expression: ast.expr, known: Mapping[str, object]) -> None:
        for each in ast.walk(expression):
            match each:
                case ast.Constant(value=value):
                    self._parts -= _size(value)
                case ast.Name(id=name):
                    self._parts -= _size(known.get(name))
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
        name = node.func.id if isinstance(node.func, ast.Name) else _dotted(node.func)
        if name in _FUNCTIONS and not self._reader.is_named(name):
            node.args = [self.visit(each) for each in node.args]
            for keyword in node.keywords:
                keyword.value = self.visit(keyword.value)
            return node
        if root is None or not self._reader.is_under_test(root):
            raise Unreadable(f"{_shown(node)} is no call of the function under test")
        return self._called(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        root = _root(node)
        if not any(isinstance(each, ast.Call) for each in ast.walk(node)):
            if _dotted(node) in _NAMES:
                return ast.Name(id=str(_dotted(node)), ctx=ast.Load())
            raise Unreadable(f"{_shown(node)} is not known")
        if root is None or not self._reader.is_under_test(root):
            raise Unreadable(f"{_shown(node)} is no call of the function under test")
        return self._called(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        raise Unreadable(f"{_shown(node)} is not known")

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
            return ast.parse(_literal(self._known[node.id]), mode="eval").body
        return ast.Name(id=self._reader.renamed(node.id), ctx=ast.Load())


def _check(test: ast.expr, condition: ast.expr, known: Mapping[str, object]) -> None:
    """Raises `Unreadable` for a condition whose parts are not all known, or whose constants cannot be computed."""
    for each in ast.walk(condition):
        if isinstance(each, ast.expr) and not isinstance(each, _KNOWN):
            raise Unreadable(f"{_shown(test)} has {_shown(each)}, which is of no known form")
        if isinstance(each, ast.Call) and not (isinstance(each.func, ast.Name) or _dotted(each.func) in _FUNCTIONS):
            raise Unreadable(f"{_shown(test)} has {_shown(each)}, which is of no known form")
        if isinstance(each, ast.Compare):
            for side in (each.left, *each.comparators):
                if not _has_result(side):
                    _constant(side, known, test)


def _root(node: ast.expr) -> str | None:
    """The name that a chain of calls, attributes and positions begins with."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _dotted(node: ast.expr) -> str | None:
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return f"{module}.{name}"
    return None


def _is_result(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith("result") and node.id[6:].isdigit()


def _has_result(node: ast.AST) -> bool:
    return any(map(_is_result, ast.walk(node)))


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 80 else f"{text[:80]}..."


def _constant(node: ast.expr, known: Mapping[str, object], statement: ast.AST) -> object:
    try:
        value = _plain(_value(node, known))
        if _size(value) > MAX_ITEMS:
            raise OverflowError("it is too long")
        return value
    except Unreadable:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unreadable(f"{_shown(statement)}: {error}") from error


def _literal(value: object) -> str:
    text = repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({text!r})"
    return text


_NEVER_UNDER_TEST = frozenset((*dir(builtins), "math"))
_KNOWN = (
    *(ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp),
    *(ast.Compare, ast.Subscript, ast.Slice, ast.Call, ast.Attribute),
)

# what is computed here


def _value(node: ast.expr, names: Mapping[str, object]) -> object:
    """The value of an expression. Raises `Unreadable` for unknown ones, and what operations raise."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name in names:
                return names[name]
            if name in _NAMES:
                return _NAMES[name]
            raise Unreadable(f"the name {name} is not known")
        case ast.List(elts=items):
            return [_value(each, names) for each in items]
        case ast.Tuple(elts=items):
            return tuple(_value(each, names) for each in items)
        case ast.Set(elts=items):
            return set(hashed(_value(each, names) for each in items))
        case ast.Dict(keys=keys, values=values):
            plain = [(key, value) for key, value in zip(keys, values, strict=True) if key is not None]
            names_of = hashed(_value(key, names) for key, _ in plain)
            return dict(zip(names_of, (_value(value, names) for _, value in plain), strict=True))
        case ast.UnaryOp(op=operation, operand=operand):
            return _unary(operation, _value(operand, names))
        case ast.BinOp(left=left, op=operation, right=right):
            return _binary(operation, _value(left, names), _value(right, names))
        case ast.BoolOp(op=operation, values=values):
            wanted = isinstance(operation, ast.Or)
            result: object = not wanted
            for each in values:
                result = _value(each, names)
                if bool(_plain(result)) is wanted:
                    break
            return result
        case ast.Compare(left=left, ops=operations, comparators=comparators):
            operands = [_value(each, names) for each in (left, *comparators)]
            return all(
                _compared(operation, *pair)
                for operation, pair in zip(operations, zip(operands, operands[1:], strict=False), strict=True)
            )
        case ast.Subscript(value=value, slice=index):
            return _at(_value(value, names), _slice(index, names))
        case ast.Call(func=function, args=arguments, keywords=keywords):
            called = function.id if isinstance(function, ast.Name) else _dotted(function)
            if called is None or called not in _FUNCTIONS or any(keyword.arg is None for keyword in keywords):
                raise Unreadable(f"{_shown(node)} is not known")
            options = {str(keyword.arg): _value(keyword.value, names) for keyword in keywords}
            return _FUNCTIONS[called](*(_value(each, names) for each in arguments), **options)
    raise Unreadable(f"{_shown(node)} is not known")


def _size(value: object) -> int:
    """The parts of a value, long texts and numbers as several; at most a little more than `MAX_ITEMS`."""
    waiting, size = [value], 0
    while waiting and size <= MAX_ITEMS:
        each = waiting.pop()
        size += 1
        match each:
            case str() | bytes():
                size += len(each) // CHARS_PER_PART
            case int():
                size += each.bit_length() // 64
            case list() | tuple() | set() | frozenset() if size + len(waiting) + len(each) <= MAX_ITEMS:
                waiting += each
            case dict() if size + len(waiting) + 2 * len(each) <= MAX_ITEMS:
                waiting += (*each.keys(), *each.values())
            case Iterated():
                waiting.append(each.items)
            case list() | tuple() | set() | frozenset() | dict():
                return MAX_ITEMS + 1
    return size


def _plain(value: object) -> object:
    """The value, which may be compared. Raises `TypeError` for what a program has no plain value for."""
    if isinstance(value, Failed | Iterated | Opaque):
        raise TypeError("it is no plain value")
    return value


def _unary(operation: ast.unaryop, operand: object) -> object:
    match operation:
        case ast.Not():
            return not _plain(operand)
        case ast.USub() if isinstance(operand, int | float | complex):
            return -operand
        case ast.UAdd() if isinstance(operand, int | float | complex):
            return +operand
    raise TypeError("it is not known for these")


_NUMERIC: Mapping[type[ast.operator], Callable[[int | float, int | float], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _binary(operation: ast.operator, left: object, right: object) -> object:
    if isinstance(left, int | float) and isinstance(right, int | float):
        if any(isinstance(each, int) and each.bit_length() > MAX_BITS for each in (left, right)):
            raise OverflowError("the number is too large")
        if isinstance(operation, ast.Pow):
            if abs(right) > 1_024 or (isinstance(left, int) and left.bit_length() * abs(right) > MAX_BITS):
                raise OverflowError("the number is too large")
            return _short(left**right)
        if type(operation) in _NUMERIC:
            return _short(_NUMERIC[type(operation)](left, right))
    match operation, left, right:
        case (ast.Add(), str() | list() | tuple(), str() | list() | tuple()) if len(left) + len(right) > MAX_ITEMS:
            raise OverflowError("it is too long")
        case (ast.Add(), str(), str()):
            return left + right
        case (ast.Add(), list(), list()):
            return [*left, *right]
        case (ast.Add(), tuple(), tuple()):
            return (*left, *right)
        case (ast.Mult(), str() | list() | tuple(), int()):
            if len(left) * right > MAX_ITEMS:
                raise OverflowError("it is too long")
            return left * right
        case (ast.BitOr(), set(), set()):
            return left | right
        case (ast.BitAnd(), set(), set()):
            return left & right
        case (ast.Sub(), set(), set()):
            return left - right
    raise TypeError("it is not known for these")


def _short(number: int | float | complex) -> int | float | complex:
    if isinstance(number, int) and number.bit_length() > MAX_BITS:
        raise OverflowError("the number is too large")
    return number


def _compared(operation: ast.cmpop, left: object, right: object) -> bool:
    left, right = _plain(left), _plain(right)
    match operation:
        case ast.Eq():
            return same(left, right)
        case ast.NotEq():
            return not same(left, right)
        case ast.Is():
            return left is right or (isinstance(left, bool) and left == right and isinstance(right, bool))
        case ast.IsNot():
            return not _compared(ast.Is(), left, right)
        case ast.In() if isinstance(right, list | tuple):
            return any(same(left, each) for each in right)
        case ast.In() if isinstance(right, set | frozenset | dict):
            return left in right
        case ast.In() if isinstance(right, str) and isinstance(left, str):
            return left in right
        case ast.NotIn():
            return not _compared(ast.In(), left, right)
        case ast.Lt():
            return bool(left < right)  # type: ignore[operator]
        case ast.LtE():
            return bool(left <= right)  # type: ignore[operator]
        case ast.Gt():
            return bool(left > right)  # type: ignore[operator]
        case ast.GtE():
            return bool(left >= right)  # type: ignore[operator]
    raise TypeError("it is not known for these")


def _slice(node: ast.expr, names: Mapping[str, object]) -> object:
    if isinstance(node, ast.Slice):
        bounds = (node.lower, node.upper, node.step)
        return slice(*(None if each is None else _value(each, names) for each in bounds))
    return _value(node, names)


def _at(value: object, index: object) -> object:
    if isinstance(value, list | tuple | str) and isinstance(index, int | slice):
        return value[index]
    if isinstance(value, dict):
        found: object = value[index]
        return found
    raise TypeError("it has no items")


def _items(value: object) -> list[object]:
    """The items of a value. Raises `TypeError`."""
    if isinstance(value, Iterated):
        return value.items
    if isinstance(value, list | tuple | set | frozenset | dict | str | bytes):
        return list(value)
    raise TypeError("it has no items")


def _number(value: object) -> int | float:
    if isinstance(value, int | float):
        return value
    raise TypeError("it is no number")


def _round(value: object, digits: object = None) -> object:
    if digits is None:
        return round(_number(value))
    if not isinstance(digits, int) or abs(digits) > 100:
        raise ValueError("it has too many digits")
    return round(_number(value), digits)


def _sum(values: object) -> object:
    return sum(map(_number, _items(values)))


def _smallest(*values: object) -> object:
    return min(_items(values[0]) if len(values) == 1 else values)  # type: ignore[type-var]


def _largest(*values: object) -> object:
    return max(_items(values[0]) if len(values) == 1 else values)  # type: ignore[type-var]


def _sorted(values: object, reverse: object = False) -> object:
    return sorted(_items(values), reverse=bool(reverse))  # type: ignore[type-var]


def _range(*bounds: object) -> object:
    made = range(*(each for each in bounds if isinstance(each, int)))
    if len(made) > MAX_STEPS:
        raise OverflowError("it is too long")
    return list(made)


def _dict(values: object = ()) -> object:
    if isinstance(values, dict):
        return dict(values)
    pairs = list(map(_pair, _items(values)))
    return dict(zip(hashed(key for key, _ in pairs), (value for _, value in pairs), strict=True))


def _pair(value: object) -> tuple[object, object]:
    key, item = _items(value)
    return key, item


def _float(value: object = 0) -> float:
    if isinstance(value, int | float | str):
        return float(value)
    raise TypeError("it is no number")


def _int(value: object = 0) -> int:
    if isinstance(value, int | float | str):
        return int(value)
    raise TypeError("it is no number")


def _text(value: object = "") -> str:
    if isinstance(value, int | float | str | None):
        return str(value)
    raise TypeError("it is no text")


def _isclose(left: object, right: object, rel_tol: object = 1e-9, abs_tol: object = 0.0) -> bool:
    return math.isclose(_number(left), _number(right), rel_tol=_number(rel_tol), abs_tol=_number(abs_tol))


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "abs": lambda value: abs(_number(value)),
    "all": lambda values: all(map(_plain, _items(values))),
    "any": lambda values: any(map(_plain, _items(values))),
    "bool": lambda value: bool(_plain(value)),
    "dict": _dict,
    "float": _float,
    "frozenset": lambda values=(): frozenset(hashed(_items(values))),
    "int": _int,
    "len": lambda value: len(_items(value)),
    "list": lambda values=(): _items(values),
    "max": _largest,
    "min": _smallest,
    "range": _range,
    "round": _round,
    "set": lambda values=(): set(hashed(_items(values))),
    "sorted": _sorted,
    "str": _text,
    "sum": _sum,
    "tuple": lambda values=(): tuple(_items(values)),
    "math.ceil": lambda value: math.ceil(_number(value)),
    "math.fabs": lambda value: math.fabs(_number(value)),
    "math.floor": lambda value: math.floor(_number(value)),
    "math.isclose": _isclose,
    "math.sqrt": lambda value: math.sqrt(_number(value)),
}
_NAMES: Mapping[str, object] = {"math.pi": math.pi, "math.e": math.e, "math.inf": math.inf}
_KNOWN_NAMES = frozenset((*_FUNCTIONS, *_NAMES, "math"))
