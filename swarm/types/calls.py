"""Calls of tools in texts.

Models write their calls in many ways, which `swarm/policy/calling.py` reads. A text that is shared, graded or shown
has one pair of marks: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Two more forms count, which models
without marks for calls write: a `<tool>` pair, and a turn that is nothing but such objects. Whatever is in a thought,
in a question or in a result is no call.

The texts are anybody's: all is bounded before it is decoded, and whatever is wrong with a call is said in words.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NoReturn

from msgspec import Struct

from swarm.types.thoughts import CLOSE as THOUGHT_CLOSE

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAG_OPEN, TAG_CLOSE = "<tool>", "</tool>"
MAX_CALLS = 8
"""In one turn."""
MAX_CALL_CHARS = 8_192
MAX_CALL_DEPTH = 16
"""Deepest nesting of JSON within JSON."""
MAX_TOOL_NAME_CHARS = 64
MAX_DIGITS = 400
"""Longest number."""

TOO_LONG = f"a call must be at most {MAX_CALL_CHARS} characters"
TOO_MANY = f"a turn must have at most {MAX_CALLS} calls"
TOO_DEEP = f"the JSON of a call must be nested at most {MAX_CALL_DEPTH} deep"
NO_END = f"a call must end with {CLOSE}"
NO_JSON = "it is no JSON"
TOO_LARGE = f"a number must be finite and have at most {MAX_DIGITS} digits"
SHAPE = 'a call must be a JSON object {"name": ..., "arguments": {...}}'

_ARGUMENTS = ("arguments", "parameters")
_BLANK = re.compile(r"[ \t\n\r]*")
_BETWEEN = re.compile(r"[ \t\n\r;,]*")
_FENCE = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)


class Call(Struct, frozen=True):
    """A call that could be read."""

    name: str
    arguments: str
    """A JSON object, as it was written."""


class TaggedCall(Struct, frozen=True):
    """What is in a `<tool>` pair: the only argument of the only tool, or the JSON of a call."""

    text: str


class BadCall(Struct, frozen=True):
    """What is marked as a call, and is none."""

    problem: str
    said: str
    """What is between the marks."""
    closed: bool = True


AnyCall = Call | TaggedCall | BadCall
Spoken = str | AnyCall
"""A part of what a policy said."""


class BadJson(ValueError):
    """JSON that is refused; the text says why, briefly."""


def spoken(text: str) -> list[Spoken]:
    """The parts of what a policy said after its thought, in their order."""
    if OPEN in text:
        return marked(text, OPEN, CLOSE)
    end = text.rfind(TAG_CLOSE)
    start = text.rfind(TAG_OPEN, 0, end) if end >= 0 else -1
    if start >= 0:
        tagged = TaggedCall(text[start + len(TAG_OPEN) : end].strip())
        return _without_empty([text[:start], tagged, text[end + len(TAG_CLOSE) :]])
    calls = bare_calls(text)
    return [text] if calls is None else [*calls]


def calls_in(text: str) -> tuple[AnyCall, ...]:
    """The calls of a turn, at most `MAX_CALLS`; one that says so where there are more."""
    found = tuple(part for part in spoken(text) if not isinstance(part, str))
    return found if len(found) <= MAX_CALLS else (BadCall(TOO_MANY, ""),)


def marked(text: str, open: str, close: str, read: Callable[[str], Call | BadCall] | None = None) -> list[Spoken]:
    """The parts of a text whose calls are between marks, by default objects; of calls beyond `MAX_CALLS` one more is
    read."""
    read = read or read_call
    parts: list[Spoken] = []
    at, num = 0, 0
    while num <= MAX_CALLS and (start := text.find(open, at)) >= 0:
        end = text.find(close, start + len(open))
        said = text[start + len(open) : end if end >= 0 else len(text)]
        parts += [text[at:start], read(said) if end >= 0 else BadCall(NO_END, said, closed=False)]
        at = end + len(close) if end >= 0 else len(text)
        num += 1
    return _without_empty([*parts, text[at:]])


def bare_calls(text: str) -> list[Call | BadCall] | None:
    """The calls of a text that is nothing else: objects one after the other, or a list of them; None for other texts.

    What has the members of a call is meant as one, and is bad if it cannot be read.
    """
    said = text.strip()
    if fenced := _FENCE.fullmatch(said):
        said = fenced[1].strip()
    if not said.startswith(("{", "[")) or '"name"' not in said or not any(f'"{name}"' in said for name in _ARGUMENTS):
        return None
    return calls_of(said)


def calls_of(said: str) -> list[Call | BadCall]:
    """The calls that a text is: objects one after the other, or a list of them."""
    said = said.strip()
    if len(said) > MAX_CALLS * MAX_CALL_CHARS:
        return [BadCall(TOO_LONG, said)]
    try:
        _check_depth(said)
        bodies = _elements(said) if said.startswith("[") else list(_in_a_row(said))
    except BadJson as error:
        return [BadCall(str(error), said)]
    return [read_call(body) for body in bodies[: MAX_CALLS + 1]] or [BadCall(SHAPE, said)]


def read_call(said: str) -> Call | BadCall:
    """The call that a JSON object is."""
    try:
        if len(said) > MAX_CALL_CHARS:
            raise BadJson(TOO_LONG)
        _check_depth(said)
        members = _members(said.strip())
        if "function" in members and "name" not in members:
            members = _members(members["function"])
        given = [members[name] for name in _ARGUMENTS if name in members]
        name = _value(members["name"]) if "name" in members else None
        if not isinstance(name, str) or len(given) > 1:
            raise BadJson(SHAPE)
        if not 0 < len(name) <= MAX_TOOL_NAME_CHARS:
            raise BadJson(f"the name of a tool has 1 to {MAX_TOOL_NAME_CHARS} characters")
        arguments = given[0] if given else "{}"
        read_object(arguments)
    except BadJson as error:
        return BadCall(str(error), said)
    return Call(name, arguments)


def read_object(text: str) -> dict[str, Any]:
    """A JSON object of a call, without duplicate names, numbers that are not finite, or halves of characters.

    Raises `BadJson`.
    """
    value = _value(text)
    if not isinstance(value, dict):
        raise BadJson(SHAPE)
    return value


def as_call(name: str, arguments: str) -> str:
    """A call as its JSON object, without marks."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'


