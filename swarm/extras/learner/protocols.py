"""The interfaces between the parts of a learner and of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from swarm.files import RandomAccessFile
from swarm.protocols import Updater
from swarm.reasons import Reason
from swarm.types import GradedGroup, UpdateReport


class StreamingUpdater(Updater, Protocol):
    """Also accumulates an update's groups as they arrive, sampled by other nodes with snapshots of this policy."""

    def refusal(self, group: GradedGroup) -> Reason | None:
        """Why this policy cannot have sampled the group as claimed; None when it can."""

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        """Add groups to the open update; the policy does not change."""

    def apply(self) -> UpdateReport:
        """Apply the update of all accumulated groups; it equals the update of one batch of them."""

    def abandon(self) -> None:
        """Discard the open update."""

    def snapshot(self, path: Path) -> None:
        """Write the current policy to a file, packed. Raises `OSError`; nothing stays then."""


class Auditor(Protocol):
    """Checks groups against the snapshots that they name."""

    def keep(self, version: int, snapshot: RandomAccessFile) -> None:
        """Remember a published snapshot, and forget those that no admissible group can still name."""

    def verdict(self, group: GradedGroup) -> Reason | None:
        """`wrong_logprobs` when the group's log-probabilities are not those of the snapshots it names, `wrong_version`
        when there are no such snapshots, `unlike_samples` when its worker's completions cannot be samples of them."""


class SnapshotPublisher(Protocol):
    """Takes a learner's weights and distributes them."""

    def publish(self, version: int, snapshot: RandomAccessFile) -> None:
        """Announce a snapshot (whole, packed weights) to the run and serve it; returns at once.

        The file is moved to where it is served, or deleted: one that is superseded before it was announced may be left
        out.

        Raises `SnapshotError` unless the version is above every earlier one, those before a restart included, and its
        size can be published.
        """

    def check(self) -> None:
        """Raises `SnapshotError` if no snapshot will be published any more: no worker could continue."""


class SnapshotFeed(Protocol):
    """Gives a worker its learner's weights."""

    def newest(self) -> tuple[int, RandomAccessFile] | None:
        """Version and file of the newest complete, verified snapshot, only to be read; never blocks.

        None when none is newer than the last one returned.
        """

    def announced(self) -> int | None:
        """The newest version that the learner has signed, complete here or not."""
