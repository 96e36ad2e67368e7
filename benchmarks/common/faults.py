"""Simulated loss and delay below the transport, indistinguishable from a real bad network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

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
        """Intercept the transport's calls to its daemon, for the whole process.

        Gossip is lost below the transport, whose repair must therefore detect missing records itself.
        """
        # Late import: this loads hivemind, which loads torch.
        from swarm.errors import PeerUnreachable
        from swarm.net.hivemind.daemon.process import Daemon

        subscribe, call = Daemon.subscribe, Daemon.call

        async def faulty_subscribe(daemon: Daemon, topic: str, deliver: Deliver) -> None:
            await subscribe(daemon, topic, self.wrap(deliver))

        async def faulty_call(daemon: Daemon, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
            await asyncio.sleep(self.delay_s)
            if self.loses():
                raise PeerUnreachable(f"{peer_id} did not answer {protocol}: lost by the fault layer")
            reply = await call(daemon, peer_id, protocol, payload, timeout_s)
            await asyncio.sleep(self.delay_s)
            return reply

        Daemon.subscribe = faulty_subscribe  # type: ignore[method-assign, assignment]
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
