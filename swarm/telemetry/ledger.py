"""Counts the outcome of every group, so that none disappears without a reason.

    received == used_external + sum(dropped) + pool + pending

where `pool` and `pending` are the unused groups still held.
"""

from __future__ import annotations

from collections import Counter

from swarm.reasons import Reason
from swarm.telemetry.records import GroupCounts


class Ledger:
    """Cumulative over a node's life: `snapshot` goes into metrics and checkpoints, `restore` resumes from it.

    Main thread only.
    """

    def __init__(self) -> None:
        self._generated = 0
        self._shared = 0
        self._received = 0
        self._offered = 0
        self._checked = 0
        self._used_local = 0
        self._used_external = 0
        self._reused_external = 0
        self._dropped: Counter[str] = Counter()
        self._local: Counter[str] = Counter()

    def generated(self, n: int) -> None:
        """Count own groups as generated."""
        self._generated += _count(n)

    def shared(self, n: int) -> None:
        """Count own groups as published."""
        self._shared += _count(n)

    def received(self, n: int) -> None:
        """Count received groups, including refused ones, which are then also `dropped`."""
        self._received += _count(n)

    def offered(self, n: int) -> None:
        """Count groups that others offered; those fetched are also `received`."""
        self._offered += _count(n)

    def checked(self, n: int) -> None:
        """Count received groups whose grading begins."""
        self._checked += _count(n)

    def dropped(self, reason: Reason, n: int = 1) -> None:
        """Count received groups as dropped. A group that an update has used is not dropped when it leaves the pool."""
        if _count(n):
            self._dropped[reason] += n

    def local(self, reason: Reason, n: int = 1) -> None:
        """Count own groups as not trained on."""
        if _count(n):
            self._local[reason] += n

    def used_local(self, n: int) -> None:
        """Count own groups as trained on."""
        self._used_local += _count(n)

    def used_external(self, n: int, again: int = 0) -> None:
        """Count received groups as trained on: `n` for the first time, `again` repeatedly."""
        self._used_external += _count(n)
        self._reused_external += _count(again)

    def unaccounted(self, pool: int, pending: int) -> int:
        """Received groups without an outcome, given the unused ones still held. Anything but 0 is a bug."""
        return self._received - self._used_external - self._dropped.total() - pool - pending

    def snapshot(self) -> GroupCounts:
        """A copy of all counts."""
        return GroupCounts(
            generated=self._generated,
            shared=self._shared,
            received=self._received,
            used_local=self._used_local,
            used_external=self._used_external,
            dropped=dict(self._dropped),
            local=dict(self._local),
            reused_external=self._reused_external,
            offered=self._offered,
            checked=self._checked,
        )

    def restore(self, counts: GroupCounts) -> None:
        """Replace all counts with a snapshot's."""
        self._generated = counts["generated"]
        self._shared = counts["shared"]
        self._received = counts["received"]
        self._used_local = counts["used_local"]
        self._used_external = counts["used_external"]
        self._dropped = Counter(counts["dropped"])
        self._local = Counter(counts.get("local", {}))
        self._reused_external = counts.get("reused_external", 0)
        self._offered = counts.get("offered", 0)
        self._checked = counts.get("checked", 0)


def _count(n: int) -> int:
    if n < 0:
        raise ValueError(f"a count of groups must be at least 0, got {n}")
    return n
