"""What was read of an episode, kept from one of its turns to the next.

An entry lives within one call of the engine, as long as its episode may go on and there is room. All its keys and
values are those of the present weights: a change of weights drops all entries. So a turn that finds its entry and one
that is prefilled again sample the same, and a spot check need not know which it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swarm.engines.transformers.slots import Prefix


@dataclass(frozen=True)
class _Entry:
    ids: list[int]
    prefix: Prefix


class KeptPrefixes:
    """Prefixes by episode; the oldest is dropped first."""

    def __init__(self) -> None:
        """Nothing is kept."""
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self.num_tokens = 0
        """Of all prefixes."""

    def __contains__(self, episode: object) -> bool:
        """Whether there is an entry."""
        return episode in self._entries

    def put(self, episode: int, ids: list[int], prefix: Prefix) -> None:
        """Keep the prefix of the tokens `ids`."""
        self.take(episode, ())
        self._entries[episode] = _Entry(ids, prefix)
        self.num_tokens += prefix.length

    def take(self, episode: int, ids: Sequence[int]) -> Prefix | None:
        """Remove an episode's entry; returns it if `ids` continue its tokens."""
        entry = self._entries.pop(episode, None)
        if entry is None:
            return None
        self.num_tokens -= entry.prefix.length
        return entry.prefix if list(ids[: len(entry.ids)]) == entry.ids else None

    def retain(self, episodes: Collection[int]) -> None:
        """Drop all other episodes' entries."""
        for episode in [episode for episode in self._entries if episode not in episodes]:
            self.take(episode, ())

    def shrink(self, max_tokens: int) -> None:
        """Drop entries until no more tokens are kept."""
        while self.num_tokens > max_tokens:
            self.take(next(iter(self._entries)), ())

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self.num_tokens = 0
