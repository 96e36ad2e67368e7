"""Which version a worker fetches next."""

from __future__ import annotations

from collections.abc import Mapping

from swarm.types import SnapshotManifest


def next_version(
    known: Mapping[int, SnapshotManifest], have: int, current: int | None, finish_behind: int
) -> int | None:
    """The version to fetch, of those known; None when the newest is here.

    `have` is the newest complete version. `current`, which is on its way, is finished first unless `finish_behind`
    newer ones are known. Otherwise it is the newest, or the first step to it when the changes from what is here take
    fewer bytes than the whole.
    """
    missing = [version for version in known if version > have]
    if not missing:
        return None
    if current in missing and sum(version > current for version in missing) < finish_behind:
        return current
    newest = step = max(missing)
    num_bytes = 0
    while (change := known[step].change) is not None:
        num_bytes += change.num_bytes
        parent = known[step].parent
        if parent == have and num_bytes < known[newest].whole.num_bytes:
            return step
        if parent not in missing:
            break
        step = parent
    return newest
