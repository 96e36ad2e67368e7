"""Sequences of token ids with places of features among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from torch import Tensor

FIRST_PLACE = 2**40
"""Ids from here on are places of features: above every vocabulary."""
PLACES = 2**20
"""Places of one medium, at most."""
Kind = Literal["image", "audio"]
"""What an encoder reads; a clip is read as its frames."""


class Medium:
    """What a policy reads of one picture, sound or frame; equal content is one medium as long as anybody holds it."""

    def __init__(
        self, number: int, kind: Kind, ids: Sequence[int], inputs: Mapping[str, Tensor], grid: Tensor | None
    ) -> None:
        """`ids` are its tokens, with this medium's places for its features."""
        self.number = number
        self.kind = kind
        self.ids = ids
        self.inputs = inputs
        """What the encoder reads."""
        self.grid = grid
        """[3, places] temporal, vertical and horizontal position of each feature, from 0; None where positions are
        plain."""

    @property
    def num_features(self) -> int:
        """Places among its tokens."""
        return sum(map(is_place, self.ids))


class TokenIds(list[int]):
    """Token ids that keep the media alive whose places are among them."""

    def __init__(self, ids: Iterable[int], media: Iterable[Medium]) -> None:
        """A sequence of its own."""
        super().__init__(ids)
        self.media = tuple(media)


class Known:
    """The media that somebody holds, by content and by number."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._numbers = count()
        self._by_digest: WeakValueDictionary[str, Medium] = WeakValueDictionary()
        self._by_number: WeakValueDictionary[int, Medium] = WeakValueDictionary()

    def get(self, digest: str) -> Medium | None:
        """The medium of a content."""
        return self._by_digest.get(digest)

    def add(
        self,
        digest: str,
        kind: Kind,
        ids: Iterable[int | None],
        inputs: Mapping[str, Tensor],
        grid: Tensor | None = None,
    ) -> Medium:
        """A new medium; None among `ids` stands for the next feature."""
        number = next(self._numbers)
        places = iter(range(first_place(number), first_place(number + 1)))
        medium = Medium(number, kind, [next(places) if each is None else each for each in ids], inputs, grid)
        self._by_digest[digest] = medium
        self._by_number[number] = medium
        return medium

    def __getitem__(self, number: int) -> Medium:
        """The medium with a number, which somebody holds."""
        return self._by_number[number]


class Run(NamedTuple):
    """Neighbouring places of one medium in a sequence."""

    start: int
    """Index in the sequence."""
    number: int
    """The medium's."""
    first: int
    """The medium's feature at `start`."""
    length: int


def joined(parts: Iterable[Sequence[int]]) -> list[int]:
    """Sequences one after another; keeps alive what they do."""
    parts = list(parts)
    ids = chain.from_iterable(parts)
    media = [medium for part in parts if isinstance(part, TokenIds) for medium in part.media]
    return TokenIds(ids, media) if media else list(ids)


def is_place(token: int) -> bool:
    """Whether an id is the place of a feature."""
    return token >= FIRST_PLACE


def first_place(number: int) -> int:
    """The id of a medium's first feature."""
    return FIRST_PLACE + number * PLACES


def runs(ids: Sequence[int]) -> Iterator[Run]:
    """The places in a sequence, in order; neighbours of one medium together."""
    start = 0
    while start < len(ids):
        if not is_place(ids[start]):
            start += 1
            continue
        end = start + 1
        while end < len(ids) and ids[end] == ids[end - 1] + 1:
            end += 1
        number, first = divmod(ids[start] - FIRST_PLACE, PLACES)
        yield Run(start, number, first, end - start)
        start = end
