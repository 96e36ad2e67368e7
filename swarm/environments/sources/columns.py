"""What a data set's row holds for a question: values of columns, or nested in them, and templates of both.

A path is data, not code: a column's name, then keys and positions, looked up one after the other.
"""

from __future__ import annotations

import binascii
import math
import re
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from swarm.environments.decoding.files import MAX_FILE_BYTES, Undecodable, decoders
from swarm.environments.sources.dataset import DatasetTask
from swarm.types import MAX_MESSAGES, Message, Prompt, Shown, Text
from swarm.types.media import MAX_MEDIA, Media, Modality, media_problem

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


MARKERS: Mapping[str, Modality] = MappingProxyType({"<image>": "image", "<audio>": "audio", "<video>": "video"})
_DATA_URL = re.compile(r"data:[\w/.+-]*;base64,")


class MediaFiles:
    """The files that the rows of a local data set name, in its own folder and nowhere else."""

    def __init__(self, folder: Path) -> None:
        """Paths in rows are relative to `folder`."""
        self._folder = folder.resolve()

    def read(self, path: str) -> bytes:
        """The content of a file. Raises `MalformedRow` for one that is not in the folder, or too large."""
        try:
            place = (self._folder / path).resolve()
            if not place.is_relative_to(self._folder):
                raise MalformedRow(f"the file {path[:200]!r} is not in the data set's folder")
            if not place.is_file():
                raise MalformedRow(f"there is no file {path[:200]!r} in the data set's folder")
            with place.open("rb") as opened:
                return opened.read(MAX_FILE_BYTES + 1)
        except PermissionError as error:
            hint = "put the data set into a folder of its own, which is neither the home directory nor /"
            raise MalformedRow(f"may not read {path[:200]!r}: {hint}") from error
        except (OSError, ValueError, RuntimeError) as error:  # a null byte, links without end
            raise MalformedRow(f"cannot read {path[:200]!r}: {error}") from error


class Slot(Struct, frozen=True):
    """A slot for an image, audio or video."""

    modality: Modality
    inline: object = None
    """What the message itself holds; else the column's next item belongs here."""


