"""Received groups before they can teach: the exchange has checked their envelopes; here they are regraded.

    exchange inbox ──▶ skip? ──▶ waiting ──▶ chosen ──▶ verifier's queue ──▶ whole? ──▶ signal? ──▶ reject?
           └ offers ────────────────┘  ▲        │ offers                                              │
                                       └─ fetch ┘                                          graded ◀───┘

The outcome of each group goes into the ledger, and to the exchange for its sender's account.

Groups that wait, those on offer included, are bounded in count, memory and age, fair between peers and
accounts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

from msgspec import Struct

from swarm.fair_store import FairStore, Share
from swarm.groups.building import with_grade
from swarm.groups.credit import has_signal
from swarm.groups.episodes import as_told, has_own_calls, is_whole
from swarm.protocols import RECORDED, GroupExchange, KeepSample, Verifier
from swarm.reasons import Outcome, Reason
from swarm.received.copies import Copies
from swarm.telemetry.ledger import Ledger
from swarm.types import MAX_COMPLETIONS, Grade, GradedGroup, OfferedGroup, ReceivedGroup, Rejection, RolloutGroup
from swarm.types.commitments import num_digests

MAX_BYTES = 64 * 2**20
"""Memory of all received groups before their grading is finished; at least one is always admitted."""
MAX_PART = 4
"""Groups on one account take at most 1 / MAX_PART of it."""


class Waiting:
    """Ordered from the oldest. Methods return what left ungraded, with the reason."""

    def __init__(self, max_per_peer: int, max_groups: float = math.inf, max_age_s: float = math.inf) -> None:
        """Empty. `max_per_peer` and the memory include groups that are being graded, `max_groups` does not."""
        account, peer = Share(max_bytes=MAX_BYTES // MAX_PART), Share(max_items=max_per_peer)
        self._groups = FairStore[str, ReceivedGroup](max_groups, MAX_BYTES, account, peer)
        self._grading: set[str] = set()
        self._max_age_s = max_age_s

    def __len__(self) -> int:
        """Groups that have arrived, those that are being graded included."""
        return len(self._grading) + sum(each.is_here for each in self)

    def __contains__(self, key: object) -> bool:
        """Whether a group or an offer waits or is being graded."""
        return key in self._groups

    def __iter__(self) -> Iterator[ReceivedGroup]:
        """Those that wait, offers included, oldest first."""
        return iter([self._groups[key] for key in self._groups if key not in self._grading])

    def enter(self, new: ReceivedGroup, is_chosen: bool = False) -> list[tuple[ReceivedGroup, Reason]]:
        """Add a group, to be graded at once if it `is_chosen`. Returns what left for it, which may be the group itself.

        A peer or an account at its limit loses its oldest group (`peer_quota`); when all together are too many, the
        account with the most loses its oldest (`not_needed`). A group replaces all offers of it.
        """
        if new.is_here:
            for each in self:
                if each.content_id == new.content_id:
                    self._groups.pop(each.key)
        num_bytes = min(new.num_bytes, MAX_BYTES)
        left = self._groups.add(new.key, new, new.account, new.peer_id, num_bytes=num_bytes, is_pinned=is_chosen)
        return [(each, Reason.NOT_NEEDED if limit == "items" else Reason.PEER_QUOTA) for each, limit in left]

    def remove(self, key: str) -> ReceivedGroup:
        """Remove a group or an offer, graded or not. Raises `KeyError`."""
        self._grading.discard(key)
        return self._groups.pop(key)

    def grade(self, key: str) -> ReceivedGroup:
        """A group is being graded: until it is removed it takes room and cannot be displaced. Raises `KeyError`."""
        self._grading.add(key)
        return self._groups.pin(key)

    def expire(self, now: float) -> list[tuple[ReceivedGroup, Reason]]:
        """Remove groups past their age."""
        old = [each for each in self if now - each.arrived_at > min(self._max_age_s, _life_s(each))]
        return [(self.remove(each.key), Reason.EXPIRED) for each in old]


def _life_s(received: ReceivedGroup) -> float:
    """Seconds after its arrival for which a group can be had."""
    return float(received.content.offer.life_s) if isinstance(received.content, OfferedGroup) else math.inf


PULL_PATIENCE_S = 15.0
"""A chosen group that has not arrived by then counts as unusable."""
PROMISE_S = 2.0
"""After this time another group gets its slot; it is still taken if it comes."""
OFFER_BYTES = 1_024
"""Memory of an offer."""


class Selection:
    """Which received groups a node grades and keeps. This one grades all and keeps those with signal."""

    max_completions = MAX_COMPLETIONS
    """Most completions of a group: an update's means are over completions, so that a larger group would have a larger
    part of it."""

    def wants(self, rewards: Sequence[float]) -> bool:
        """Whether a group with these rewards teaches."""
        return has_signal(rewards)

    def skip_reason(self, group: RolloutGroup) -> Reason | None:
        """Why to drop a group before grading; None to keep it."""
        return None

    def reject_reason(self, graded: GradedGroup) -> Reason | None:
        """Why a graded group with signal does not suit this policy; None to keep it."""
        return None

    def choose(self, waiting: Waiting) -> Iterable[str]:
        """Keys of the groups to grade now, and of those on offer to fetch for that; the others continue to wait."""
        return [each.key for each in waiting]

    def came(self, key: str, content_id: str) -> None:
        """A chosen group that was on offer has come, and is graded; from now on its content id is its key."""

    def late(self, key: str) -> None:
        """A chosen group has not arrived in time: nothing must wait for it. `checked` follows all the same."""

    def checked(self, key: str, usable: bool) -> None:
        """A chosen group was graded, or could not be had; `usable`: it can teach."""


class IntakeLimits(Struct, frozen=True):
    """What an intake accepts."""

    max_per_peer: int
    """Waiting groups of one peer, those being graded included."""
    max_groups: float = math.inf
    """Waiting groups."""
    max_age_s: float = math.inf
    """Seconds that a group may wait."""
    trusted: Collection[str] = ()
    """Peers whose tool results are accepted without replay."""
    unreadable: Collection[str] = ()
    """Tasks with images or audio that the policy cannot read."""


def cannot_fit(group: RolloutGroup, max_chars: int) -> bool:
    """Whether a completion has more characters than the policy's tokens can cover; needs no tokenizing."""
    return any(len(completion.text) > max_chars for completion in group.completions)


