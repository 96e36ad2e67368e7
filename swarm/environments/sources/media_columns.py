"""Images, audio and video of a data set's row, and their positions in the text of its prompt."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from swarm.environments.decoding.files import MAX_FILE_BYTES, Undecodable, decoders
from swarm.environments.sources.columns import Column, MalformedRow, Row, as_plain, conversation, describe
from swarm.environments.sources.dataset import DatasetTask
from swarm.types import Prompt, Shown, Text
from swarm.types.media import MAX_MEDIA, Media, Modality, media_problem

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