class MediaColumns:
    """The media that a task's rows hold."""

    def __init__(self, config: DatasetTask, columns: Collection[str], files: MediaFiles | None) -> None:
        """`files` are those that rows may name. Raises `ValueError` for an unknown column, `TaskError` for a missing
        library."""
        self._config = config
        self._files = files
        self._decoders = decoders(config.name, config)
        self._columns = {modality: Column(path, columns) for modality, path in config.media_columns.items()}
        self._markers = [marker for marker, modality in MARKERS.items() if modality in self._columns]
        self._marker = re.compile(f"({'|'.join(self._markers)})")

    @property
    def columns(self) -> list[Column]:
        """All columns in use."""
        return list(self._columns.values())

    def prompt(self, value: object, row: Row) -> Prompt:
        """The prompt with the row's media in it; `value` is its text or its list of messages.

        Raises `MalformedRow`.
        """
        messages = value if isinstance(value, list) else [{"role": "user", "content": as_plain(value, "the prompt")}]
        contents = [self._content(message) for message in messages]
        waiting = {modality: deque(_items(column.value(row))) for modality, column in self._columns.items()}
        marked = Counter(
            part.modality for parts in contents for part in parts if isinstance(part, Slot) and part.inline is None
        )
        for modality, items in waiting.items():
            if marked[modality] not in (0, len(items)):
                raise MalformedRow(f"{marked[modality]} places for {len(items)} items of {modality}")
        if contents:
            unmarked = (modality for modality in waiting if not marked[modality])
            contents[-1] = [*(Slot(each) for each in unmarked for _ in waiting[each]), *contents[-1]]
        if (count := sum(isinstance(part, Slot) for parts in contents for part in parts)) > MAX_MEDIA:
            raise MalformedRow(f"there must be at most {MAX_MEDIA} pictures, sounds and clips, got {count}")
        made = [self._filled(parts, waiting) for parts in contents]
        if problem := media_problem([part for parts in made for part in parts if isinstance(part, Media)]):
            raise MalformedRow(f"{problem}; they are smaller with a lower max_pixels, rate or max_frames")
        return conversation([_with(message, parts) for message, parts in zip(messages, made, strict=True)])

    def _content(self, message: object) -> list[str | Slot]:
        """What a message says, in parts. Only the user's messages have slots for media."""
        content = message.get("content") if isinstance(message, Mapping) else None
        asked = isinstance(message, Mapping) and message.get("role") == "user"
        if isinstance(content, list):
            parts = list(map(self._part, content))
            if not asked and any(isinstance(part, Slot) for part in parts):
                raise MalformedRow("only messages of the user may have pictures, sounds and clips")
            return parts
        if not isinstance(content, str):
            raise MalformedRow(f"a message must have a role and a content, got {describe(message)}")
        pieces = self._marker.split(content) if asked and self._columns else [content]
        return [Slot(MARKERS[piece]) if asked and piece in self._markers else piece for piece in pieces if piece]

    def _part(self, entry: object) -> str | Slot:
        """An entry of a content's list, as chat templates read them."""
        if isinstance(entry, Mapping):
            match entry.get("type"):
                case "text" if isinstance(text := entry.get("text"), str):
                    return text
                case "image" | "audio" | "video" as modality:
                    return self._slot(modality, entry.get(modality))
                case "image_url" if isinstance(link := entry.get("image_url"), Mapping):
                    return self._slot("image", _from_url(link.get("url")))
        raise MalformedRow(f"a part of a message must be text, image, audio or video, got {describe(entry)}")

    def _slot(self, modality: Modality, inline: object) -> Slot:
        if isinstance(inline, Mapping) and not any(inline.values()):
            inline = None  # Arrow has all keys in all parts
        if inline is None and modality not in self._columns:
            raise MalformedRow(f"a message has a place for {modality}, and no column has any")
        if inline is not None and modality not in self._config.inline:
            raise MalformedRow(f"a message holds {modality}, which the task's `inline` does not list")
        return Slot(modality, inline)

    def _filled(self, parts: list[str | Slot], waiting: Mapping[Modality, deque[object]]) -> tuple[Shown, ...]:
        return tuple(
            Text(part)
            if isinstance(part, str)
            else self._decoded(
                part.modality, part.inline if part.inline is not None else waiting[part.modality].popleft()
            )
            for part in parts
        )

    def _decoded(self, modality: Modality, stored: object) -> Media:
        try:
            return self._decoders[modality](self._bytes(stored), self._config)
        except Undecodable as error:
            raise MalformedRow(str(error)) from error

    def _bytes(self, stored: object) -> bytes:
        """The file that a row holds or, in a local data set, names."""
        path = stored
        if isinstance(stored, Mapping):
            path, stored = stored.get("path"), stored.get("bytes")
        if isinstance(stored, bytes):
            return stored
        if not isinstance(path, str):
            raise MalformedRow(f"a picture, sound or clip must be stored as bytes or a path, got {describe(path)}")
        if self._files is None:
            raise MalformedRow("a picture, sound or clip is stored as a path: only local data sets may have paths")
        return self._files.read(path)


def _items(value: object) -> list[object]:
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


def _from_url(url: object) -> bytes:
    """The content of a URL that is its own content; nothing is fetched."""
    if not (isinstance(url, str) and (start := _DATA_URL.match(url))):
        raise MalformedRow("an image_url must hold its picture: data:image/png;base64,...")
    try:
        return b64decode(url[start.end() :], validate=True)
    except binascii.Error as error:
        raise MalformedRow(f"an image_url is not in base64: {error}") from error


def _with(message: object, parts: tuple[Shown, ...]) -> object:
    """A message of a row with what was made of its content; a text if it is nothing else."""
    role = message.get("role") if isinstance(message, Mapping) else None
    texts = [part.text for part in parts if isinstance(part, Text)]
    return {"role": role, "content": "\n".join(texts) if len(texts) == len(parts) else parts}