class Intake:
    """Regrades each received group at most once."""

    def __init__(
        self,
        exchange: GroupExchange,
        verifier: Verifier,
        ledger: Ledger,
        selection: Selection,
        limits: IntakeLimits,
        copies: Copies,
        keep: KeepSample,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """An empty intake; `keep` is called with what became of each group that was opened."""
        self._exchange = exchange
        self._verifier = verifier
        self._ledger = ledger
        self._selection = selection
        self._limits = limits
        self._copies = copies
        self._keep = keep
        self._clock = clock
        self._waiting = Waiting(limits.max_per_peer, limits.max_groups, limits.max_age_s)
        self._pulling: dict[str, ReceivedGroup] = {}
        """Offers by key."""
        self._late: set[str] = set()
        """Those of `_pulling` that nothing waits for."""

    def __len__(self) -> int:
        """Groups that wait for grading or are being graded; those on offer are not here yet."""
        return len(self._waiting)

    def receive(self, held: Container[str]) -> list[ReceivedGroup]:
        """The groups graded since the last call that can teach.

        Takes in newly received groups, except those whose id is in `held`, and starts to grade the chosen ones.
        """
        arrived, refused = self._exchange.receive()
        self._ledger.received(len(arrived) + sum(refused.values()))
        for reason, count in refused.items():
            self._ledger.dropped(reason, count)
        for heard in self._exchange.commitments():
            if num_digests(heard.content) <= self._selection.max_completions:
                self._copies.note(heard, self._exchange.account(heard.peer_id))
        for received in arrived:
            self._enter(received, held)
        for offered in self._exchange.offers():
            self._note(offered, held)
        self._leave(self._waiting.expire(self._clock()))
        self._drop_banned()
        self._give_up_late()
        for key in self._selection.choose(self._waiting):
            self._begin(key)
        settled = [self._graded(self._waiting.remove(key), verdict) for key, verdict in self._verifier.collect()]
        return [admitted for admitted in settled if admitted is not None]

    def settle(self, groups: Sequence[GradedGroup], first: int, skipped: bool) -> None:
        """Record the groups of an update that was made, or `skipped`; `first` of them are used for the first time."""
        for graded in groups:
            self._exchange.report(graded.group.peer_id, "used")
            self._keep(Reason.UPDATE_SKIPPED if skipped else "used_external", graded)
        if skipped:
            self._ledger.dropped(Reason.UPDATE_SKIPPED, first)
        else:
            self._ledger.used_external(first, again=len(groups) - first)

    def _enter(self, received: ReceivedGroup, held: Container[str]) -> None:
        content_id, group = received.content_id, received.group
        chosen = ""
        for key, offered in list(self._pulling.items()):
            if offered.content_id == content_id:
                self._stop_pulling(key)
                if offered.peer_id == group.peer_id:
                    chosen = key
                else:
                    # Who offered it earns nothing with another's group, which then waits like any other.
                    self._selection.checked(key, usable=False)
        # The exchange forgets old groups and those from before a restart; the ids held here detect such duplicates.
        if content_id in self._waiting or content_id in held:
            self._drop(Reason.DUPLICATE, group)
        elif reason := self._skip_reason(group):
            self._drop(reason, group)
            self._exchange.report(group.peer_id, reason)
        else:
            self._wait(received, is_chosen=bool(chosen))
            if chosen and content_id in self._waiting:
                self._selection.came(chosen, content_id)
                self._begin(content_id)
                return
        if chosen:
            self._selection.checked(chosen, usable=False)

    def _skip_reason(self, group: RolloutGroup) -> Reason | None:
        """Why to drop a group before grading."""
        if group.question.task in self._limits.unreadable:
            return Reason.CANNOT_PERCEIVE
        if len(group.completions) > self._selection.max_completions:
            return Reason.TOO_MANY
        if reason := self._selection.skip_reason(group):
            return reason
        # Who recorded a group did not ask its question, and earns nothing.
        return None if group.peer_id == RECORDED else self._copies.judge(group, self._clock())

    def _note(self, offered: OfferedGroup, held: Container[str]) -> None:
        """An offer waits if it teaches by its author's claim, is not too large, and neither it nor the group is
        known."""
        offer = offered.offer
        content_id, account = offer.content_id.hex(), self._exchange.account(offered.peer_id)
        received = ReceivedGroup(content_id, offered, account, OFFER_BYTES, self._clock())
        known = content_id in held or any(key in self._waiting for key in (content_id, received.key))
        known = known or received.key in self._pulling
        unwanted = offer.task in self._limits.unreadable or offer.num_completions > self._selection.max_completions
        if not known and not unwanted and self._selection.wants(offer.rewards):
            self._ledger.offered(1)
            self._wait(received)

    def _wait(self, received: ReceivedGroup, is_chosen: bool = False) -> None:
        self._leave(self._waiting.enter(received, is_chosen))

    def _leave(self, left: Iterable[tuple[ReceivedGroup, Reason]]) -> None:
        for received, reason in left:
            if received.is_here:  # an offer costs nothing
                self._drop(reason, received.group)

    def _begin(self, key: str) -> None:
        """Grade a chosen group, or fetch it if it is on offer."""
        received = self._waiting.grade(key)
        if isinstance(received.content, OfferedGroup):
            self._waiting.remove(key)
            received.arrived_at = self._clock()
            self._pulling[key] = received
            self._exchange.pull(received.content, PULL_PATIENCE_S)
            return
        self._ledger.checked(1)
        actions = [completion.actions for completion in received.group.completions]
        self._verifier.submit(received.content_id, received.group.question, actions, received.account)

    def _stop_pulling(self, key: str) -> None:
        self._late.discard(key)
        del self._pulling[key]

    def _drop_banned(self) -> None:
        """What banned authors offered cannot be had any more."""
        if not (banned := self._exchange.banned()):
            return
        for received in self._waiting:
            if received.peer_id in banned and not received.is_here:
                self._waiting.remove(received.key)
        for key, received in list(self._pulling.items()):
            if received.peer_id in banned:
                self._stop_pulling(key)
                self._selection.checked(key, usable=False)

    def _give_up_late(self) -> None:
        now = self._clock()
        for key, received in list(self._pulling.items()):
            waited_s = now - received.arrived_at
            if waited_s > PULL_PATIENCE_S:
                self._stop_pulling(key)
                self._selection.checked(key, usable=False)
            elif waited_s > PROMISE_S and key not in self._late:
                self._late.add(key)
                self._selection.late(key)

    def _graded(self, received: ReceivedGroup, verdict: Grade | Rejection) -> ReceivedGroup | None:
        began = time.perf_counter()
        group, judged = received.group, self._judged(received.group, verdict)
        # The time spent in this thread is charged to the sender, too.
        spent_s = verdict.seconds + time.perf_counter() - began
        self._selection.checked(received.content_id, usable=isinstance(judged, GradedGroup))
        if not isinstance(judged, GradedGroup):
            self._exchange.report(group.peer_id, judged, spent_s)
            self._drop(judged, group if isinstance(verdict, Rejection) else with_grade(group, verdict))
            return None
        # A sender earns nothing with groups without signal, even where they are kept.
        outcome: Outcome = "informative" if has_signal(judged.rewards) else Reason.ZERO_ADVANTAGE
        self._exchange.report(group.peer_id, outcome, spent_s)
        received.content = judged
        return received

    def _drop(self, reason: Reason, group: GradedGroup | RolloutGroup) -> None:
        self._ledger.dropped(reason)
        self._keep(reason, group)

    def _judged(self, group: RolloutGroup, verdict: Grade | Rejection) -> GradedGroup | Reason:
        """The group with this node's rewards, or why it cannot teach."""
        if isinstance(verdict, Rejection):
            return verdict.reason
        if verdict.held_out:
            return Reason.HELD_OUT
        if has_own_calls(verdict):
            if group.peer_id not in self._limits.trusted:
                return Reason.UNTRUSTED
            verdict = as_told(group, verdict)
        if not is_whole(group, verdict):
            return Reason.EPISODE_MISMATCH
        if not self._selection.wants(verdict.rewards):
            return Reason.ZERO_ADVANTAGE
        graded = with_grade(group, verdict)
        return self._selection.reject_reason(graded) or graded
