"""Digests that name questions and options, and the pure pseudo-random choices derived from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from pydantic import JsonValue

from swarm.errors import Refusal
from swarm.reasons import Reason
from swarm.types import Prompt, Shown, TaskRef
from swarm.types.media import Media, modality

Choice = TypeVar("Choice")
RESOLUTION = 2**53
"""Steps of a random number in [0, 1)."""


def digest(*parts: str | int | None | Mapping[str, JsonValue]) -> str:
    """32 hexadecimal digits that depend on every part and its type, but not on the order of mapping keys."""
    canonical = msgspec.json.encode(parts, order="deterministic")
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


def with_code(options_digest: str, code_digest: str) -> str:
    """The digest of a task's options and of the code that it runs."""
    return f"{options_digest}.{code_digest}"


def check_options(ref: TaskRef, here: str) -> None:
    """Raises `Refusal` for a reference with other options than a task has `here`, or with other code: `other_task`."""
    if ref.options_digest == here:
        return
    only_code = ref.options_digest.partition(".")[0] == here.partition(".")[0]
    reason = Reason.OTHER_TASK if only_code else Reason.OPTIONS_DIFFER
    raise Refusal(reason, f"{ref.task}: {ref.options_digest}, here {here}")


def content_digest(files: Iterable[Path]) -> str:
    """Digest of the contents of files, in this order. Raises `OSError`."""
    hashes = []
    for file in files:
        with file.open("rb") as opened:
            hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return digest("files", *hashes)


def draw(bound: int, *parts: str | int) -> int:
    """A pseudo-random integer in [0, bound), a pure function of `parts`."""
    return int(digest(*parts), 16) % bound


class Chance(Struct, frozen=True):
    """Draws of one question or episode: integers that follow from a key alone, whatever was drawn before."""

    key: tuple[str | int, ...]
    """Such as task, stream and index."""

    def number(self, low: int, high: int, *what: str | int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + draw(high - low + 1, *self.key, *what)

    def happens(self, probability: float, *what: str | int) -> bool:
        """Whether something with this probability happens."""
        return self.number(0, RESOLUTION - 1, *what) < probability * RESOLUTION

    def one_of(self, choices: Sequence[Choice], *what: str | int) -> Choice:
        """One of several."""
        return choices[self.number(0, len(choices) - 1, *what)]

    def shuffled(self, items: Sequence[Choice], *what: str | int) -> list[Choice]:
        """All of them in a random order."""
        keys = [draw(RESOLUTION, *self.key, *what, index) for index in range(len(items))]
        return [items[index] for index in sorted(range(len(items)), key=lambda index: (keys[index], index))]


def question_hash(prompt: Prompt) -> str:
    """Digest of a question as it is asked, as `TaskRef.question_hash` carries it.

    It covers the positions of images, audio and video, not their content: `TaskRef.media` is the digest of that.
    """
    if isinstance(prompt, str):
        return digest("question", prompt)
    return digest("conversation", *(part for message in prompt for part in (message.role, _said(message.content))))


def _said(content: str | tuple[Shown, ...]) -> str | Mapping[str, JsonValue]:
    if isinstance(content, str):
        return content
    return {"parts": [modality(part) if isinstance(part, Media) else {"text": part.text} for part in content]}


def check_question(ref: TaskRef, here: TaskRef, difference: str) -> None:
    """Compare a reference with the one that this node's question has.

    Raises `Refusal`: `question_mismatch` if the text is another one, in the words of `difference`; `media_mismatch` if
    an image, audio or video is.
    """
    if here.question_hash != ref.question_hash:
        raise Refusal(Reason.QUESTION_MISMATCH, difference)
    if here.media != ref.media:
        raise Refusal(Reason.MEDIA_MISMATCH, f"{ref.task}: media with the digest {ref.media!r}, here {here.media!r}")
