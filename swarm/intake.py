"""Groups of others on their way in: envelope checks are done, their questions are asked and graded again here.

exchange inbox ──▶ pending, in the verifier's queue ──▶ (id, group, verdict)
"""

from __future__ import annotations

from collections.abc import Callable, Container

from swarm.protocols import GroupExchange, Verifier
from swarm.telemetry.ledger import Ledger
from swarm.types import Grade, Rejection, RolloutGroup


class Intake:
    """What arrives, each once, with this node's own verdict on it."""

    def __init__(
        self,
        exchange: GroupExchange,
        verifier: Verifier,
        ledger: Ledger,
        max_pending_per_peer: int,
        refusal: Callable[[RolloutGroup], str | None] = lambda group: None,
    ) -> None:
        """Nothing has arrived yet. `refusal` says why a group need not be graded at all; None when it must be."""
        self._exchange = exchange
        self._verifier = verifier
        self._ledger = ledger
        self._max_pending_per_peer = max_pending_per_peer
        self._refusal = refusal
        self._pending: dict[str, RolloutGroup] = {}

    def __len__(self) -> int:
        """Groups that are being graded."""
        return len(self._pending)

    def receive(self, held: Container[str]) -> list[tuple[str, RolloutGroup, Grade | Rejection]]:
        """What has been graded since the last call; what has arrived begins to be, unless its id is `held`."""
        arrived, refused = self._exchange.receive()
        self._ledger.received(len(arrived) + sum(refused.values()))
        for reason, count in refused.items():
            self._ledger.dropped(reason, count)
        for content_id, group in arrived:
            # The exchange forgets what it saw long ago or before a restart; what is held here is still known.
            if content_id in self._pending or content_id in held:
                self._ledger.dropped("duplicate")
            elif sum(other.peer_id == group.peer_id for other in self._pending.values()) >= self._max_pending_per_peer:
                self._ledger.dropped("peer_quota")
            elif refusal := self._refusal(group):
                self._ledger.dropped(refusal)
                self._exchange.report(group.peer_id, refusal)
            else:
                self._pending[content_id] = group
                self._verifier.submit(content_id, group.question, [c.text for c in group.completions])
        return [(key, self._pending.pop(key), verdict) for key, verdict in self._verifier.collect()]
