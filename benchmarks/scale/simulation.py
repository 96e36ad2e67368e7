"""Gossip among many nodes as a sequence of events in simulated time.

    come       connections to random nodes that are there   -> `links`
    heartbeat  grafts and prunes the mesh, tells ids of recent messages to some peers outside it
    publish    a new message                                -> forward
    arrive     the first copy of a message at a node        -> forward to the mesh, but for where it came from
    asked      somebody who was told an id wants the message -> one copy
    repair     what one random peer has and this node lacks -> copies, not forwarded
    vanish     a node is gone; its peers notice later

Every copy goes through the sender's uplink, one after another, then over the link's delay. A copy that cannot be the
first to arrive is counted, and is no event: only the earliest one so far of each message and node is in the queue.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from benchmarks.scale.parameters import PACKET_OVERHEAD, Costs, Gossip, Load, Network, slow_start_rounds
from swarm.net.records.repair import GOSSIP_GRACE_S

WARM_UP_S = 20.0
"""All nodes come in the first half; then the mesh settles."""
IDLE_S = 1.0
"""A connection that was idle for longer starts again with a small window."""
BUFFER_BYTES = 2**18
"""What the connection itself holds for a peer, beside the daemon's queue."""
LEAST_TAIL_S = 4.0
"""Ids of the last message are told for three heartbeats."""
LONGEST_TAIL_S = 45.0


@dataclass
class Outcome:
    """What happened to the groups; lists are by node, those who came to replace others at the end."""

    num_groups: int
    latencies_s: list[float]
    """From sharing to the node's hands, of every delivery to a node that was there at the sharing; sorted."""
    last_s: list[float]
    """By group: when the last node had it, of those that got it."""
    due: int
    """Pairs of a group and a node other than its publisher that was there from its publication to the end."""
    delivered: int
    """Of those, the ones in which the node got it."""
    hops: list[int]
    """Of every delivery."""
    copies_sent: list[int]
    copies_received: list[int]
    ids_sent: list[int]
    """Message ids told, and asked for."""
    pulled: int
    """Copies sent because their id was told."""
    repaired: int
    """Groups that repair brought."""
    queue_drops: int
    mesh_degrees: list[int]
    links: list[int]
    """Connections of each node, at the end."""

    @property
    def fraction(self) -> float:
        """Of the pairs that are due, those delivered."""
        return self.delivered / self.due if self.due else 1.0

    @property
    def copies_per_delivery(self) -> float:
        """1 would be without duplicates."""
        return sum(self.copies_received) / max(1, len(self.latencies_s))


@dataclass
class _Message:
    origin: int
    published: float
    earliest: array[float]
    """By node: the earliest arrival that is known; infinite: none yet."""
    at: array[float]
    """By node: when it was in the node's hands, infinite before."""
    hops: bytearray
    missing: int
    """Nodes without it that were there when it was published and have not vanished."""


@dataclass
class _Node:
    delays: dict[int, float] = field(default_factory=dict)
    """To each connected peer."""
    mesh: list[int] = field(default_factory=list)
    used: dict[int, float] = field(default_factory=dict)
    """When a message was last sent to a peer."""
    recent: list[list[int]] = field(default_factory=lambda: [[]])
    """Messages by heartbeat, the latest first."""
    backoff: dict[int, float] = field(default_factory=dict)
    uplink_free: float = 0.0
    came: float = inf
    gone: float = inf


def simulate(network: Network, load: Load, gossip: Gossip, costs: Costs, *, seed: int = 0) -> Outcome:
    """Run until every group has arrived everywhere, or for `LONGEST_TAIL_S` after the last one was shared."""
    return _Swarm(network, load, gossip, costs, seed).run()


