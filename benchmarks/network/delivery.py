"""The definition of the delivered fraction: which node should have received which group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.common.report import percentile

BACKFILL_WINDOW_S = 60.0
"""A receiver that starts within this time after a publication must still receive the group."""
STAY_S = 2.0
"""A receiver counts once it has lived this long after both the publication and its own start."""
LAST_WORDS_S = 1.0
"""A group shared this shortly before its publisher was killed may never have left it."""
TAIL_S = 2.0
"""Groups shared this shortly before publishing stops are not counted."""

DEFINITION = (
    "Delivered fraction: of all pairs of a shared group and a node other than its publisher, those in which the node "
    f"took the verified group out of its exchange. A pair counts when the node was live (started, not killed) at the "
    f"publication, or came up within {BACKFILL_WINDOW_S:g} s after it, and then stayed for {STAY_S:g} s; restarts keep "
    "what an earlier life of the same identity got. Groups whose publisher was killed within "
    f"{LAST_WORDS_S:g} s of sharing them are left out."
)

GroupKey = tuple[str, int]
"""(publisher's peer id, sequence number)"""


@dataclass(frozen=True)
class Life:
    """One process of a node, in Unix seconds."""

    start: float
    end: float | None = None
    """None if it lived until the end of the measurement."""

    def at(self, moment: float) -> bool:
        """Whether it was live at this time."""
        return self.start <= moment and (self.end is None or moment < self.end)


@dataclass
class NodeLog:
    """One node's records over all its processes."""

    peer_id: str
    lives: list[Life] = field(default_factory=list)
    published: dict[int, float] = field(default_factory=dict)
    """Sequence number to Unix seconds."""
    got: dict[GroupKey, float] = field(default_factory=dict)
    """Group to the Unix seconds of its first arrival."""

    def published_at(self, moment: float) -> bool:
        """Whether a group shared at `moment` can have left the node."""
        return not any(life.end is not None and 0 <= life.end - moment < LAST_WORDS_S for life in self.lives)


def is_due(published: float, lives: Sequence[Life], *, window_s: float = BACKFILL_WINDOW_S) -> bool:
    """Whether a node with these lives must have received a group published at this time; with a window of 0, only if
    live then."""
    for life in lives:
        there_from = max(published, life.start)
        if life.start <= published + window_s and (life.end is None or life.end >= there_from + STAY_S):
            return True
    return False


@dataclass(frozen=True)
class Delivery:
    """One pair that counts."""

    key: GroupKey
    receiver: str
    published: float
    arrived: float | None

    @property
    def latency_s(self) -> float | None:
        """Latency from sharing to receipt; None when it never arrived."""
        return None if self.arrived is None else self.arrived - self.published


def deliveries(
    logs: Sequence[NodeLog], *, window_s: float = BACKFILL_WINDOW_S, since: float = 0.0, before: float = float("inf")
) -> Iterator[Delivery]:
    """Every pair that counts, of groups published in [since, before)."""
    for publisher in logs:
        for sequence, published in publisher.published.items():
            if not since <= published < before or not publisher.published_at(published):
                continue
            for receiver in logs:
                if receiver is not publisher and is_due(published, receiver.lives, window_s=window_s):
                    key = (publisher.peer_id, sequence)
                    yield Delivery(key, receiver.peer_id, published, receiver.got.get(key))


def fraction(pairs: Sequence[Delivery]) -> float | None:
    """Fraction of the counted pairs that arrived; None without pairs."""
    return sum(pair.arrived is not None for pair in pairs) / len(pairs) if pairs else None


def latency_ms(pairs: Sequence[Delivery], percent: float) -> float | None:
    """A percentile of the latencies of arrived groups."""
    value = percentile([pair.latency_s for pair in pairs if pair.latency_s is not None], percent)
    return None if value is None else value * 1e3


def ratio(value: float | None, of: float | None) -> float | None:
    """`value` in terms of `of`; None where one is missing or `of` is 0."""
    return value / of if value is not None and of else None
