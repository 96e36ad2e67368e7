"""Commitments: short digests with which an author proves later that it had these completions when it offered them.

    question                      ─▶ tag      the same for every author: which commitments may concern a group
    question, completion          ─▶ key      what two groups have in common
    author, key                   ─▶ digest   of no use to another author: whoever repeats it has committed to nothing

    commitment  =  tag | digests in ascending order, 4 bytes each

Completions are compared without white space and letter case. Short answers to a row of a data set are left out: several
authors may draw the row and find them.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from swarm.types.bounds import MAX_COMPLETIONS
from swarm.types.groups import RolloutGroup
from swarm.types.questions import DatasetRef, TaskRef

DIGEST_BYTES = 4
MAX_COMMITMENT_BYTES = DIGEST_BYTES * (1 + MAX_COMPLETIONS)
LONG_CHARS = 64
"""Completions of this length do not coincide by chance."""
KEY_BYTES = 16


def commitment(group: RolloutGroup) -> bytes:
    """The commitment of a group's author; empty if it says nothing."""
    found = keys(group)
    if not found:
        return b""
    return question_tag(group.question) + b"".join(sorted({bound(group.peer_id, key) for key in found}))


def keys(group: RolloutGroup) -> dict[bytes, bool]:
    """Key of each distinct completion, and whether it is long."""
    question = blake2b(_identity(group.question), digest_size=KEY_BYTES)
    shortest = LONG_CHARS if isinstance(group.question, DatasetRef) else 0
    found: dict[bytes, bool] = {}
    for completion in group.completions:
        text = "".join(completion.text.split()).casefold()
        if len(text) >= shortest:
            digest = question.copy()
            digest.update(text.encode())
            found[digest.digest()] = len(text) >= LONG_CHARS
    return found


def question_tag(question: TaskRef) -> bytes:
    """The tag of a question."""
    return blake2b(_identity(question), digest_size=DIGEST_BYTES).digest()


def bound(peer_id: str, key: bytes) -> bytes:
    """The digest of a key for one author."""
    return blake2b(key + peer_id.encode(), digest_size=DIGEST_BYTES).digest()


def tag_of(committed: bytes) -> bytes:
    """The tag in a commitment."""
    return committed[:DIGEST_BYTES]


def digests_of(committed: bytes) -> frozenset[bytes]:
    """The digests in a commitment."""
    starts = range(DIGEST_BYTES, len(committed), DIGEST_BYTES)
    return frozenset(committed[start : start + DIGEST_BYTES] for start in starts)


def num_digests(committed: bytes) -> int:
    """How many completions a commitment is to; 0 if it is empty."""
    return max(0, len(committed) // DIGEST_BYTES - 1)


def agrees(committed: bytes, group: RolloutGroup) -> bool:
    """Whether a commitment can be that of the group's author to this group.

    At most half of the digests may differ: letter case is that of the author's version of Unicode.
    """
    ours = commitment(group)
    common = digests_of(ours) & digests_of(committed)
    return tag_of(committed) == tag_of(ours) and 2 * len(common) >= num_digests(committed)


def _identity(question: TaskRef) -> bytes:
    """What makes a question the same for all: fields that a later version adds change nothing."""
    place = (question.row,) if isinstance(question, DatasetRef) else (question.seed, question.index)
    return msgspec.msgpack.encode((question.task, question.question_hash, question.media, *place))
