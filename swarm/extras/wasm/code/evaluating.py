"""Values of expressions, computed outside the interpreter: of the few operations that conditions of tests have.

Expressions are a row's, values also a program's and hostile: both are bounded.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from swarm.extras.wasm.code.values import MAX_BITS, Failed, Iterated, Opaque, hashed

MAX_ITEMS = 2**17
"""Most items of a value that is computed here, the items of its items included."""
CHARS_PER_PART = 8
MAX_RANGE = 4_096
"""Numbers of a range."""
RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Floating-point numbers are equal within these: libraries differ in the last digits."""
EXACT = 10**8
"""Whole numbers from here on are equal to no other: the next one would soon be within `RELATIVE`."""


class Unreadable(ValueError):
    """Code of a row that is not of the known forms."""


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


def literal(value: object) -> str:
    """A plain value as Python has it, which `repr` says but for numbers that are not finite."""
    match value:
        case float() if not math.isfinite(value):
            return f"float({str(value)!r})"
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case tuple():
            return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
        case set() | frozenset():
            return f"{type(value).__name__}([{', '.join(map(literal, value))}])"
        case dict():
            return f"{{{', '.join(f'{literal(key)}: {literal(each)}' for key, each in value.items())}}}"
    return repr(value)


def dotted(node: ast.expr) -> str | None:
    """`module.name` of such an attribute; None for others."""
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return f"{module}.{name}"
    return None


def shown(node: ast.AST) -> str:
    """An expression or statement on one line, for people."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 80 else f"{text[:80]}..."


def evaluated(node: ast.expr, names: Mapping[str, object]) -> object:
    """The value of an expression. Raises `Unreadable` for unknown ones, and what operations raise."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name in names:
                return names[name]
            if name in NAMES:
                return NAMES[name]
            raise Unreadable(f"the name {name} is not known")
        case ast.List(elts=items):
            return [evaluated(each, names) for each in items]
        case ast.Tuple(elts=items):
            return tuple(evaluated(each, names) for each in items)
        case ast.Set(elts=items):
            return set(hashed(evaluated(each, names) for each in items))
        case ast.Dict(keys=keys, values=values):
            pairs = [(key, value) for key, value in zip(keys, values, strict=True) if key is not None]
            names_of = hashed(evaluated(key, names) for key, _ in pairs)
            return dict(zip(names_of, (evaluated(value, names) for _, value in pairs), strict=True))
        case ast.UnaryOp(op=operation, operand=operand):
            return _unary(operation, evaluated(operand, names))
        case ast.BinOp(left=left, op=operation, right=right):
            return _binary(operation, evaluated(left, names), evaluated(right, names))
        case ast.BoolOp(op=operation, values=values):
            wanted = isinstance(operation, ast.Or)
            result: object = not wanted
            for each in values:
                result = evaluated(each, names)
                if bool(plain(result)) is wanted:
                    break
            return result
        case ast.Compare(left=left, ops=operations, comparators=comparators):
            operands = [evaluated(each, names) for each in (left, *comparators)]
            return all(
                _compared(operation, *pair)
                for operation, pair in zip(operations, zip(operands, operands[1:], strict=False), strict=True)
            )
        case ast.Subscript(value=value, slice=index):
            return _at(evaluated(value, names), _slice(index, names))
        case ast.Call(func=function, args=arguments, keywords=keywords):
            called = function.id if isinstance(function, ast.Name) else dotted(function)
            if called is None or called not in FUNCTIONS or any(keyword.arg is None for keyword in keywords):
                raise Unreadable(f"{shown(node)} is not known")
            options = {str(keyword.arg): evaluated(keyword.value, names) for keyword in keywords}
            return FUNCTIONS[called](*(evaluated(each, names) for each in arguments), **options)
    raise Unreadable(f"{shown(node)} is not known")


def size_of(value: object) -> int:
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


def plain(value: object) -> object:
    """The value, which may be compared. Raises `TypeError` for what a program has no plain value for."""
    if isinstance(value, Failed | Iterated | Opaque):
        raise TypeError("it is no plain value")
    return value


def _unary(operation: ast.unaryop, operand: object) -> object:
    match operation:
        case ast.Not():
            return not plain(operand)
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
    left, right = plain(left), plain(right)
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
        return slice(*(None if each is None else evaluated(each, names) for each in bounds))
    return evaluated(node, names)


def _at(value: object, index: object) -> object:
    if isinstance(value, list | tuple | str) and isinstance(index, int | slice):
        return value[index]
    if isinstance(value, dict):
        found: object = value[index]
        return found
    raise TypeError("it has no items")


def items_of(value: object) -> list[object]:
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
    return sum(map(_number, items_of(values)))


def _smallest(*values: object) -> object:
    return min(items_of(values[0]) if len(values) == 1 else values)  # type: ignore[type-var]


def _largest(*values: object) -> object:
    return max(items_of(values[0]) if len(values) == 1 else values)  # type: ignore[type-var]


def _sorted(values: object, reverse: object = False) -> object:
    return sorted(items_of(values), reverse=bool(reverse))  # type: ignore[type-var]


def _range(*bounds: object) -> object:
    made = range(*(each for each in bounds if isinstance(each, int)))
    if len(made) > MAX_RANGE:
        raise OverflowError("it is too long")
    return list(made)


def _dict(values: object = ()) -> object:
    if isinstance(values, dict):
        return dict(values)
    pairs = list(map(_pair, items_of(values)))
    return dict(zip(hashed(key for key, _ in pairs), (value for _, value in pairs), strict=True))


def _pair(value: object) -> tuple[object, object]:
    key, item = items_of(value)
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


FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "abs": lambda value: abs(_number(value)),
    "all": lambda values: all(map(plain, items_of(values))),
    "any": lambda values: any(map(plain, items_of(values))),
    "bool": lambda value: bool(plain(value)),
    "dict": _dict,
    "float": _float,
    "frozenset": lambda values=(): frozenset(hashed(items_of(values))),
    "int": _int,
    "len": lambda value: len(items_of(value)),
    "list": lambda values=(): items_of(values),
    "max": _largest,
    "min": _smallest,
    "range": _range,
    "round": _round,
    "set": lambda values=(): set(hashed(items_of(values))),
    "sorted": _sorted,
    "str": _text,
    "sum": _sum,
    "tuple": lambda values=(): tuple(items_of(values)),
    "math.ceil": lambda value: math.ceil(_number(value)),
    "math.fabs": lambda value: math.fabs(_number(value)),
    "math.floor": lambda value: math.floor(_number(value)),
    "math.isclose": _isclose,
    "math.sqrt": lambda value: math.sqrt(_number(value)),
}
NAMES: Mapping[str, object] = {"math.pi": math.pi, "math.e": math.e, "math.inf": math.inf}
KNOWN_NAMES = frozenset((*FUNCTIONS, *NAMES, "math"))
