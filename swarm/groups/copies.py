"""Finds groups that repeat earlier ones: a completion teaches once, and copying earns no merit."""

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
"""A copy may arrive before its original, so that the order within this time proves nothing."""
REPEATED = 0.5
"""A group is a repeat when more than this fraction of its distinct completions answered the same question before."""
MIN_CHARS = 64
"""Two peers may draw the same row of a data set and give the same short answer: there, only longer completions indicate
a copy. An attacker who predicts a question could also send its short answers first to incriminate the peer that asks
it: short answers are never counted as copied."""


class _Said(Struct):
    author: str
    at: float


class Copies:
    """The first author of each completion, compared without case and white space."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        """Start empty."""
        self._said: OrderedDict[bytes, _Said] = OrderedDict()
        self._max_remembered = max_remembered

    def judge(self, group: RolloutGroup, now: float) -> Reason | None:
        """Why a group is not new, or None; its completions are remembered.

        `copied`: its author took them from another peer; `repeated`: they are the author's own, of unclear origin, or
        short enough to coincide.
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
    """Digest of (question, completion) for each distinct completion, and whether it is long."""
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
