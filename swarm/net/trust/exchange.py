"""Exchange of rollout groups over a transport: signs outgoing groups and checks incoming ones."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from swarm.errors import Refusal
from swarm.lru import LruDict
from swarm.net.records.envelope import read_record
from swarm.net.records.identity import Identity
from swarm.net.records.offers import in_records, seal_offers
from swarm.net.records.wire import Limits, check_age, check_seal, open_group, seal, unsigned_group
from swarm.net.trust.accounts import PeerBook, SafetySettings
from swarm.net.trust.sharing import Demand, Sharing, Usefulness
from swarm.protocols import NEWCOMERS, RECORDED, RecordTransport
from swarm.reasons import Outcome, Reason
from swarm.types import (
    Arrival,
    Commitment,
    NetworkStatus,
    OfferedGroup,
    OfferedGroups,
    ReceivedGroup,
    RefusedRecord,
    RolloutGroup,
    VerifiedGroup,
)
from swarm.types.commitments import commitment

logger = logging.getLogger(__name__)

SEEN_GROUPS = 8_192
JUDGE_EVERY_S = 1.0
WARN_OF_CLOCKS_EVERY_S = 600.0


class Exchange:
    """`GroupExchange` over any `RecordTransport`.

    Refusals are counted by reason: those that the transport found on arrival, those of `wire.check_age` and
    `PeerBook.admit`, and `duplicate` for a repeated group. Refusals that a signature attributes to a
    peer count against it.
    """

    def __init__(
        self,
        transport: RecordTransport,
        identity: Identity,
        limits: Limits | None = None,
        safety: SafetySettings | None = None,
        *,
        offer_life_s: float = 120.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Exchange groups as `identity`; peers that misbehave are refused under `safety`.

        The transport keeps records for `offer_life_s`.

        Groups that exceed `limits` are not shared. The transport has checked arrivals against the same limits, except
        for their age, which is checked here.
        """
        self.book = PeerBook(safety or SafetySettings(), clock)
        self._transport = transport
        self._identity = identity
        self._limits = limits or Limits()
        self._clock = clock
        self._seen = LruDict[str, None](SEEN_GROUPS)
        self._demand = Demand()
        self._sharing = Sharing(self._demand, offer_life_s, identity.peer_id, clock)
        self._pulled = LruDict[str, str](SEEN_GROUPS)
        """Author by content id of groups that are being fetched: they were heard of when they were offered."""
        self._recorded: Sequence[RolloutGroup] = ()
        self._offers: list[OfferedGroup] = []
        self._commitments: list[Commitment] = []
        self._banned: frozenset[str] = frozenset()
        self._proven: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        """Authors that are proven or established; the others are newcomers."""
        self._newcomers = Usefulness()
        """Usable fraction of newcomers' graded groups."""
        self._judged_at = -math.inf
        self._warned_of_clocks_at = -math.inf

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        """Stamp, sign and publish a group. Returns the group as published, or None if it could not be.

        None means that no run is known yet, or that the group is larger than the limits allow.
        """
        run_id = self._transport.status().run_id
        sealed = self._seal(group, run_id) if run_id is not None else None
        if sealed is None:
            return None
        self._transport.publish(sealed.record)
        return sealed.group

    def share_all(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """Share several groups: each is broadcast, or offered if that costs members less.

        Beyond the common rate, some are chosen at random (`swarm/net/trust/sharing.py`).
        """
        status = self._transport.status()
        run_id = status.run_id
        chosen, per_s = self._sharing.choose(len(groups), status.offers_per_s)
        sealed = [
            self._seal(group, run_id) if run_id is not None and shares else None
            for group, shares in zip(groups, chosen, strict=True)
        ]
        shared = [each for each in sealed if each is not None]
        if run_id is not None and shared:
            offers = self._sharing.offers(shared, status)
            for each in shared:
                hand_over = self._transport.hold if each.content_id in offers else self._transport.publish
                hand_over(each.record)
            for some in in_records(list(offers.values())):
                self._transport.publish(seal_offers(self._identity, run_id, some, per_s))
        return [each.group if each is not None else None for each in sealed]

    def took(self, num_groups: int, num_wanted: int) -> None:
        """The last update took this many of others' groups of those it wanted."""
        self._sharing.appetite.update(num_groups, num_wanted)

    def _seal(self, group: RolloutGroup, run_id: str) -> VerifiedGroup | None:
        """A group as published; None for one that others would refuse."""
        stamped = replace(group, run_id=run_id, peer_id=self._identity.peer_id)
        record = seal(self._identity, run_id, "group", stamped)
        try:
            # Apply the receivers' checks: do not send what they would refuse.
            return open_group(check_seal(read_record(record, self._limits.max_record_bytes), run_id), self._limits)
        except Refusal as refusal:
            logger.warning("group %d is not shared because others would refuse it: %s", group.sequence, refusal)
            return None

    def wait(self, timeout_s: float) -> bool:
        """Block until records have arrived or the timeout expires; whether records have arrived."""
        return self._transport.wait(timeout_s)

    def join(self, recorded: Sequence[RolloutGroup]) -> None:
        """The next `receive` returns these groups of `RECORDED`, too, which come by no network."""
        self._recorded = recorded

    def receive(self) -> tuple[list[ReceivedGroup], dict[Reason, int]]:
        """The accepted arrivals, and refusals by reason, since the last call."""
        # As many as the transport's inbox has room for: a limit for each would let a flood displace others'.
        self._offers, self._commitments = [], []
        arrivals: list[VerifiedGroup] = []
        refused: Counter[Reason] = Counter()
        run_id = self._transport.status().run_id
        for arrival in self._transport.drain():
            try:
                admitted = self._admit(arrival, run_id)
            except Refusal as refusal:
                logger.debug("refused a record: %s", refusal)
                refused[refusal.reason] += 1
                self._warn_of_clocks(refusal)
                if refusal.peer_id is not None:
                    self.book.report(refusal.peer_id, refusal.reason)
                continue
            if admitted is not None:
                arrivals.append(admitted)
        recorded, self._recorded = self._recorded, ()
        for group in recorded:
            try:
                arrivals.append(self._checked(group))
            except Refusal as refusal:
                refused[refusal.reason] += 1
        self.judge()
        others = (each for each in arrivals if each.group.peer_id != RECORDED)
        self._demand.heard(sum(self._pulled.pop(each.content_id, None) is None for each in others))
        return [self._received(each) for each in arrivals], dict(refused)

    def _received(self, arrival: VerifiedGroup) -> ReceivedGroup:
        group = arrival.group
        account = self.account(group.peer_id)
        return ReceivedGroup(arrival.content_id, group, account, group.memory_bytes, self._clock())

    def offers(self) -> list[OfferedGroup]:
        """Offers seen by the last `receive`, without groups that have arrived."""
        offers, self._offers = self._offers, []
        return [each for each in offers if each.offer.content_id.hex() not in self._seen]

    def commitments(self) -> list[Commitment]:
        """Others' commitments by offers and groups, as seen by the last `receive`, in order of arrival."""
        heard, self._commitments = self._commitments, []
        return heard

    def banned(self) -> frozenset[str]:
        """Peers in quarantine, as of the last `receive`: nothing of theirs arrives."""
        return self._banned

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Fetch a group on offer; a later `receive` returns it."""
        self._pulled[offered.offer.content_id.hex()] = offered.peer_id
        self._transport.pull(offered, patience_s)

    def judge(self, complaints: Iterable[tuple[str, Reason]] = ()) -> None:
        """Book complaints (peer id, reason), including those of the transport, and ban quarantined peers.

        `receive` does this too; call it on nodes that do not learn from groups.
        """
        for peer_id, reason in (*complaints, *self._transport.complaints()):
            self.book.report(peer_id, reason)
        self._update_bans()

    def account(self, peer_id: str) -> str:
        """A proven peer's own account; all other peers share one, whatever their names."""
        return peer_id if peer_id in self._proven else NEWCOMERS

    def report(self, peer_id: str, outcome: Outcome, verify_s: float = 0.0) -> None:
        """Report the outcome of a group of `peer_id`, and the seconds that its verification took."""
        if outcome == "used" and peer_id != RECORDED:
            self._demand.used(1)
        if verify_s and peer_id not in self._known and peer_id != RECORDED:  # it was chosen and graded
            self._newcomers.update(outcome == "informative")
        self.book.report(peer_id, outcome, verify_s)

    def established(self) -> frozenset[str]:
        """Peers that have been useful for long enough to count as separate authors."""
        return self.book.established()

    def _update_bans(self) -> None:
        """Ban quarantined peers from gossip, inbox and record store; give proven peers larger budgets."""
        quarantined = self.book.quarantined()
        if quarantined != self._banned:
            self._banned = quarantined
            self._transport.ban(quarantined)
        now = self._clock()
        if abs(now - self._judged_at) >= JUDGE_EVERY_S:  # the clock may have been set back
            self._judged_at = now
            self._proven = self.book.proven()
            self._known = self._proven | self.established()
            self._transport.trust(self._proven, self._known, self._newcomers.fraction)

    def _warn_of_clocks(self, refusal: Refusal) -> None:
        now = self._clock()
        if refusal.reason == Reason.CLOCK and now - self._warned_of_clocks_at > WARN_OF_CLOCKS_EVERY_S:
            self._warned_of_clocks_at = now
            logger.warning("a group of %s was refused: %s; one of the two clocks is wrong", refusal.peer_id, refusal)

    def _admit(self, arrival: Arrival, run_id: str | None) -> VerifiedGroup | None:
        """An arrival that is a group of another peer, or None. Raises `Refusal`."""
        if run_id is None:
            raise Refusal(Reason.WRONG_RUN, "no run is known yet")
        if isinstance(arrival, RefusedRecord):
            raise Refusal(arrival.reason, arrival.detail, arrival.peer_id)
        if isinstance(arrival, OfferedGroups):
            self._note(arrival)
            return None
        group, num_bytes = arrival.group, len(arrival.record)
        if group.peer_id == self._identity.peer_id:
            return None
        self._attributed(group.peer_id, lambda author: self.book.precheck(author, num_bytes))
        check_age(group, self._limits, now=self._clock())
        if self._seen_before(arrival.content_id):
            raise Refusal(Reason.DUPLICATE)
        # Also one that is refused as replayed, as after a restart: no other peer may claim its text.
        self._commit(group.peer_id, commitment(group), arrival.heard_at)
        self._attributed(
            group.peer_id, lambda author: self.book.admit(author, group.sequence, num_bytes, group.created_at)
        )
        return arrival

    def _checked(self, recorded: RolloutGroup) -> VerifiedGroup:
        """A recorded group within the limits of all. Raises `Refusal`."""
        self.book.admit(RECORDED, None, recorded.memory_bytes)
        return unsigned_group(recorded, self._limits)

    def _note(self, arrival: OfferedGroups) -> None:
        """Keep offers for the caller. Raises `Refusal` for those of a peer that is quarantined or over its rate."""
        if arrival.peer_id != self._identity.peer_id:
            self._attributed(arrival.peer_id, lambda author: self.book.admit_offers(author, len(arrival.offers)))
            self._demand.heard(len(arrival.offers))
            for offer in arrival.offers:
                self._offers.append(OfferedGroup(arrival.peer_id, offer))
                self._commit(arrival.peer_id, offer.commitment, arrival.heard_at)

    def _commit(self, author: str, content: bytes, heard_at: float) -> None:
        if content:
            self._commitments.append(Commitment(author, content, heard_at))

    def _attributed(self, author: str, check: Callable[[str], None]) -> None:
        """Run a check; a refusal is attributed to the author."""
        try:
            check(author)
        except Refusal as refusal:
            raise Refusal(refusal.reason, refusal.detail, author) from refusal

    def status(self) -> NetworkStatus:
        """Current state of the network."""
        return self._transport.status()

    def _seen_before(self, content_id: str) -> bool:
        seen = content_id in self._seen
        self._seen[content_id] = None
        return seen