def common(parts: Sequence[Spoken]) -> str:
    """The text of these parts, with the common marks."""
    return "".join(part if isinstance(part, str) else _with_marks(part) for part in parts)


def _with_marks(call: AnyCall) -> str:
    match call:
        case Call(name, arguments):
            body = as_call(name, arguments)
            if CLOSE in body or THOUGHT_CLOSE in body:  # a text within must end neither the call nor a thought
                body = body.replace("</", "<\\/")
            return f"{OPEN}{body}{CLOSE}"
        case BadCall(_, said, closed):
            return f"{OPEN}{said}{CLOSE if closed else ''}"
        case TaggedCall(text):
            return f"{TAG_OPEN}{text}{TAG_CLOSE}"


def _without_empty(parts: Sequence[Spoken]) -> list[Spoken]:
    return [part for part in parts if part != ""]


def _refuse(constant: str) -> NoReturn:
    raise BadJson(f"{constant} is no JSON")


def _finite(text: str) -> float:
    if len(text) > MAX_DIGITS or not math.isfinite(float(text)):
        raise BadJson(TOO_LARGE)
    return float(text)


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise BadJson(TOO_LARGE)
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadJson(f"{next(name for name in names if names.count(name) > 1)[:40]!r} is there twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_int=_whole, parse_constant=_refuse)


def _decoded(text: str, at: int) -> tuple[Any, int]:
    """A value that begins at a place, and its end. Raises `BadJson`."""
    try:
        value, end = _DECODER.raw_decode(text, at)
        json.dumps(value, ensure_ascii=False).encode()
    except BadJson:
        raise
    except UnicodeEncodeError as error:
        raise BadJson("it has half of a character") from error
    except (ValueError, RecursionError) as error:  # whose words differ between versions of Python
        raise BadJson(NO_JSON) from error
    return value, end


def _value(text: str) -> Any:
    value, end = _decoded(text, 0)
    if text[end:].strip():
        raise BadJson("there is more after the JSON")
    return value


def _members(text: str) -> dict[str, str]:
    """The texts of an object's values, by name. Raises `BadJson`."""
    found: dict[str, str] = {}
    if not text.startswith("{"):
        raise BadJson(SHAPE)
    _value(text)  # it is JSON, without duplicates
    at = _after(_BLANK, text, 1)
    while text[at] != "}":
        name, at = scanstring(text, at + 1, True)
        at = _after(_BLANK, text, _after(_BLANK, text, at) + 1)
        _, end = _decoded(text, at)
        found[name] = text[at:end]
        at = _after(_BLANK, text, end)
        if text[at] == ",":
            at = _after(_BLANK, text, at + 1)
    return found


def _elements(text: str) -> list[str]:
    """The texts of a list's values. Raises `BadJson`."""
    _value(text)
    return list(_in_a_row(text[1 : text.rindex("]")]))


def _in_a_row(text: str) -> Iterator[str]:
    """The texts of values one after the other. Raises `BadJson`."""
    at = _after(_BETWEEN, text, 0)
    while at < len(text):
        _, end = _decoded(text, at)
        yield text[at:end]
        at = _after(_BETWEEN, text, end)


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None
    return found.end()


def _check_depth(text: str) -> None:
    """Raises `BadJson`; whatever is in strings does not count."""
    depth, quoted, escaped = 0, False, False
    for character in text:
        if quoted:
            quoted, escaped = escaped or character != '"', not escaped and character == "\\"
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            if depth > MAX_CALL_DEPTH:
                raise BadJson(TOO_DEEP)
        elif character in "]}":
            depth -= 1
