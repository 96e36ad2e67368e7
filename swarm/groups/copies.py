"""Groups that say again what was said before: words teach once, and they are no merit of whoever repeats another's."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

import msgspec
from msgspec import Struct

from swarm.reasons import Reason
from swarm.types import DatasetRef, RolloutGroup

MAX_REMEMBERED = 131_072
"""Completions."""
GRACE_S = 60.0
"""A copy may travel faster than what it was copied from: so close together nobody can tell which one it is."""
REPEATED = 0.5
"""A group repeats others when more than this part of its distinct completions was given to the same question before."""
MIN_CHARS = 64
"""Two peers draw the same row of a data set, and may give the same short answer: only longer ones tell a copy there.
And short answers to questions that can be foreseen may be said first by somebody who wants their asker blamed: nobody
is blamed for those."""


class _Said(Struct):
    author: str
    at: float


class Copies:
    """Who said what first, compared without case and white space."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        """Nothing has been said yet."""
        self._said: OrderedDict[bytes, _Said] = OrderedDict()
        self._max_remembered = max_remembered

    def judge(self, group: RolloutGroup, now: float) -> Reason | None:
        """Why a group says nothing new, or None; what it says is remembered.

        `copied`: its author took it from another; `repeated`: the words are its own, nobody can tell whose, or anybody
        could have found them.
        """
        keys = _keys(group)
        known = {key: said for key in keys if (said := self._said.get(key)) is not None}
        for key in keys:
            self._said.setdefault(key, _Said(group.peer_id, now))
        while len(self._said) > self._max_remembered:
            self._said.popitem(last=False)
        if not keys or len(known) <= REPEATED * len(keys):
            return None
        of_others = [
            said
            for key, said in known.items()
            if keys[key] and said.author != group.peer_id and now - said.at > GRACE_S
        ]
        return Reason.COPIED if len(of_others) > REPEATED * len(keys) else Reason.REPEATED


def _keys(group: RolloutGroup) -> dict[bytes, bool]:
    """What tells the group's distinct completions from those to any other question; whether each is a long one."""
    question = blake2b(msgspec.msgpack.encode(group.question), digest_size=16)
    shortest = MIN_CHARS if isinstance(group.question, DatasetRef) else 0
    keys: dict[bytes, bool] = {}
    for completion in group.completions:
        text = "".join(completion.text.split()).casefold()
        if len(text) >= shortest:
            digest = question.copy()
            digest.update(text.encode())
            keys[digest.digest()] = len(text) >= MIN_CHARS
    return keys
