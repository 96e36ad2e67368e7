"""What became of received groups, drops that are no loss apart from the others."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from swarm.reasons import NO_LOSS, sentence
from swarm.telemetry.history import PeerSummary, drop_reasons, num_dropped, split_drops
from swarm.telemetry.records import GroupCounts
from swarm.telemetry.sections.html import pairs, peer_name, table


def dropped_in_words(counts: Sequence[GroupCounts]) -> str:
    """How many drops were no loss, and how many groups were refused."""
    spare, refused = (sum(count for groups in counts for _, count in split_drops(groups)[kind]) for kind in (0, 1))
    parts = [f"{n:,} {what}" for n, what in ((spare, "dropped without loss"), (refused, "refused")) if n]
    return "".join(f"; {part}" for part in parts)


def ledger_table(peers: Sequence[PeerSummary]) -> str:
    """Every received group of each peer by its outcome."""
    reasons = [reason for reason, _ in drop_reasons(peer["groups"] for peer in peers)]
    spare = [reason for reason in reasons if reason in NO_LOSS]
    refused = [reason for reason in reasons if reason not in NO_LOSS]
    head = ["peer", "shared", "received", "= used", *(f"+ no loss: {reason}" for reason in spare)]
    head += [*(f"+ refused: {reason}" for reason in refused), "+ in pool", "+ waiting or being verified"]
    counts = [
        [
            peer["groups"]["shared"],
            peer["groups"]["received"],
            peer["groups"]["used_external"],
            *(peer["groups"]["dropped"].get(reason, 0) for reason in (*spare, *refused)),
            peer["pool"],
            peer["pending"],
        ]
        for peer in peers
    ]
    missing = [
        peer["groups"]["received"]
        - peer["groups"]["used_external"]
        - num_dropped(peer["groups"])
        - peer["pool"]
        - peer["pending"]
        for peer in peers
    ]
    if any(missing):
        head.append("+ unaccounted for")
        for row, n in zip(counts, missing, strict=True):
            row.append(n)
    rows = [(peer_name(peer), *(f"{n:,}" for n in row)) for peer, row in zip(peers, counts, strict=True)]
    if len(peers) > 1:
        rows.append(("all", *(f"{sum(column):,}" for column in zip(*counts, strict=True))))
    note = (
        "One shared group counts once at its sender and once at every peer it reached. A received group counts once: "
        "as used if any update used it, else under its drop reason, else as still held."
    )
    return (
        table(head, rows, text_columns=1, total=len(peers) > 1)
        + f'<p class="note">{note}</p>'
        + _reasons("No loss: more came than the mix takes, or there was nothing to learn from it", spare)
        + _reasons("Refused: look at these if they are many", refused)
    )


def _reasons(title: str, reasons: Sequence[str]) -> str:
    return f"<h3>{escape(title)}</h3>{pairs((reason, sentence(reason)) for reason in reasons)}" if reasons else ""
