"""`summary.json`: a run in figures, for people and scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from swarm.telemetry.history import PeerHistory, PeerSummary, mean
from swarm.telemetry.verdict.benefit import Benefit, benefit


class SwarmSummary(TypedDict):
    """`summary.json`. Means are over the peers that train and know the figure."""

    peers: list[PeerSummary]
    mean_reward_first: float | None
    mean_reward_last: float | None
    mean_eval_before: float | None
    mean_eval_after: float | None
    control: PeerSummary | None
    """A lone node that the others are compared with; in no mean."""
    help: Benefit | None
    """What the others gained over the control."""
    config: Mapping[str, object]
    versions: Mapping[str, str]


def swarm_summary(
    histories: Sequence[PeerHistory],
    config: Mapping[str, object],
    versions: Mapping[str, str],
    control: PeerHistory | None = None,
) -> SwarmSummary:
    """What `summary.json` holds."""
    peers = [history.peer_summary() for history in histories]
    trained = [peer for peer in peers if peer["role"] != "worker"]
    return SwarmSummary(
        peers=peers,
        mean_reward_first=mean(peer["reward_first"] for peer in trained),
        mean_reward_last=mean(peer["reward_last"] for peer in trained),
        mean_eval_before=mean(peer["eval_before"] for peer in trained),
        mean_eval_after=mean(peer["eval_after"] for peer in trained),
        control=control.peer_summary() if control else None,
        help=benefit(histories, control) if control else None,
        config=config,
        versions=versions,
    )
