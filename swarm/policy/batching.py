"""How the rows of an update are cut: minibatches, one optimizer step each, and micro-batches that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from swarm.policy.rows import Row


def minibatches(groups: Sequence[list[Row]], num_parts: int) -> list[list[Row]]:
    """Whole groups dealt into `num_parts`; fewer when there are fewer groups."""
    num_parts = min(num_parts, len(groups))
    return [[row for group in groups[i::num_parts] for row in group] for i in range(num_parts)]


def micro_batches(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Rows of similar length together, each batch within the token budget once padded, at least one row."""
    micro: list[Row] = []
    for row in sorted(rows, key=lambda row: row.length):
        if micro and (len(micro) + 1) * row.length > max_tokens:
            yield micro
            micro = []
        micro.append(row)
    if micro:
        yield micro
