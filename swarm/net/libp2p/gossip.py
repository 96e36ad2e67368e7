"""py-libp2p's gossip, guarded against strangers' input and set up for use in a swarm; see `host`.

Importing this imports libp2p.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from itertools import chain, islice

from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb.rpc_pb2 import RPC, ControlMessage, Message
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.utils import safe_bytes_from_hex

from swarm.net.bandwidth import Rates
from swarm.net.counters import Counters

logger = logging.getLogger(__name__)

MESH_DEGREE, MESH_DEGREE_LOW, MESH_DEGREE_HIGH = 6, 4, 12
HEARTBEAT_S = 1
MAX_WAITING_FOR_A_SUBSCRIPTION = 8
"""Messages queued per connected peer that has not subscribed yet; each may be a megabyte."""
MESSAGES_PER_S, MESSAGES_AT_ONCE = 400.0, 4_000.0
"""Gossip messages per forwarder: four times this network's own rate."""
CONTROLS_PER_S, CONTROLS_AT_ONCE = 20.0, 200.0
"""Control messages per peer; an honest one sends a few with each heartbeat."""
MAX_ENTRIES = 8
"""Entries in one control message; a node has one topic."""
MAX_IDS = 1_000
"""Message ids in one entry; those of three heartbeats are fewer."""
MAX_RESENT, MAX_RESENT_BYTES = 64, 2**20
"""Messages sent in answer to one control message."""
MAX_TOPIC_CHARS = 256


class GuardedPubsub(Pubsub):  # type: ignore[misc]
    """Pubsub that survives strangers' input: a failing message or stream is counted and dropped."""

    def __init__(self, host: BasicHost, router: GossipSub, counters: Counters) -> None:
        """Attach `router` to `host`."""
        self._counters = counters
        self._rates = Rates(MESSAGES_PER_S, MESSAGES_AT_ONCE)
        super().__init__(host, router)
        # Peers remember numbers for minutes: after a restart, numbers must exceed all earlier ones.
        self.counter = time.time_ns()

    def handle_subscription(self, origin_id: ID, sub_message: RPC.SubOpts) -> None:
        """Record a peer's subscription, unless the topic is longer than any run's."""
        if len(sub_message.topicid) <= MAX_TOPIC_CHARS:
            super().handle_subscription(origin_id, sub_message)

    async def push_msg(self, msg_forwarder: ID, msg: Message) -> None:
        """Handle one message. py-libp2p runs this in a task whose failure would end the service."""
        if not self._rates.take(str(msg_forwarder), time.monotonic()):
            # Each message costs a signature check on the shared thread; lost records are repaired.
            self._counters.add("gossip_flood")
            return
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception:
            # py-libp2p's parsers may raise anything for strangers' bytes.
            self._counters.add("bad_messages")
            logger.debug("dropped a gossip message after an error", exc_info=True)

    def end(self) -> None:
        """Let the thread end that forgets old message ids; py-libp2p leaves it running."""
        # Not its `stop`, which waits for the thread.
        self.seen_messages._stop_event.set()


class GuardedRouter(GossipSub):  # type: ignore[misc]
    """Gossipsub that follows only a bounded part of a control message: what concerns its own topics."""

    def __init__(self, counters: Counters) -> None:
        """Set up as in the go daemon."""
        super().__init__(
            protocols=[PROTOCOL_ID_V11],
            degree=MESH_DEGREE,
            degree_low=MESH_DEGREE_LOW,
            degree_high=MESH_DEGREE_HIGH,
            heartbeat_interval=HEARTBEAT_S,
            adaptive_gossip_enabled=False,
            spam_protection_enabled=False,
            eclipse_protection_enabled=False,
            max_pending_messages_per_peer=MAX_WAITING_FOR_A_SUBSCRIPTION,
        )
        self._counters = counters
        self._controls = Rates(CONTROLS_PER_S, CONTROLS_AT_ONCE)

    async def handle_rpc(self, rpc: RPC, sender_peer_id: ID) -> None:
        """Handle the control part of an RPC."""
        if not self._controls.take(str(sender_peer_id), time.monotonic()):
            self._counters.add("gossip_flood")
            return
        if _is_flood(rpc.control):
            self._counters.add("gossip_flood")
        rpc.control.CopyFrom(self._bounded(rpc.control))
        await super().handle_rpc(rpc, sender_peer_id)

    def _bounded(self, control: ControlMessage) -> ControlMessage:
        """What this node follows of a control message."""
        kept = ControlMessage()
        for entry in islice((each for each in control.ihave if each.topicID in self.mesh), MAX_ENTRIES):
            kept.ihave.add(topicID=entry.topicID, messageIDs=entry.messageIDs[:MAX_IDS])
        kept.graft.extend(islice((each for each in control.graft if each.topicID in self.mesh), MAX_ENTRIES))
        for entry in islice((each for each in control.prune if each.topicID in self.mesh), MAX_ENTRIES):
            # Without the peers it names: py-libp2p would dial them wherever they are.
            kept.prune.add(topicID=entry.topicID, backoff=entry.backoff)
        if wanted := self._to_resend(chain.from_iterable(each.messageIDs for each in control.iwant)):
            kept.iwant.add(messageIDs=wanted)
        return kept

    def _to_resend(self, names: Iterable[bytes]) -> list[bytes]:
        """Those of the wanted messages that fit into one answer, each once."""
        found: list[bytes] = []
        room = MAX_RESENT_BYTES
        for name in dict.fromkeys(islice(names, MAX_IDS)):
            message = self.mcache.get(safe_bytes_from_hex(name) or b"")
            if message is None:
                continue
            room -= message.ByteSize()
            if room < 0 or len(found) == MAX_RESENT:
                break
            found.append(name)
        return found


def _is_flood(control: ControlMessage) -> bool:
    num_entries = sum(map(len, (control.ihave, control.iwant, control.graft, control.prune)))
    return num_entries > MAX_ENTRIES or any(
        len(each.messageIDs) > MAX_IDS for each in chain(control.ihave, control.iwant)
    )
