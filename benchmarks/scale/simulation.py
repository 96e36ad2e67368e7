"""Feeds among many nodes as a sequence of events in simulated time.

    come     connections to random nodes that are there     -> follow
    follow   the feeds of eight connected nodes, in turn    -> what waits there
    take     a new record, or one that arrived              -> to each follower: small ones at once, ids of larger ones
    told     an id                                          -> ask one of those that named it
    asked    records                                        -> given
    repair   what one random peer has and this node lacks   -> given, not handed on
    vanish   a node is gone; its followers notice when its feed is silent

Everything goes through the sender's uplink, one after another, then over the link's delay.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from benchmarks.scale.parameters import PACKET_OVERHEAD, Costs, Load, Network, Rules, Transfer, slow_start_rounds
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S
from swarm.net.membership.following import (
    FETCH_EVERY_S,
    FETCH_TIMEOUT_S,
    FETCHED_AT_ONCE,
    FETCHED_BYTES,
    FOLLOWED_S,
    LOOK_EVERY_S,
    SILENCE_S,
    candidates,
)
from swarm.net.records.feed import FOLLOWED_AT_ONCE, OTHERS_BYTES, OWN_BYTES, READERS, REPLAYED_S, WAITS_S
from swarm.net.records.repair import GOSSIP_GRACE_S, MAX_GIVEN, WINDOW_ROUNDS

COMING_S = 10.0
"""In which all nodes come."""
WARM_UP_S = COMING_S + FOLLOWED_S[1]
"""Until everybody has chosen anew whom to follow."""
IDLE_S = 1.0
"""A connection that was idle for longer starts again with a small window."""
LEAST_TAIL_S = 4.0
LONGEST_TAIL_S = WAITS_S + 30.0


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
    bytes_sent: list[float]
    """With packet headers."""
    pushed: int
    """Records in feeds."""
    named: int
    """Ids in feeds."""
    given: int
    """Records sent because they were asked for."""
    received: int
    """Records that arrived, also those that the node had."""
    repaired: int
    """Groups that repair brought."""
    unheard: int
    """Groups whose author had no follower when it shared them."""
    followers: list[int]
    """Of each node that is there at the end."""
    links: list[int]
    """Connections of each node, at the end."""

    @property
    def fraction(self) -> float:
        """Of the pairs that are due, those delivered."""
        return self.delivered / self.due if self.due else 1.0

    @property
    def copies_per_delivery(self) -> float:
        """1 would be without duplicates."""
        return self.received / max(1, len(self.latencies_s))

    @property
    def names_per_delivery(self) -> float:
        """Ids that a node reads of each group."""
        return self.named / max(1, len(self.latencies_s))


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
    readers: int = 0
    """Followers of its author that have been sent it or its id."""


@dataclass
class _Node:
    delays: dict[int, float] = field(default_factory=dict)
    """To each connected peer."""
    followed: dict[int, float] = field(default_factory=dict)
    """Since when."""
    followers: list[int] = field(default_factory=list)
    recent: deque[int] = field(default_factory=deque)
    """Records of its feed that a new follower is sent, and older ones."""
    shared: list[int] = field(default_factory=list)
    wanted: dict[int, dict[int, None]] = field(default_factory=dict)
    """By followed node: records that it named and this node lacks."""
    paused: dict[int, float] = field(default_factory=dict)
    """Nodes that are asked, or not again before this time."""
    under_way: set[int] = field(default_factory=set)
    num_asked: int = 0
    used: dict[int, float] = field(default_factory=dict)
    """When something was last sent to a peer."""
    uplink_free: float = 0.0
    came: float = inf
    gone: float = inf


class _Transfer:
    """What is the same each time that a group of this load, or its id, is sent."""

    def __init__(self, costs: Transfer, load: Load, network: Network) -> None:
        size = load.record_bytes
        self.server_s = costs.server_s.at(size)
        self.reader_s = costs.reader_s.at(size) + costs.nodes_s.at(size)
        self.num_bytes = costs.wire_bytes.at(size) * PACKET_OVERHEAD
        self.uplink_s = 8 * self.num_bytes / network.uplink_bits_per_s
        self.rounds = slow_start_rounds(self.num_bytes)


def simulate(network: Network, load: Load, rules: Rules, costs: Costs, *, seed: int = 0) -> Outcome:
    """Run until every group has arrived everywhere, or for `LONGEST_TAIL_S` after the last one was shared."""
    return _Swarm(network, load, rules, costs, seed).run()


class _Swarm:
    def __init__(self, network: Network, load: Load, rules: Rules, costs: Costs, seed: int) -> None:
        self._network, self._load, self._rules = network, load, rules
        self._in_feed, self._id, self._answer = (
            _Transfer(each, load, network) for each in (costs.pushed, costs.named, costs.fetched)
        )
        self._request_bytes = costs.fetched.asked_bytes * PACKET_OVERHEAD
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._num_events = 0
        self._now = 0.0
        self._batch = max(1, min(MAX_GIVEN, 1 + FETCHED_BYTES // load.record_bytes))
        self._window_s = rules.repair_every_s * (1 + WINDOW_ROUNDS) + GOSSIP_GRACE_S
        window_s = load.num_groups / load.groups_per_s
        # With churn, as many peers are gone unnoticed when sharing begins as will be later.
        self._shared_from = WARM_UP_S + (network.notice_s if network.churn_per_min else 0.0)
        self._shared_until = self._shared_from + window_s
        churn_s = self._shared_until + LONGEST_TAIL_S - WARM_UP_S
        num_comers = round(network.num_nodes * network.churn_per_min * churn_s / 60)
        self._nodes = [_Node() for _ in range(network.num_nodes + num_comers)]
        self._proven = frozenset(range(rules.proven))
        self._alive: list[int] = []
        self._there = bytearray(len(self._nodes))
        self._core_free = [0.0] * (network.cores or len(self._nodes))
        self._messages: list[_Message] = []
        self._open: set[int] = set()
        self._bytes_sent = [0.0] * len(self._nodes)
        self._pushed = self._named = self._given = self._received = self._repaired = self._unheard = 0

    def run(self) -> Outcome:
        network, draw = self._network, self._random
        for node in range(network.num_nodes):
            self._at(node * COMING_S / network.num_nodes, self._come, node)
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

    def _at(self, moment: float, act: Callable[..., None], *arguments: object) -> None:
        self._num_events += 1  # so that equal times stay in order and actions are never compared
        heappush(self._events, (moment, self._num_events, act, arguments))

    # -- connections, and who follows whom

    def _come(self, node: int) -> None:
        network, draw, own = self._network, self._random, self._nodes[node]
        own.came = self._now
        peers = draw.sample(self._alive, min(network.dials, len(self._alive)))
        for peer in peers:
            delay_s = network.delay_s * draw.lognormvariate(0.0, network.delay_sigma)
            own.delays[peer] = self._nodes[peer].delays[node] = delay_s
        self._alive.append(node)
        self._there[node] = 1
        for peer in (node, *peers):
            self._follow(peer)
        if self._rules.repair_every_s:
            begins = max(self._now, self._shared_from)
            self._at(begins + draw.uniform(0, self._rules.repair_every_s), self._repair, node)

    def _vanish(self) -> None:
        place = self._random.randrange(len(self._alive))
        node, self._alive[place] = self._alive[place], self._alive[-1]
        self._alive.pop()
        own = self._nodes[node]
        own.gone = self._now
        self._there[node] = 0
        for number in tuple(self._open):
            if self._messages[number].at[node] == inf:
                self._one_less(number, node)
        for follower in own.followers:
            self._at(self._now + SILENCE_S, self._leave, follower, node, self._nodes[follower].followed[node])
        self._at(self._now + self._network.notice_s, self._notice, node)

    def _notice(self, node: int) -> None:
        for peer in self._nodes[node].delays:
            self._nodes[peer].delays.pop(node, None)
        for peer in self._nodes[node].followed:
            self._nodes[peer].followers.remove(node) if node in self._nodes[peer].followers else None

    def _choices(self, node: int) -> Sequence[int]:
        own = self._nodes[node]
        free = [peer for peer in own.delays if peer not in own.followed]
        return candidates(free, own.followed.keys(), self._proven)

    def _follow(self, node: int) -> None:
        own = self._nodes[node]
        while len(own.followed) < FOLLOWED_AT_ONCE and (choices := self._choices(node)):
            peer = self._random.choice(choices)
            own.followed[peer] = self._now
            self._at(self._now + own.delays[peer], self._serve, peer, node)
            self._at(self._now + self._random.uniform(*FOLLOWED_S), self._change, node, peer, self._now)

    def _change(self, node: int, peer: int, since: float) -> None:
        if self._nodes[node].followed.get(peer) != since or not self._there[node]:
            return
        if self._choices(node):
            self._leave(node, peer, since)
        else:
            self._at(self._now + LOOK_EVERY_S, self._change, node, peer, since)

    def _leave(self, node: int, peer: int, since: float) -> None:
        own, other = self._nodes[node], self._nodes[peer]
        if own.followed.get(peer) != since or not self._there[node]:
            return
        del own.followed[peer]
        own.wanted.pop(peer, None)
        if node in other.followers:
            other.followers.remove(node)
        self._follow(node)

    def _serve(self, node: int, follower: int) -> None:
        since = self._nodes[follower].followed.get(node)
        if since is None:
            return
        if not self._there[node]:
            self._at(self._now + SILENCE_S, self._leave, follower, node, since)
            return
        own, messages = self._nodes[node], self._messages
        own.followers.append(follower)
        waiting = [number for number in own.recent if self._now - messages[number].at[node] < REPLAYED_S]
        for number in own.shared if self._rules.waits else ():
            message = messages[number]
            if self._now - message.published < WAITS_S and message.readers < READERS and number not in waiting:
                waiting.append(number)
        for number in waiting:
            self._hand_out(node, follower, number, self._now)

    # -- records

    def _publish(self) -> None:
        count, number = len(self._nodes), len(self._messages)
        comers = [node for node in self._alive if node >= self._network.num_nodes] if self._load.by_comers else []
        origin = self._random.choice(comers or self._alive)
        message = _Message(origin, self._now, array("d", [inf]) * count, array("d", [inf]) * count, bytearray(count), 0)
        message.earliest[origin] = message.at[origin] = self._now
        message.missing = len(self._alive) - 1
        self._messages.append(message)
        if message.missing:
            self._open.add(number)
        self._nodes[origin].shared.append(number)
        self._unheard += not self._nodes[origin].followers
        self._take(origin, number, frozenset(), self._now)

    def _take(self, node: int, number: int, known_to: Sequence[int] | frozenset[int], now: float) -> None:
        """A record comes into a node's feed; `known_to`: nodes that gave or named it."""
        own = self._nodes[node]
        own.recent.append(number)
        while now - self._messages[own.recent[0]].at[node] > REPLAYED_S:
            own.recent.popleft()
        start = int(self._random.random() * len(own.followers))
        for follower in own.followers[start:] + own.followers[:start]:
            if follower not in known_to:
                self._hand_out(node, follower, number, now)

    def _hand_out(self, node: int, follower: int, number: int, now: float) -> None:
        message = self._messages[number]
        if follower == message.origin:
            return
        message.readers += node == message.origin
        if self._load.record_bytes <= (OWN_BYTES if node == message.origin else OTHERS_BYTES):
            self._pushed += 1
            self._give(node, follower, number, self._in_feed, now)
        else:
            self._named += 1
            told = self._send(node, follower, self._id, now)
            self._core_free[follower % len(self._core_free)] += self._id.reader_s
            if message.at[follower] == inf and told < inf:
                self._at(told, self._told, follower, number, node)

    def _send(self, node: int, peer: int, transfer: _Transfer, now: float) -> float:
        """When it arrives, through the node's core, its uplink and the link: never at one that is gone."""
        own, cores = self._nodes[node], self._core_free
        core = node % len(cores)
        ready = cores[core] = (cores[core] if cores[core] > now else now) + transfer.server_s
        self._bytes_sent[node] += transfer.num_bytes
        leaves = own.uplink_free = (own.uplink_free if own.uplink_free > ready else ready) + transfer.uplink_s
        delay_s = own.delays.get(peer)
        if delay_s is None or not self._there[peer]:
            return inf
        arrives = leaves + delay_s
        if transfer.rounds:
            if now - own.used.get(peer, -inf) > IDLE_S:
                arrives += 2 * delay_s * transfer.rounds
            own.used[peer] = now
        return arrives

    def _give(
        self, node: int, peer: int, number: int, transfer: _Transfer, now: float,
        *, until: float = inf, handed_on: bool = True,
    ) -> float:  # fmt: skip
        """Send a record; when it arrives. Only the earliest arrival of each record and node becomes an event."""
        arrives = self._send(node, peer, transfer, now)
        if arrives == inf or arrives > until:
            return arrives
        self._received += 1
        earliest = self._messages[number].earliest
        if arrives < earliest[peer]:
            earliest[peer] = arrives
            self._at(arrives, self._arrive, peer, number, node, transfer.reader_s, handed_on)
        else:
            self._core_free[peer % len(self._core_free)] += self._id.reader_s
        return arrives

    def _arrive(self, node: int, number: int, source: int, work_s: float, handed_on: bool) -> None:
        message = self._messages[number]
        if message.at[node] != inf or not self._there[node]:
            return
        core = node % len(self._core_free)
        done = self._core_free[core] = max(self._now, self._core_free[core]) + work_s
        own = self._nodes[node]
        message.at[node] = done
        message.hops[node] = min(255, message.hops[source] + 1)
        self._one_less(number, node)
        known_to = [source]
        for peer, wanted in own.wanted.items():
            if number in wanted:
                del wanted[number]
                known_to.append(peer)
        if handed_on:
            self._take(node, number, known_to, done)
        else:
            self._repaired += 1

    def _one_less(self, number: int, node: int) -> None:
        message = self._messages[number]
        message.missing -= self._nodes[node].came <= message.published
        if not message.missing:
            self._open.discard(number)

    # -- fetching what was named

    def _told(self, node: int, number: int, source: int) -> None:
        own = self._nodes[node]
        if self._messages[number].at[node] == inf and source in own.followed and self._there[node]:
            own.wanted.setdefault(source, {})[number] = None
            if number not in own.under_way:
                self._fetch(node)

    def _fetch(self, node: int) -> None:
        own = self._nodes[node]
        for peer in self._random.sample(list(own.wanted), len(own.wanted)):
            if own.num_asked >= FETCHED_AT_ONCE:
                return
            if own.paused.get(peer, 0.0) > self._now or peer not in own.delays:
                continue
            names = [number for number in own.wanted[peer] if number not in own.under_way][: self._batch]
            if names:
                own.num_asked += 1
                own.paused[peer] = inf
                own.under_way.update(names)
                self._at(self._now + own.delays[peer], self._asked, peer, node, names, self._now)

    def _asked(self, node: int, peer: int, names: Sequence[int], began: float) -> None:
        limit = began + FETCH_TIMEOUT_S + len(names) * self._load.record_bytes / MIN_RATE_BYTES_PER_S
        self._bytes_sent[peer] += self._request_bytes
        last, failed = began, not self._there[node]
        for number in names if not failed else ():
            self._given += 1
            last = max(last, self._give(node, peer, number, self._answer, self._now, until=limit))
        self._at(min(last, limit) if not failed else limit, self._settled, peer, node, names)

    def _settled(self, node: int, peer: int, names: Sequence[int]) -> None:
        own = self._nodes[node]
        own.num_asked -= 1
        own.under_way.difference_update(names)
        own.paused[peer] = self._now + FETCH_EVERY_S
        for number in names:
            own.wanted.get(peer, {}).pop(number, None)
        if any(own.wanted.values()):
            self._fetch(node)
            self._at(own.paused[peer], self._fetch, node)

    # -- repair

    def _repair(self, node: int) -> None:
        if not self._there[node]:
            return
        own, draw = self._nodes[node], self._random
        if own.delays and self._open:
            peer = draw.choice(list(own.delays))
            for number in self._missed(node, peer) if self._there[peer] else ():
                # Two requests before it, one for the list and one for the records.
                self._at(self._now + 3 * own.delays[peer], self._repaired_by, peer, node, number)
        self._at(self._now + self._rules.repair_every_s * draw.uniform(0.8, 1.2), self._repair, node)

    def _missed(self, node: int, peer: int) -> Iterator[int]:
        for number in sorted(self._open):
            message = self._messages[number]
            age_s = self._now - message.published
            if message.at[node] == inf > message.at[peer] and GOSSIP_GRACE_S <= age_s < self._window_s:
                yield number

    def _repaired_by(self, node: int, peer: int, number: int) -> None:
        if self._there[node]:
            self._given += 1
            self._give(node, peer, number, self._answer, self._now, handed_on=False)

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
            self._bytes_sent,
            self._pushed,
            self._named,
            self._given,
            self._received,
            self._repaired,
            self._unheard,
            [len(self._nodes[node].followers) for node in self._alive],
            [len(self._nodes[node].delays) for node in self._alive],
        )
