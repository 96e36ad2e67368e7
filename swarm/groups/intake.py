"""Groups of others on their way in: envelope checks are done, their questions are asked and graded again here.

exchange inbox ──▶ pending, in the verifier's queue ──▶ (id, group, verdict)
"""

from __future__ import annotations

from collections.abc import Callable, Container

from msgspec import Struct

from swarm.protocols import GroupExchange, Verifier
from swarm.telemetry.ledger import Ledger
from swarm.types import Grade, Rejection, RolloutGroup

MAX_PENDING_BYTES = 64 * 2**20
"""In memory, of all groups that are being graded, one at least."""
MAX_PART = 4
"""Those on one account are at most the so many'th part of that."""


def cannot_fit(group: RolloutGroup, max_chars: int) -> bool:
    """Whether some completion has more characters than a policy's tokens could cover: counted, and not read."""
    return any(len(completion.text) > max_chars for completion in group.completions)


class _Pending(Struct, frozen=True):
    group: RolloutGroup
    account: str
    num_bytes: int
    """In memory."""


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
        self._pending: dict[str, _Pending] = {}

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
            elif not self._has_room_for(new := self._weighed(group)):
                self._ledger.dropped("peer_quota")
            elif refusal := self._refusal(group):
                self._ledger.dropped(refusal)
                self._exchange.report(group.peer_id, refusal)
            else:
                self._pending[content_id] = new
                texts = [completion.text for completion in group.completions]
                self._verifier.submit(content_id, group.question, texts, new.account)
        return [(key, self._pending.pop(key).group, verdict) for key, verdict in self._verifier.collect()]

    def _weighed(self, group: RolloutGroup) -> _Pending:
        return _Pending(group, self._exchange.account(group.peer_id), group.memory_bytes)

    def _has_room_for(self, new: _Pending) -> bool:
        waiting = self._pending.values()
        if sum(other.group.peer_id == new.group.peer_id for other in waiting) >= self._max_pending_per_peer:
            return False
        every = sum(other.num_bytes for other in waiting)
        same = sum(other.num_bytes for other in waiting if other.account == new.account)
        return (not every or every + new.num_bytes <= MAX_PENDING_BYTES) and (
            not same or same + new.num_bytes <= MAX_PENDING_BYTES // MAX_PART
        )
