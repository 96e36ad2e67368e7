"""Received groups before they can teach: the exchange has checked their envelopes; here they are regraded.

    exchange inbox ──▶ needless? ──▶ waiting ──▶ chosen ──▶ verifier's queue ──▶ whole? ──▶ signal? ──▶ unfit?
           └ offers ────────────────────┘  ▲        │ offers                                               │
                                           └─ fetch ┘                                (id, graded) ◀────────┘

The outcome of each group goes into the ledger, and to the exchange for its sender's account.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from swarm.groups.building import with_grade
from swarm.groups.episodes import as_told, has_own_calls, is_whole
from swarm.groups.signal import has_signal
from swarm.groups.waiting import Received, Waiting, WaitingLimits
from swarm.protocols import GroupExchange, KeepSample, Verifier
from swarm.reasons import Outcome, Reason
from swarm.telemetry.ledger import Ledger
from swarm.types import MAX_COMPLETIONS, Commitment, Grade, GradedGroup, OfferedGroup, Rejection, RolloutGroup
from swarm.types.commitments import num_digests

PULL_PATIENCE_S = 15.0
"""A chosen group that has not arrived by then counts as unusable."""
PROMISE_S = 2.0
"""After this time another group gets its place; it is still taken if it comes."""
OFFER_BYTES = 1_024
"""Memory of an offer."""


class Choice(Protocol):
    """Decides which waiting groups to grade, and which of those on offer to fetch for that."""

    def choose(self, waiting: Waiting) -> Iterable[str]:
        """Keys of the groups to grade now; the others go on waiting."""
        ...

    def came(self, key: str, content_id: str) -> None:
        """A chosen group that was on offer has come, and is graded; from now on its content id is its key."""
        ...

    def late(self, key: str) -> None:
        """A chosen group has not arrived in time: nothing must wait for it. `checked` follows all the same."""
        ...

    def checked(self, key: str, usable: bool) -> None:
        """A chosen group was graded, or could not be had; `usable`: it can teach."""
        ...


class Everything:
    """Grades every group at once."""

    def choose(self, waiting: Waiting) -> Iterable[str]:
        """See `Choice`."""
        return [each.key for each in waiting]

    def came(self, key: str, content_id: str) -> None:
        """See `Choice`."""

    def late(self, key: str) -> None:
        """See `Choice`."""

    def checked(self, key: str, usable: bool) -> None:
        """See `Choice`."""


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
        limits: WaitingLimits,
        needless: Callable[[RolloutGroup], Reason | None] = lambda group: None,
        unfit: Callable[[GradedGroup], Reason | None] = lambda graded: None,
        teaches: Callable[[Sequence[float]], bool] = has_signal,
        keep: KeepSample = lambda fate, group: None,
        trusted: Collection[str] = (),
        unreadable: Collection[str] = (),
        choice: Choice | None = None,
        max_completions: Callable[[], int] = lambda: MAX_COMPLETIONS,
        committed: Callable[[Commitment, str], None] = lambda heard, account: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """An empty intake. `needless` returns why to drop a group before grading, `unfit` why a group that teaches does
        not suit this policy; None to keep it. `teaches` says whether a group with these rewards is wanted. `keep` is
        told what became of each group that was opened. `trusted` are the peers whose word counts for what their own
        tools said. Groups of `unreadable` tasks have pictures or sounds that this policy cannot read. `choice` decides
        which groups to grade; by default all are. `max_completions` says how many a group may have: an update's means
        are over completions, so that a larger group would be a larger part of it. `committed` is told what authors
        committed to, and their accounts, before their groups are looked at.
        """
        self._exchange = exchange
        self._verifier = verifier
        self._ledger = ledger
        self._needless = needless
        self._committed = committed
        self._unfit = unfit
        self._teaches = teaches
        self._keep = keep
        self._trusted = frozenset(trusted)
        self._unreadable = frozenset(unreadable)
        self._choice = choice or Everything()
        self._max_completions = max_completions
        self._clock = clock
        self._waiting = Waiting(limits)
        self._pulling: dict[str, Received] = {}
        """Offers by key."""
        self._late: set[str] = set()
        """Those of `_pulling` that nothing waits for."""
        self._grading: dict[str, Received] = {}
        """By content id."""

    def __len__(self) -> int:
        """Groups that wait for grading or are being graded; those on offer are not here yet."""
        return self._waiting.num_here() + len(self._grading)

    def receive(self, held: Container[str]) -> list[tuple[str, GradedGroup]]:
        """(content id, group) of the groups graded since the last call that can teach.

        Takes in newly received groups, except those whose id is in `held`, and starts to grade the chosen ones.
        """
        arrived, refused = self._exchange.receive()
        self._ledger.received(len(arrived) + sum(refused.values()))
        for reason, count in refused.items():
            self._ledger.dropped(reason, count)
        for heard in self._exchange.commitments():
            if num_digests(heard.content) <= self._max_completions():
                self._committed(heard, self._exchange.account(heard.peer_id))
        for content_id, group in arrived:
            self._enter(content_id, group, held)
        for offered in self._exchange.offers():
            self._note(offered, held)
        self._leave(self._waiting.expire(self._clock()))
        self._drop_banned()
        self._give_up_late()
        for key in self._choice.choose(self._waiting):
            self._begin(self._waiting.take(key))
        settled = [self._graded(key, verdict) for key, verdict in self._verifier.collect()]
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

    def _enter(self, content_id: str, group: RolloutGroup, held: Container[str]) -> None:
        chosen = ""
        for key, offered in list(self._pulling.items()):
            if offered.content_id == content_id:
                self._stop_pulling(key)
                if offered.peer_id == group.peer_id:
                    chosen = key
                else:
                    # Who offered it earns nothing with another's group, which then waits like any other.
                    self._choice.checked(key, usable=False)
        # The exchange forgets old groups and those from before a restart; the ids held here detect such duplicates.
        if self._waiting.has_group(content_id) or content_id in self._grading or content_id in held:
            self._drop(Reason.DUPLICATE, group)
        elif reason := self._unwanted(group):
            self._drop(reason, group)
            self._exchange.report(group.peer_id, reason)
        elif chosen:
            self._choice.came(chosen, content_id)
            self._begin(self._received(content_id, group, group.memory_bytes))
            return
        else:
            self._wait(self._received(content_id, group, group.memory_bytes))
        if chosen:
            self._choice.checked(chosen, usable=False)

    def _unwanted(self, group: RolloutGroup) -> Reason | None:
        """Why to drop a group before grading."""
        if group.question.task in self._unreadable:
            return Reason.CANNOT_PERCEIVE
        return Reason.TOO_MANY if len(group.completions) > self._max_completions() else self._needless(group)

    def _note(self, offered: OfferedGroup, held: Container[str]) -> None:
        """An offer waits if it teaches by its author's own word, is not too large, and neither it nor the group is
        known."""
        offer = offered.offer
        received = self._received(offer.content_id.hex(), offered, OFFER_BYTES)
        known = self._waiting.has_group(received.content_id) or any(
            name in places
            for name, places in (
                (received.key, self._waiting),
                (received.key, self._pulling),
                (received.content_id, self._grading),
                (received.content_id, held),
            )
        )
        unwanted = offer.task in self._unreadable or offer.num_completions > self._max_completions()
        if not known and not unwanted and self._teaches(offer.rewards):
            self._ledger.offered(1)
            self._wait(received)

    def _received(self, content_id: str, content: RolloutGroup | OfferedGroup, num_bytes: int) -> Received:
        return Received(content_id, content, self._exchange.account(content.peer_id), num_bytes, self._clock())

    def _wait(self, received: Received) -> None:
        self._leave(self._waiting.add(received, self._grading.values()))

    def _leave(self, left: Iterable[tuple[Received, Reason]]) -> None:
        for received, reason in left:
            if isinstance(received.content, RolloutGroup):  # an offer costs nothing
                self._drop(reason, received.content)

    def _begin(self, received: Received) -> None:
        """Grade a chosen group, or fetch it if it is on offer."""
        content = received.content
        if isinstance(content, OfferedGroup):
            self._pulling[received.key] = replace(received, arrived_at=self._clock())
            self._exchange.pull(content, PULL_PATIENCE_S)
            return
        self._grading[received.content_id] = received
        self._ledger.checked(1)
        actions = [completion.actions for completion in content.completions]
        self._verifier.submit(received.content_id, content.question, actions, received.account)

    def _stop_pulling(self, key: str) -> None:
        self._late.discard(key)
        del self._pulling[key]

    def _drop_banned(self) -> None:
        """What banned authors offered cannot be had any more."""
        if not (banned := self._exchange.banned()):
            return
        for received in self._waiting:
            if received.peer_id in banned and isinstance(received.content, OfferedGroup):
                self._waiting.take(received.key)
        for key, received in list(self._pulling.items()):
            if received.peer_id in banned:
                self._stop_pulling(key)
                self._choice.checked(key, usable=False)

    def _give_up_late(self) -> None:
        now = self._clock()
        for key, received in list(self._pulling.items()):
            waited_s = now - received.arrived_at
            if waited_s > PULL_PATIENCE_S:
                self._stop_pulling(key)
                self._choice.checked(key, usable=False)
            elif waited_s > PROMISE_S and key not in self._late:
                self._late.add(key)
                self._choice.late(key)

    def _graded(self, content_id: str, verdict: Grade | Rejection) -> tuple[str, GradedGroup] | None:
        content = self._grading.pop(content_id).content
        assert isinstance(content, RolloutGroup)
        return self._admit(content_id, content, verdict)

    def _admit(
        self, content_id: str, group: RolloutGroup, verdict: Grade | Rejection
    ) -> tuple[str, GradedGroup] | None:
        began = time.perf_counter()
        graded = self._judged(group, verdict)
        # The time spent in this thread is charged to the sender, too.
        spent_s = verdict.seconds + time.perf_counter() - began
        self._choice.checked(content_id, usable=isinstance(graded, GradedGroup))
        if not isinstance(graded, GradedGroup):
            self._exchange.report(group.peer_id, graded, spent_s)
            self._drop(graded, group if isinstance(verdict, Rejection) else with_grade(group, verdict))
            return None
        # A sender earns nothing with groups without signal, even where they are kept.
        outcome: Outcome = "informative" if has_signal(graded.rewards) else Reason.ZERO_ADVANTAGE
        self._exchange.report(group.peer_id, outcome, spent_s)
        return content_id, graded

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
            if group.peer_id not in self._trusted:
                return Reason.UNTRUSTED
            verdict = as_told(group, verdict)
        if not is_whole(group, verdict):
            return Reason.EPISODE_MISMATCH
        if not self._teaches(verdict.rewards):
            return Reason.ZERO_ADVANTAGE
        graded = with_grade(group, verdict)
        return self._unfit(graded) or graded