class _Swarm:
    def __init__(self, network: Network, load: Load, gossip: Gossip, costs: Costs, seed: int) -> None:
        self._network, self._load, self._gossip = network, load, gossip
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[..., None], tuple[int, ...]]] = []
        self._num_events = 0
        self._now = 0.0
        wire = costs.wire_bytes.at(load.record_bytes) * PACKET_OVERHEAD
        self._copy_s = 8 * wire / network.uplink_bits_per_s
        self._id_s = 8 * costs.id_bytes * PACKET_OVERHEAD / network.uplink_bits_per_s
        self._rounds = slow_start_rounds(wire)
        self._queue_s = (gossip.queue_messages + BUFFER_BYTES / load.record_bytes) * self._copy_s
        self._first_s = costs.first_s.at(load.record_bytes)
        self._duplicate_s = costs.duplicate_s.at(load.record_bytes)
        self._send_s = costs.send_s.at(load.record_bytes)
        self._app_s = costs.take_in_s.at(load.record_bytes) + costs.open_s.at(load.record_bytes)
        window_s = load.num_groups / load.groups_per_s
        # With churn, as many peers are gone unnoticed when sharing begins as will be later.
        self._shared_from = WARM_UP_S + (network.notice_s if network.churn_per_min else 0.0)
        self._shared_until = self._shared_from + window_s
        churn_s = self._shared_until + LONGEST_TAIL_S - WARM_UP_S
        num_comers = round(network.num_nodes * network.churn_per_min * churn_s / 60)
        self._nodes = [_Node() for _ in range(network.num_nodes + num_comers)]
        self._alive: list[int] = []
        self._there = bytearray(len(self._nodes))
        self._core_free = [0.0] * (network.cores or len(self._nodes))
        self._messages: list[_Message] = []
        self._open: set[int] = set()
        self.sent, self.received, self.ids = ([0] * len(self._nodes) for _ in range(3))
        self.pulled = self.repaired = self.queue_drops = 0

    def run(self) -> Outcome:
        network, draw = self._network, self._random
        for node in range(network.num_nodes):
            self._at(node * WARM_UP_S / 2 / network.num_nodes, self._come, node)
        for _ in range(self._load.num_groups):
            self._at(draw.uniform(self._shared_from, self._shared_until), self._publish)
        for comer in range(network.num_nodes, len(self._nodes)):
            moment = draw.uniform(WARM_UP_S, self._shared_until + LONGEST_TAIL_S)
            self._at(moment, self._vanish)
            self._at(moment, self._come, comer)
        events, end = self._events, self._shared_until + LONGEST_TAIL_S
        while events:
            now, _, act, arguments = heappop(events)
            if now > end or (now > self._shared_until + LEAST_TAIL_S and not self._open):
                break
            self._now = now
            act(*arguments)
        return self._outcome()

    def _at(self, moment: float, act: Callable[..., None], *arguments: int) -> None:
        self._num_events += 1  # so that equal times stay in order and actions are never compared
        heappush(self._events, (moment, self._num_events, act, arguments))

    # -- connections and mesh

    def _come(self, node: int) -> None:
        network, draw, own = self._network, self._random, self._nodes[node]
        own.came = self._now
        for peer in draw.sample(self._alive, min(network.dials, len(self._alive))):
            delay_s = network.delay_s * draw.lognormvariate(0.0, network.delay_sigma)
            own.delays[peer] = self._nodes[peer].delays[node] = delay_s
        self._alive.append(node)
        self._there[node] = 1
        self._at(self._now + draw.uniform(0, self._gossip.heartbeat_s), self._heartbeat, node)
        if self._gossip.repair_every_s:
            self._at(self._now + draw.uniform(0, self._gossip.repair_every_s), self._repair, node)

    def _vanish(self) -> None:
        place = self._random.randrange(len(self._alive))
        node, self._alive[place] = self._alive[place], self._alive[-1]
        self._alive.pop()
        self._nodes[node].gone = self._now
        self._there[node] = 0
        for number in tuple(self._open):
            if self._messages[number].at[node] == inf:
                self._one_less(number, node)
        self._at(self._now + self._network.notice_s, self._notice, node)

    def _notice(self, node: int) -> None:
        for peer in self._nodes[node].delays:
            other = self._nodes[peer]
            other.delays.pop(node, None)
            if node in other.mesh:
                other.mesh.remove(node)

    def _heartbeat(self, node: int) -> None:
        if not self._there[node]:
            return
        own, gossip = self._nodes[node], self._gossip
        if len(own.mesh) < gossip.degree_low:
            self._graft(node, gossip.degree - len(own.mesh))
        elif len(own.mesh) > gossip.degree_high:
            for peer in self._random.sample(own.mesh, len(own.mesh) - gossip.degree):
                self._prune(node, peer)
        self._tell_ids(node)
        self._at(self._now + gossip.heartbeat_s, self._heartbeat, node)

    def _graft(self, node: int, wanted: int) -> None:
        own, now = self._nodes[node], self._now
        free = [peer for peer in own.delays if peer not in own.mesh and own.backoff.get(peer, 0.0) <= now]
        for peer in self._random.sample(free, min(wanted, len(free))):
            other = self._nodes[peer]
            # One that has vanished unnoticed takes the place, and says nothing.
            own.mesh.append(peer)
            if len(other.mesh) >= self._gossip.degree_high or other.backoff.get(node, 0.0) > now:
                self._prune(peer, node)
            elif node not in other.mesh:
                other.mesh.append(node)

    def _prune(self, node: int, peer: int) -> None:
        until = self._now + self._gossip.prune_backoff_s
        for here, there in ((node, peer), (peer, node)):
            mesh = self._nodes[here].mesh
            if there in mesh:
                mesh.remove(there)
            self._nodes[here].backoff[there] = until

    # -- messages

    def _publish(self) -> None:
        count, number = len(self._nodes), len(self._messages)
        origin = self._random.choice(self._alive)
        message = _Message(origin, self._now, array("d", [inf]) * count, array("d", [inf]) * count, bytearray(count), 0)
        message.earliest[origin] = message.at[origin] = self._now
        message.missing = len(self._alive) - 1
        self._messages.append(message)
        if message.missing:
            self._open.add(number)
        self._nodes[origin].recent[0].append(number)
        self._forward(origin, number, origin, self._now)

    def _arrive(self, node: int, number: int, source: int, forwards: int) -> None:
        message, now = self._messages[number], self._now
        if message.at[node] != inf or not self._there[node]:
            return
        core = node % len(self._core_free)
        done = max(now, self._core_free[core]) + self._first_s
        self._core_free[core] = done + self._app_s
        message.at[node] = done + self._app_s
        message.hops[node] = min(255, message.hops[source] + 1)
        self._one_less(number, node)
        if forwards:
            self._nodes[node].recent[0].append(number)
            self._forward(node, number, source, done)
        else:
            self.repaired += 1

    def _one_less(self, number: int, node: int) -> None:
        message = self._messages[number]
        message.missing -= self._nodes[node].came <= message.published
        if not message.missing:
            self._open.discard(number)

    def _forward(self, node: int, number: int, source: int, now: float) -> None:
        own, origin = self._nodes[node], self._messages[number].origin
        mesh = own.mesh
        start = int(self._random.random() * len(mesh)) if mesh else 0
        full_at = self._full_at(node, now)
        for peer in mesh[start:] + mesh[:start]:
            if peer in (source, origin):
                continue
            if own.uplink_free > full_at:
                self.queue_drops += 1
            else:
                self._send(node, peer, number, now, 1)

    def _full_at(self, node: int, now: float) -> float:
        """The queue for a peer is full when the uplink is taken beyond this: what waits is spread over the mesh."""
        sends_from = max(now, self._core_free[node % len(self._core_free)])
        return sends_from + self._queue_s * max(1, len(self._nodes[node].mesh))

    def _send(self, node: int, peer: int, number: int, now: float, forwards: int) -> None:
        """One copy, through the node's core, its uplink and the link; what is lost has cost the sender all the same."""
        own, message = self._nodes[node], self._messages[number]
        cores = self._core_free
        core = node % len(cores)
        ready = cores[core] = (cores[core] if cores[core] > now else now) + self._send_s
        leaves = own.uplink_free = (own.uplink_free if own.uplink_free > ready else ready) + self._copy_s
        self.sent[node] += 1
        delay_s = own.delays.get(peer)
        # Repair goes over streams, which lose nothing.
        if delay_s is None or not self._there[peer] or (forwards and self._lost()):
            return
        arrives = leaves + delay_s
        if self._rounds:
            if now - own.used.get(peer, -inf) > IDLE_S:
                arrives += 2 * delay_s * self._rounds
            own.used[peer] = now
        self.received[peer] += 1
        if arrives < message.earliest[peer]:
            message.earliest[peer] = arrives
            self._at(arrives, self._arrive, peer, number, node, forwards)
        elif self._duplicate_s:
            cores[peer % len(cores)] += self._duplicate_s

    def _tell_ids(self, node: int) -> None:
        own, gossip = self._nodes[node], self._gossip
        known = [number for heartbeat in own.recent for number in heartbeat]
        own.recent = [[], *own.recent[: gossip.heartbeats_told - 1]]
        if not known:
            return
        outside = [peer for peer in own.delays if peer not in own.mesh]
        told = min(len(outside), max(gossip.degree_lazy, int(gossip.gossip_factor * len(outside))))
        self.ids[node] += told * len(known)
        own.uplink_free = max(self._now, own.uplink_free) + told * len(known) * self._id_s
        news = [number for number in known if number in self._open]
        for peer in self._random.sample(outside, told):
            for number in news:
                if self._messages[number].at[peer] == inf and not self._lost():
                    self._at(self._now + own.delays[peer], self._told, peer, number, node)

    def _told(self, node: int, number: int, source: int) -> None:
        if self._messages[number].at[node] == inf and self._there[node]:
            self.ids[node] += 1
            delay_s = self._nodes[node].delays.get(source)
            if delay_s is not None and not self._lost():
                self._at(self._now + delay_s, self._asked, source, number, node)

    def _asked(self, node: int, number: int, peer: int) -> None:
        if not self._there[node]:
            return
        if self._nodes[node].uplink_free > self._full_at(node, self._now):
            self.queue_drops += 1
        else:
            self.pulled += 1
            self._send(node, peer, number, self._now, 1)

    def _lost(self) -> bool:
        return bool(self._network.loss) and self._random.random() < self._network.loss

    def _repair(self, node: int) -> None:
        if not self._there[node]:
            return
        own, draw = self._nodes[node], self._random
        if own.delays:
            peer = draw.choice(list(own.delays))
            for number in self._missed(node, peer) if self._there[peer] else ():
                # Two requests before it, one for the list and one for the records.
                self._at(self._now + 3 * own.delays[peer], self._given, peer, number, node)
        self._at(self._now + self._gossip.repair_every_s * draw.uniform(0.8, 1.2), self._repair, node)

    def _missed(self, node: int, peer: int) -> Iterator[int]:
        before = self._now + self._nodes[node].delays[peer] - GOSSIP_GRACE_S
        for number in sorted(self._open):
            message = self._messages[number]
            if message.at[node] == inf and message.at[peer] <= before:
                yield number

    def _given(self, node: int, number: int, peer: int) -> None:
        if self._there[node]:
            self._send(node, peer, number, self._now, 0)

    # -- what came of it

    def _outcome(self) -> Outcome:
        latencies: list[float] = []
        lasts: list[float] = []
        hops: list[int] = []
        due = delivered = 0
        for message in self._messages:
            got = []
            for node, own in enumerate(self._nodes):
                if node == message.origin or own.came > message.published:
                    continue
                due += own.gone == inf
                if message.at[node] != inf:
                    delivered += own.gone == inf
                    got.append(message.at[node] - message.published)
                    hops.append(message.hops[node])
            latencies += got
            lasts += [max(got)] if got else []
        latencies.sort()
        return Outcome(
            len(self._messages),
            latencies,
            lasts,
            due,
            delivered,
            hops,
            self.sent,
            self.received,
            self.ids,
            self.pulled,
            self.repaired,
            self.queue_drops,
            [len(self._nodes[node].mesh) for node in self._alive],
            [len(self._nodes[node].delays) for node in self._alive],
        )
