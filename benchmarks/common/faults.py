"""Simulated loss and delay below the transport, indistinguishable from a real bad network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

Deliver = Callable[[str, bytes], None]


class FaultyDaemon:
    """Faults of a node's incoming gossip and outgoing requests."""

    def __init__(self, loss: float, delay_s: float, seed: int) -> None:
        """Lose this fraction of messages and requests, and delay the others by this time."""
        self.loss = loss
        self.delay_s = delay_s
        self.lost = 0
        self._random = random.Random(seed)

    def install(self) -> None:
        """Intercept what reaches the transport, and its calls to its daemon, for the whole process.

        Records are lost before the transport notes them, so its repair must detect by itself what is missing.
        """
        # Late import: this loads hivemind, which loads torch.
        from swarm.errors import PeerUnreachable
        from swarm.net.hivemind.daemon import Daemon
        from swarm.net.membership.traffic import RecordTraffic

        call, receive = Daemon.call, RecordTraffic.receive_gossip

        def faulty_receive(records: RecordTraffic, helper: str, record: bytes) -> None:
            self.wrap(partial(receive, records))(helper, record)

        async def faulty_call(daemon: Daemon, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
            await asyncio.sleep(self.delay_s)
            if self.loses():
                raise PeerUnreachable(f"{peer_id} did not answer {protocol}: lost by the fault layer")
            reply = await call(daemon, peer_id, protocol, payload, timeout_s)
            await asyncio.sleep(self.delay_s)
            return reply

        RecordTraffic.receive_gossip = faulty_receive  # type: ignore[method-assign, assignment]
        Daemon.call = faulty_call  # type: ignore[method-assign, assignment]

    def wrap(self, deliver: Deliver) -> Deliver:
        """A delayed or lost delivery."""

        def late(sender: str, message: bytes) -> None:
            if not self.loses():
                asyncio.get_running_loop().call_later(self.delay_s, deliver, sender, message)

        return late

    def loses(self) -> bool:
        """Decide the fate of one message; counts lost ones."""
        gone = self._random.random() < self.loss
        self.lost += gone
        return gone
