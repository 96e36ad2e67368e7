"""Draws the groups of one update, local and external: the same for every mixing policy.

Source: arXiv:2509.08721, section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct

from swarm.received.authors import AuthorOf, authors_of, fair_part, itself
from swarm.sapo.mixing.base import Candidate, Decision
from swarm.types import GradedGroup, ReceivedGroup

T = TypeVar("T")
Screen = Callable[[Sequence[ReceivedGroup]], Sequence[GradedGroup | None]]
"""Returns the part of each group to learn from; None for none of it."""
MAX_DRAWS = 4
"""Draws per update; each after the first replaces refused groups."""


class Mix(Struct, frozen=True):
    """The groups of one update, and the shortfalls; ledger and pool are settled by it after the update."""

    local: tuple[GradedGroup, ...]
    external: tuple[GradedGroup, ...]
    drawn: tuple[ReceivedGroup, ...]
    """Those whose parts `external` are, in its order."""
    refused: tuple[ReceivedGroup, ...]
    """Groups that the screen refused: drawn ones, and those that a policy had scored."""
    external_wanted: int
    """J, less what the watch over drawdowns takes from it."""
    local_shortfall: int
    external_shortfall: int
    filled: int
    """Local groups beyond I that replace missing external ones."""
    decision: Decision
    """The policy's."""


def _whole(drawn: Sequence[ReceivedGroup]) -> list[GradedGroup | None]:
    return [received.graded for received in drawn]


def mix(
    local: Sequence[GradedGroup],
    candidates: Sequence[Candidate],
    decision: Decision,
    rng: np.random.Generator,
    *,
    fill: Literal["none", "local"] = "none",
    share: float = 1.0,
    author_of: AuthorOf = itself,
    screen: Screen = _whole,
) -> Mix:
    """Sample I of the local groups, uniformly, and J of the candidates, by weight; both without replacement.

    No author exceeds its fair part of J: J divided by the available authors, rounded up. Groups that `screen` refuses
    are replaced from other authors. All input groups have signal. `share` scales J.
    """
    external_wanted = int(share * decision.external)
    draw = _Draw(candidates, decision.weights, external_wanted, author_of, rng)
    for _ in range(MAX_DRAWS):
        if not (drawn := draw.more()):
            break
        draw.settle(drawn, screen([candidate.received for candidate in drawn]))
    external_shortfall = decision.external - len(draw.chosen)
    wanted = decision.local + (external_shortfall if fill == "local" else 0)
    chosen_local = _sample(local, wanted, rng)
    return Mix(
        local=tuple(chosen_local),
        external=tuple(group for _, group in draw.chosen),
        drawn=tuple(candidate.received for candidate, _ in draw.chosen),
        refused=tuple(draw.refused),
        external_wanted=external_wanted,
        local_shortfall=max(0, decision.local - len(chosen_local)),
        external_shortfall=external_shortfall,
        filled=max(0, len(chosen_local) - decision.local),
        decision=decision,
    )


def some(candidates: Sequence[Candidate], count: int, author_of: AuthorOf, rng: np.random.Generator) -> list[Candidate]:
    """At most `count` random candidates, from each author at most its fair part."""
    return _Draw(candidates, None, count, author_of, rng).more()


def authors(candidates: Sequence[Candidate], author_of: AuthorOf) -> dict[str, str]:
    """The author that each sender counts as."""
    return authors_of((candidate.sender for candidate in candidates), author_of)


class _Draw:
    """Candidates in random order, from each author at most its fair part of `count`."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        weights: Sequence[float] | None,
        count: int,
        author_of: AuthorOf,
        rng: np.random.Generator,
    ) -> None:
        self.chosen: list[tuple[Candidate, GradedGroup]] = []
        """Each with the part of it to learn from."""
        self.refused: list[ReceivedGroup] = []
        self._count = count
        self._left = [candidates[i] for i in in_random_order(len(candidates), weights, rng)]
        self._keys = authors(candidates, author_of)

    def more(self) -> list[Candidate]:
        """Draw candidates for the free slots."""
        if len(self.chosen) == self._count:
            return []
        chosen = [candidate for candidate, _ in self.chosen]
        num_authors = len({self._author(candidate) for candidate in [*self._left, *chosen]})
        fair = fair_part(self._count, num_authors)
        taken = Counter(self._author(candidate) for candidate in chosen)
        drawn: list[Candidate] = []
        left: list[Candidate] = []
        for candidate in self._left:
            author = self._author(candidate)
            if len(self.chosen) + len(drawn) < self._count and taken[author] < fair:
                taken[author] += 1
                drawn.append(candidate)
            else:
                left.append(candidate)
        self._left = left
        return drawn

    def settle(self, drawn: Sequence[Candidate], screened: Sequence[GradedGroup | None]) -> None:
        """Keep the accepted groups; an author with a refused group is not drawn again."""
        out = set()
        for candidate, kept in zip(drawn, screened, strict=True):
            if kept is None:
                self.refused.append(candidate.received)
                out.add(candidate.sender)
            else:
                self.chosen.append((candidate, kept))
        self._left = [candidate for candidate in self._left if candidate.sender not in out]

    def _author(self, candidate: Candidate) -> str:
        return self._keys[candidate.sender]


def in_random_order(count: int, weights: Sequence[float] | None, rng: np.random.Generator) -> list[int]:
    """The numbers 0 to `count` - 1 in random order, without those of weight 0; weights are finite and not negative.

    Each next one is drawn from those left in proportion to its weight. Source: arXiv:1903.06059 (Gumbel
    top-k).
    """
    if weights is None:
        return [int(i) for i in rng.permutation(count)]
    known = np.asarray(weights, dtype=float)
    positive = np.flatnonzero(known)
    keys = np.log(known[positive]) + rng.gumbel(size=len(positive))
    return [int(i) for i in positive[np.argsort(-keys, kind="stable")]]


def _sample(items: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    if len(items) <= count:
        return list(items)
    return [items[i] for i in rng.choice(len(items), size=count, replace=False)]
