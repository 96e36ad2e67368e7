"""Received groups before they can teach: the exchange has checked their envelopes; here they are regraded.

    exchange inbox ──▶ needless? ──▶ pending, in the verifier's queue ──▶ whole? ──▶ signal? ──▶ unfit? ──▶ (id, graded)

The outcome of each group goes into the ledger, and to the exchange for its sender's account.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Sequence

from msgspec import Struct

from swarm.groups.building import with_grade
from swarm.groups.episodes import as_told, has_own_calls, is_whole
from swarm.groups.signal import has_signal
from swarm.protocols import GroupExchange, KeepSample, Verifier
from swarm.reasons import Outcome, Reason
from swarm.telemetry.ledger import Ledger
from swarm.types import Grade, GradedGroup, Rejection, RolloutGroup

MAX_PENDING_BYTES = 64 * 2**20
"""Memory of all groups that are being graded; at least one is always admitted."""
MAX_PART = 4
"""Groups on one account take at most 1 / MAX_PART of it."""


def cannot_fit(group: RolloutGroup, max_chars: int) -> bool:
    """Whether a completion has more characters than the policy's tokens can cover; needs no tokenizing."""
    return any(len(completion.text) > max_chars for completion in group.completions)


class _Pending(Struct, frozen=True):
    group: RolloutGroup
    account: str
    num_bytes: int
    """Memory of the group."""


class Intake:
    """Regrades each received group once."""

    def __init__(
        self,
        exchange: GroupExchange,
        verifier: Verifier,
        ledger: Ledger,
        max_pending_per_peer: int,
        needless: Callable[[RolloutGroup], Reason | None] = lambda group: None,
        unfit: Callable[[GradedGroup], Reason | None] = lambda graded: None,
        teaches: Callable[[Sequence[float]], bool] = has_signal,
        keep: KeepSample = lambda fate, group: None,
        trusted: Collection[str] = (),
    ) -> None:
        """An empty intake. `needless` returns why to drop a group before grading, `unfit` why a group that teaches does
        not suit this policy; None to keep it. `teaches` says whether a group with these rewards is wanted. `keep` is
        told what became of each group that was opened. `trusted` are the peers whose word counts for what their own
        tools said.
        """
        self._exchange = exchange
        self._verifier = verifier
        self._ledger = ledger
        self._max_pending_per_peer = max_pending_per_peer
        self._needless = needless
        self._unfit = unfit
        self._teaches = teaches
        self._keep = keep
        self._trusted = frozenset(trusted)
        self._pending: dict[str, _Pending] = {}

    def __len__(self) -> int:
        """Groups that are being graded."""
        return len(self._pending)

    def receive(self, held: Container[str]) -> list[tuple[str, GradedGroup]]:
        """(content id, group) of the groups graded since the last call that can teach.

        Starts to grade newly received groups, except those whose id is in `held`.
        """
        arrived, refused = self._exchange.receive()
        self._ledger.received(len(arrived) + sum(refused.values()))
        for reason, count in refused.items():
            self._ledger.dropped(reason, count)
        for content_id, group in arrived:
            self._begin(content_id, group, held)
        settled = [self._admit(key, self._pending.pop(key).group, verdict) for key, verdict in self._verifier.collect()]
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

    def _begin(self, content_id: str, group: RolloutGroup, held: Container[str]) -> None:
        # The exchange forgets old groups and those from before a restart; the ids held here detect such duplicates.
        if content_id in self._pending or content_id in held:
            self._drop(Reason.DUPLICATE, group)
        elif not self._has_room_for(new := self._weighed(group)):
            self._drop(Reason.PEER_QUOTA, group)
        elif reason := self._needless(group):
            self._drop(reason, group)
            self._exchange.report(group.peer_id, reason)
        else:
            self._pending[content_id] = new
            actions = [completion.actions for completion in group.completions]
            self._verifier.submit(content_id, group.question, actions, new.account)

    def _admit(
        self, content_id: str, group: RolloutGroup, verdict: Grade | Rejection
    ) -> tuple[str, GradedGroup] | None:
        began = time.perf_counter()
        graded = self._judged(group, verdict)
        # The time spent in this thread is charged to the sender, too.
        spent_s = verdict.seconds + time.perf_counter() - began
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
