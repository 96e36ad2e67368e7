"""Alerts as a node reports them itself: once each, into its log."""

from __future__ import annotations

from collections.abc import Iterator

from swarm.telemetry.alerts.checks import Alert, alerts, free_bytes
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import Event

AGAIN_AFTER_ROUNDS = 500
"""Between two reports of one alert."""
REPORTED_OTHERWISE = frozenset({"failed", "silent", "alone", "refused", "no-groups"})
"""The node has notes of these with more detail, or cannot report them."""


class AlertWatch:
    """Looks at a node's events as it writes them."""

    def __init__(self, history: PeerHistory) -> None:
        """`history` has no event yet, and reads none."""
        self.history = history
        self._reported: dict[str, int] = {}
        """The round in which each alert was last reported."""

    def take(self, event: Event) -> None:
        """Add what the node has just written."""
        self.history.take(event)

    def look(self, now: float) -> Iterator[Alert]:
        """What is newly wrong; `now` in Unix seconds."""
        event = self.history.latest
        if event is None:
            return
        for alert in alerts(self.history, now, free_bytes=free_bytes(self.history.path.parent)):
            last = self._reported.get(alert.key)
            if alert.key not in REPORTED_OTHERWISE and (last is None or event.round - last >= AGAIN_AFTER_ROUNDS):
                self._reported[alert.key] = event.round
                yield alert
