"""Finds groups that repeat earlier ones: a completion teaches once, and copying earns no merit.

    offer heard    ─▶ its author has committed to these completions
    group arrives  ─▶ committed to here, by others, before its own author did?  ─▶ repeated, or copied
                                                              no                ─▶ new

Priority belongs to whom the question is of, by its seed, and else to the first commitment that was heard, whichever
group arrives first. Whose questions they are is known in advance, and so are short answers to them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from swarm.lru import LruDict
from swarm.reasons import Reason
from swarm.types import Commitment, DatasetRef, RolloutGroup
from swarm.types.commitments import bound, commitment, digests_of, keys, num_digests, tag_of
from swarm.types.questions import stream_seed

MAX_REMEMBERED = 131_072
"""Completions."""
MAX_PER_QUESTION = 256
"""Commitments to one question: each is compared with every group that answers it."""
MAX_STREAMS = 4_096
"""Peers whose questions are known as theirs."""
GRACE_S = 60.0
"""A copy may be heard before its original, and clocks differ, so that the order within this time proves nothing."""
REPEATED = 0.5
"""A group is a repeat when more than this fraction of its distinct completions was committed to before."""


class _Claim(Struct, eq=False):
    """A commitment as it was heard first."""

    author: str
    account: str
    content: bytes
    at: float
    opened: bool = False
    """Whether its group has come."""


class _Claims:
    """Those to one question, in the order in which they were heard."""

    def __init__(self) -> None:
        self.by_content: dict[tuple[str, bytes], _Claim] = {}
        """Claims by author and commitment."""
        self.accounts: Counter[str] = Counter()
        self.authors: Counter[str] = Counter()

    def add(self, claim: _Claim) -> None:
        self.by_content[claim.author, claim.content] = claim
        self.accounts[claim.account] += 1
        self.authors[claim.author] += 1

    def remove(self, claim: _Claim) -> None:
        del self.by_content[claim.author, claim.content]
        for counts, name in ((self.accounts, claim.account), (self.authors, claim.author)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    def excess(self, new: _Claim) -> _Claim:
        """The latest claim of the account, and of its author, with the most, once the `new` one is there."""
        accounts, authors = self.accounts, self.authors
        if 1 + accounts[new.account] >= max(accounts.values()) and 1 + authors[new.author] >= max(authors.values()):
            return new  # a flood costs no search
        accounts, authors = accounts + Counter([new.account]), authors + Counter([new.author])
        every = [*self.by_content.values(), new]
        return max(every, key=lambda each: (accounts[each.account], authors[each.author], each.at))


class Copies:
    """Who was first to commit to each completion.

    Only a group whose author dates it later counts as copied, and only long texts do: a peer that delays another's
    records, or foresees a question and its short answers, can get no other peer blamed.
    """

    def __init__(self, own: str = "", max_remembered: int = MAX_REMEMBERED) -> None:
        """Start empty; `own` is this node's peer id: what it committed to itself, others can only have copied."""
        self._own = own
        self._max_remembered = max_remembered
        self._claims: dict[bytes, _Claims] = {}
        """Claims by question."""
        self._by_account: dict[str, OrderedDict[int, _Claim]] = {}
        """In the same order."""
        self._sizes: Counter[str] = Counter()
        """Completions by account."""
        self._streams = LruDict[int, str](MAX_STREAMS)
        """Peers by the seeds of their questions, the latest heard last."""

    @property
    def num_remembered(self) -> int:
        """Completions that are remembered."""
        return self._sizes.total()

    def note(self, heard: Commitment, account: str = "") -> None:
        """Remember a commitment, unless its author made it before; `account` is charged for the room it takes."""
        self._know(heard.peer_id)
        size = num_digests(heard.content)
        if not size or self._find(heard.peer_id, heard.content):
            return
        claim = _Claim(heard.peer_id, account, heard.content, heard.heard_at)
        others = self._claims.get(tag_of(claim.content))
        if others is not None and len(others.by_content) >= MAX_PER_QUESTION:
            if (excess := others.excess(claim)) is claim:
                return
            self._forget(excess)
        self._claims.setdefault(tag_of(claim.content), _Claims()).add(claim)
        self._by_account.setdefault(account, OrderedDict())[id(claim)] = claim
        self._sizes[account] += size
        while self.num_remembered > self._max_remembered:
            most = max(self._sizes, key=self._sizes.__getitem__)
            self._forget(next(iter(self._by_account[most].values())))

    def judge(self, group: RolloutGroup, now: float) -> Reason | None:
        """Why a group is not new, or None. It is a commitment itself, made `now` if it was not noted before.

        `copied`: its author took most completions from others; `repeated`: they are its own, of unclear origin, or
        short enough to coincide, or the question is another peer's.
        """
        self._know(group.peer_id)
        content, wanted = commitment(group), keys(group)
        if not wanted:
            return None
        self.note(Commitment(group.peer_id, content, now), self._own if group.peer_id == self._own else "")
        claims = list(self._claims[tag_of(content)].by_content.values()) if tag_of(content) in self._claims else []
        asker = self._asker(group)
        first = 0 if asker == group.peer_id else _first_of(group.peer_id, claims, content)
        known = _known(wanted, claims, first, group.peer_id)
        if (mine := self._find(group.peer_id, content)) is not None:
            mine.opened = True
        if len(known) <= REPEATED * len(wanted):
            return None if asker in ("", group.peer_id) else Reason.REPEATED
        heard_at = claims[first].at if first < len(claims) else now
        copied = [key for key, claim in known.items() if wanted[key] and self._is_proof(claim, group, heard_at)]
        return Reason.COPIED if len(copied) > REPEATED * len(wanted) else Reason.REPEATED

    def _know(self, peer_id: str) -> None:
        self._streams[stream_seed(peer_id)] = peer_id

    def _asker(self, group: RolloutGroup) -> str:
        """The peer from whose stream a group's question is; empty if none is known."""
        if isinstance(group.question, DatasetRef):
            return ""
        seed = group.question.seed
        first = (group.peer_id, self._own, self._streams.get(seed, ""))
        return next((peer_id for peer_id in first if peer_id and stream_seed(peer_id) == seed), "")

    def _is_proof(self, claim: _Claim, group: RolloutGroup, heard_at: float) -> bool:
        """Whether an earlier claim shows that the group's author copied."""
        if claim.author == group.peer_id:
            return False
        if claim.author == self._own and not isinstance(group.question, DatasetRef):
            return True  # nobody else was asked this question
        return min(heard_at, group.created_at) > claim.at + GRACE_S

    def _find(self, author: str, content: bytes) -> _Claim | None:
        claims = self._claims.get(tag_of(content))
        return claims.by_content.get((author, content)) if claims is not None else None

    def _forget(self, claim: _Claim) -> None:
        tag, of_account = tag_of(claim.content), self._by_account[claim.account]
        self._claims[tag].remove(claim)
        if not self._claims[tag].by_content:
            del self._claims[tag]
        del of_account[id(claim)]
        self._sizes[claim.account] -= num_digests(claim.content)
        if not of_account:
            del self._by_account[claim.account], self._sizes[claim.account]


def _first_of(author: str, claims: Sequence[_Claim], content: bytes) -> int:
    """Index of the author's first claim to most of these completions that is not another group's; else the end."""
    digests = digests_of(content)
    for index, claim in enumerate(claims):
        if claim.author == author and not claim.opened:
            common = digests & digests_of(claim.content)
            if len(common) > REPEATED * len(digests):
                return index
    return len(claims)


def _known(wanted: Mapping[bytes, bool], claims: Sequence[_Claim], first: int, author: str) -> dict[bytes, _Claim]:
    """The completions to which others had committed before the author did, at `first`, or the author with a group."""
    known: dict[bytes, _Claim] = {}
    for index, claim in enumerate(claims):
        if claim.opened if claim.author == author else index < first:
            digests = digests_of(claim.content)
            for key in wanted:
                if bound(claim.author, key) in digests:
                    known.setdefault(key, claim)
    return known
