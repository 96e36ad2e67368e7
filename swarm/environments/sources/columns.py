"""What a data set's row holds for a question: values of columns, or nested in them, and templates of both.

A path is data, not code: a column's name, then keys and positions, looked up one after the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal

from swarm.types import MAX_MESSAGES, Message, Prompt

Row = Mapping[str, object]
"""Values by column."""

EXACT_BELOW = 2**53
"""Whole numbers that a float holds without rounding."""

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_STEP = re.compile(r"\.([^.\[\]{}]+)|\[(-?\d{1,9})\]")
_NEXT = {None: ("system", "user"), "system": ("user",), "user": ("assistant",), "assistant": ("user",)}
"""Roles that may follow a role, as chat templates require."""


class MalformedRow(Exception):
    """A row without a usable prompt or answer."""


class Column:
    """A column, or a path in it such as `answers.text[0]`. A key of a list is that of each of its items."""

    def __init__(self, path: str, columns: Collection[str]) -> None:
        """`path` begins with one of the columns; keys and positions follow. Raises `ValueError`."""
        self.path = path
        for name in sorted(columns, key=len, reverse=True):
            steps = _steps(path.removeprefix(name)) if path.startswith(name) else None
            if steps is not None:
                self.name, self.steps = name, steps
                return
        has = ", ".join(columns)
        raise ValueError(f"no column {path!r}; the columns are {has}; the task's `prompt`, `answer`, ... say which")

    def value(self, row: Row) -> object:
        """The value in a row. Raises `MalformedRow` if there is none."""
        value = row[self.name]
        for step in self.steps:
            value = self._at(step, value)
        return value

    def _at(self, step: str | int, value: object) -> object:
        if isinstance(value, list):
            if isinstance(step, str):
                return [self._at(step, item) for item in value]
            if -len(value) <= step < len(value):
                return value[step]
        if isinstance(value, Mapping) and step in value:
            return value[step]
        raise MalformedRow(f"{self.path!r}: there is no {step!r} in {describe(value)}")


class Template:
    """A column's value, or a text with columns in braces; doubled braces are literal."""

    def __init__(self, template: str, columns: Collection[str]) -> None:
        """Raises `ValueError` for an unknown column, and without any."""
        self._template = template
        named = [path for path in _PLACEHOLDER.findall(template) if path]
        if template in columns or not named:
            self.columns, self._is_text = [Column(template, columns)], False
        else:
            self.columns = [Column(path, columns) for path in dict.fromkeys(named)]
            self._is_text = template != f"{{{named[0]}}}"

    def value(self, row: Row) -> object:
        """The value of the only column, or the text. Raises `MalformedRow`."""
        if not self._is_text:
            return self.columns[0].value(row)
        texts = {column.path: as_plain(column.value(row), column.path) for column in self.columns}
        return _PLACEHOLDER.sub(lambda found: texts[found[1]] if found[1] else found[0][0], self._template)

    def prompt(self, row: Row) -> Prompt:
        """A text, or the conversation in a list of messages. Raises `MalformedRow`."""
        value = self.value(row)
        return conversation(value) if isinstance(value, list) else self._plain(value)

    def texts(self, row: Row) -> tuple[str, ...]:
        """The text, or all texts of a list. Raises `MalformedRow`."""
        value = self.value(row)
        return tuple(map(self._plain, value)) if isinstance(value, list) else (self._plain(value),)

    def _plain(self, value: object) -> str:
        return as_plain(value, self._template)


def as_plain(value: object, where: str) -> str:
    """A value of one row as text, as files have it: libraries read whole numbers as 12.0 where a column has others.

    Raises `MalformedRow` for anything but text, numbers, truth values and dates. A time of day is refused, because it
    can be written in many ways, and libraries do not keep which; midnight may be a date alone.
    """
    match value:
        case float() if value.is_integer() and abs(value) < EXACT_BELOW:
            return str(int(value))
        case float() if not math.isfinite(value):
            raise MalformedRow(f"{where!r} is {value}, must be text or a number")
        case str() | int() | float():
            return str(value)
        case Decimal():
            return f"{value:f}"
        case bytes():  # as some writers of Parquet store text
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise MalformedRow(f"{where!r} is bytes that are not UTF-8") from error
        case datetime() if value.timetz() == time.min:
            return value.date().isoformat()
        case date() if not isinstance(value, datetime):
            return value.isoformat()
    raise MalformedRow(f"{where!r} is {describe(value)}, must be text or a number")


def describe(value: object) -> str:
    """A value's type, and the keys of a mapping, for messages."""
    keys = f" with {', '.join(list(map(str, value))[:10]) or 'no keys'}" if isinstance(value, Mapping) else ""
    return f"{type(value).__name__}{keys}"


def conversation(values: Sequence[object]) -> Prompt:
    """Messages; a single one of the user with text alone is a plain question. Raises `MalformedRow`."""
    if not 1 <= len(values) <= MAX_MESSAGES:
        raise MalformedRow(f"a conversation must have 1 to {MAX_MESSAGES} messages, got {len(values)}")
    messages = tuple(map(_message, values))
    last = None
    for message in messages:
        if message.role not in _NEXT[last]:
            raise MalformedRow(f"after {last or 'the start'} must come {' or '.join(_NEXT[last])}, got {message.role}")
        last = message.role
    if last != "user":
        raise MalformedRow(f"a conversation must end with a message of the user, got {last}")
    (first, *others) = messages
    return first.content if isinstance(first.content, str) and not others else messages


def _message(value: object) -> Message:
    content = value.get("content") if isinstance(value, Mapping) else None
    # A tuple has been made of a list of parts: rows hold none.
    if not (isinstance(value, Mapping) and isinstance(content, str | tuple)):
        raise MalformedRow(f"a message must have a role and a content of text, got {describe(value)}")
    match value.get("role"):
        case "system" | "user" | "assistant" as role:
            return Message(role, content)
        case other:
            raise MalformedRow(f"a message's role must be system, user or assistant, got {str(other)[:40]!r}")


def _steps(rest: str) -> tuple[str | int, ...] | None:
    """Keys and positions after a column's name; None for anything else."""
    steps: list[str | int] = []
    position = 0
    for found in _STEP.finditer(rest):
        if found.start() != position:
            return None
        steps.append(found[1] if found[1] is not None else int(found[2]))
        position = found.end()
    return tuple(steps) if position == len(rest) else None
