"""A student: it asks the teachers that its owner chose about its own answers, and learns from what they say.

    round n      own groups, some of them ──▶ teachers, each group one of them     threads wait, training goes on
    round n + d  spans ──▶ advantages of tokens ──▶ update, as groups of their own whose rewards say nothing
                   │                                   │ sketches of gradients
                   ▼                                   ▼
                 agreement with rewards            worth in own groups ──▶ weight of the teacher, 0: dropped

A teacher's numbers cannot be recomputed without its model. What limits a lie: a token's advantage is bounded, an answer
is signed for one request, a question asked twice must get one answer, and a teacher counts in so far as it prefers what
this node's verifier rewards. That is measured on the node's own groups with signal: the correlation, over a group's
completions, of the rewards' advantages with the teacher's, which is the inner product of the two policy gradients if
those of different completions are orthogonal; and with the teacher's own numbers, whichever is less. The first alone
would trust noise: where what is right is improbable to the student, T - S prefers it whatever T is. Where sketches of
gradients are taken (`telemetry.worth_every_rounds`), the worth of a teacher's groups is estimated as that of other
peers'.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.extras.distill.messages import (
    MAX_READ_CHARS,
    TEACH_PROTOCOL,
    Ask,
    encode_ask,
    open_opinion,
    spans_of,
)
from swarm.extras.distill.spans import Spans, advantages, cuts, differences
from swarm.groups.credit import has_signal
from swarm.groups.part import only
from swarm.net.records.envelope import MAX_REQUEST_BYTES
from swarm.protocols import GradientSketcher, Transport, Updater
from swarm.sapo.worth import WorthEstimator
from swarm.teaching import DistillSettings, TeacherState
from swarm.types import GradedGroup, ReadTurn, UpdateReport

logger = logging.getLogger(__name__)

IN_FLIGHT = 8
"""Questions that one teacher is asked at a time."""
MOST_TEXT_BYTES = MAX_REQUEST_BYTES - 2**16
LONGEST_REST_S = 300.0
"""Before a teacher that did not answer is asked again."""
MIN_GROUPS = 6
"""Groups with signal before a teacher is judged by them."""
MAX_GROUPS = 256
CLEAR = 3.0
"""Standard errors by which the mean agreement must differ from 0: it is looked at after each group."""
FRESH_ROUNDS = 12
"""Rounds without a group that says something about a teacher, after which it is not trusted: what it teaches may be why
nothing is rewarded any more."""
FADED = 0.01
"""Part of the weight (`half_life`) below which no teacher is asked and nothing is learned."""
PROBE = 0.125
"""Fraction of the questions that a teacher is still asked which prefers what is not rewarded: it may improve."""
RECENT_GROUPS = 24
"""A teacher's newest groups, whose mean agreement must be above 0 too, or it could live on its past."""
SAME_NATS = 0.5
"""Mean difference of a span in two answers about one text above which they contradict each other: kernels, rounding and
an update between them make less."""
MOST_CONTRADICTIONS = 3
"""With the third one a teacher is dropped."""


@dataclass(eq=False)
class _Teacher:
    peer_id: str
    in_flight: int = 0
    failures: int = 0
    """In a row."""
    rests_until: float = 0.0
    contradictions: int = 0
    is_dropped: bool = False
    """It contradicts itself, or what it says lowers the reward."""
    agreement: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_GROUPS))
    judged_at: int = 0
    """Round of the last group that said something about it."""

    def note(self, agreement: float, round: int) -> None:
        """Add that of one group, in [-1, 1]."""
        self.agreement.append(agreement)
        self.judged_at = round

    @property
    def score(self) -> float | None:
        """Mean agreement in standard errors; None before `MIN_GROUPS`."""
        count = len(self.agreement)
        return fmean(self.agreement) / (stdev(self.agreement) / sqrt(count) + 1e-9) if count >= MIN_GROUPS else None

    def trust(self, untested: float, round: int) -> float:
        """Weight of what it says, in [0, 1]; `untested` before it is judged."""
        if self.is_dropped:
            return 0.0
        if self.score is None:
            return untested
        recent = fmean(list(self.agreement)[-RECENT_GROUPS:])
        return float(self.score > CLEAR and recent > 0 and round - self.judged_at <= FRESH_ROUNDS)

    @property
    def is_bad(self) -> bool:
        """Whether it clearly prefers what is not rewarded."""
        return self.score is not None and self.score < -CLEAR


@dataclass(frozen=True, eq=False)
class _Answered:
    teacher: _Teacher
    group: GradedGroup
    said: Sequence[Spans]
    """[G]"""


class TextPolicy(Protocol):
    """A policy's tokens as text."""

    def decode(self, ids: list[int]) -> str:
        """Text of ids, without special tokens."""

    def hides(self, ids: Sequence[int]) -> bool:
        """Whether a completion has tokens that its text does not show, apart from a final end token."""


class Learning:
    """Asks teachers, and judges them."""

    def __init__(
        self,
        settings: DistillSettings,
        teachers: Sequence[str],
        transport: Transport,
        policy: TextPolicy,
        rewards_to_advantages: Callable[[Sequence[float]], list[float]],
        unshared: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tasks that are `unshared` go to no teacher either."""
        self._settings = settings
        self._transport = transport
        self._policy = policy
        self._advantages = rewards_to_advantages
        self._unshared = unshared
        self._clock = clock
        self._chance = random.Random()
        self.teachers = {peer_id: _Teacher(peer_id) for peer_id in teachers}
        self._round: list[GradedGroup] = []
        """Own groups of this round that can be asked about."""
        self._num_rounds = 0
        self._decay = 1.0
        """Part of the weight that is left."""
        self._arrived: deque[_Answered] = deque()
        self._lock = threading.Lock()
        """Guards teachers and counts."""
        self._counts: Counter[str] = Counter()

    def dump(self) -> dict[str, TeacherState]:
        """What is known of each teacher, for a checkpoint."""
        return {
            name: TeacherState(
                list(each.agreement), self._num_rounds - each.judged_at, each.contradictions, each.is_dropped
            )
            for name, each in self.teachers.items()
        }

    def restore(self, states: Mapping[str, TeacherState]) -> None:
        """Go on with what `dump` gave, about those that are still teachers. Raises `ValueError` for what it never
        gives."""
        for name in states.keys() & self.teachers.keys():
            state, teacher = states[name], self.teachers[name]
            if not all(-1 <= each <= 1 for each in state.agreement):
                raise ValueError(f"the agreement of {name} must lie in [-1, 1]")
            teacher.agreement.extend(state.agreement)
            teacher.judged_at = self._num_rounds - state.age
            teacher.contradictions, teacher.is_dropped = state.contradictions, state.is_dropped

    def counters(self) -> dict[str, int]:
        """Cumulative counts of questions: asked, answered, busy, unreachable, refused, contradicted, late."""
        with self._lock:
            return dict(self._counts)

    def offer(self, graded: GradedGroup) -> None:
        """One of this round's own groups; it may be asked about if its answers have one turn each and hide nothing."""
        completions = graded.group.completions
        readable = all(
            not each.turns
            and each.forced is None
            and len(each.logprobs) == len(each.token_ids) > 0
            and not self._policy.hides(each.token_ids)
            for each in completions
        )
        fits = sum(len(each.text.encode()) for each in completions) < MOST_TEXT_BYTES and all(
            len(each.text) <= MAX_READ_CHARS for each in completions
        )
        if readable and fits and graded.group.question.task not in self._unshared:
            self._round.append(graded)

    def ask(self) -> None:
        """Ask about some groups of this round, and forget the others."""
        groups, self._round = self._round, []
        self._num_rounds += 1
        if self._decay < FADED:
            return
        self._chance.shuffle(groups)
        if not any(self._trust(each) for each in self.teachers.values()):
            groups = [graded for graded in groups if has_signal(graded.rewards)]  # the others judge nobody
        for graded in groups[: self._settings.groups]:
            teacher = self._free()
            if teacher is None:
                return
            # Daemons: a teacher that keeps one waiting must not keep this process from its end.
            threading.Thread(target=self._ask, args=(teacher, graded), name="asking", daemon=True).start()

    def taught(self, version: int) -> tuple[list[GradedGroup], list[str], dict[str, float]]:
        """The groups that teachers have answered about, with a teacher's advantages and no others; their teachers; and
        figures. `version` is that of the policy."""
        if self._settings.half_life:
            self._decay = 0.5 ** (version / self._settings.half_life)
        groups, teachers, found, missed = [], [], [], 0
        while self._arrived:
            answered = self._arrived.popleft()
            if version - answered.group.group.oldest_version > self._settings.max_staleness:
                self._count("late")
                continue
            each = self._differences(answered)
            self._judge(answered, each)
            known = [value for tokens in each for value in tokens if value is not None]
            missed += sum(map(len, each)) - len(known)
            found += known
            if known and self._decay >= FADED and (trust := self._trust(answered.teacher)) > 0:
                weight = self._settings.weight * self._decay * trust
                added = [advantages(tokens, weight, self._settings.bound) for tokens in each]
                groups.append(_without_rewards(answered.group, added))
                teachers.append(answered.teacher.peer_id)
        figures = {
            "distill/groups": float(len(groups)),
            "distill/trust": fmean(map(self._trust, self.teachers.values())),
        }
        figures |= {f"distill/trust/{name[-8:]}": self._trust(each) for name, each in self.teachers.items()}
        if found:
            figures |= {"distill/kl": -fmean(found), "distill/left_out": missed / (missed + len(found))}
        if known_agreement := [value for each in self.teachers.values() for value in each.agreement]:
            figures["distill/agreement"] = fmean(known_agreement)
        return groups, teachers, figures

    def imitated(self, graded: GradedGroup) -> GradedGroup:
        """Another peer's group, to be imitated if a trusted teacher sampled it.

        E[log p] over a teacher's samples has the gradient of -KL(teacher || student): each token's advantage is 1.
        """
        teacher = self.teachers.get(graded.group.peer_id)
        if teacher is None or self._decay < FADED:
            return graded
        return replace(graded, imitated=self._settings.imitate * self._decay * self._trust(teacher))

    def _trust(self, teacher: _Teacher) -> float:
        return teacher.trust(self._settings.untested, self._num_rounds)

    def _free(self) -> _Teacher | None:
        """A teacher that may be asked now; it is, with what is returned."""
        with self._lock:
            now = self._clock()
            free = [
                each
                for each in self.teachers.values()
                if not each.is_dropped
                and each.in_flight < IN_FLIGHT
                and each.rests_until <= now
                and (not each.is_bad or self._chance.random() < PROBE)
            ]
            if not free:
                return None
            teacher = self._chance.choice(free)
            teacher.in_flight += 1
            self._counts["asked"] += 1
            return teacher

    def _ask(self, teacher: _Teacher, graded: GradedGroup) -> None:
        outcome = "unreachable"
        try:
            said = again = self._answer(teacher, graded)
            if said is not None and random.random() < self._settings.ask_twice:
                again = self._answer(teacher, graded)
            if said is None or again is None:
                outcome = "busy"
            elif not agree(said, again):
                outcome = "contradicted"
            else:
                outcome = "answered"
                self._arrived.append(_Answered(teacher, graded, said))
        except Refusal as refusal:
            outcome = "refused"
            logger.info("the teacher %s gave no usable answer: %s", teacher.peer_id, refusal)
        except (PeerUnreachable, TransportError) as error:
            logger.debug("the teacher %s does not answer: %s", teacher.peer_id, error)
        finally:
            self._note(teacher, outcome)

    def _note(self, teacher: _Teacher, outcome: str) -> None:
        with self._lock:
            self._counts[outcome] += 1
            teacher.in_flight -= 1
            if outcome == "contradicted":
                teacher.contradictions += 1
                if teacher.contradictions >= MOST_CONTRADICTIONS:
                    teacher.is_dropped = True
                    logger.warning("the teacher %s contradicts itself: it is asked no more", teacher.peer_id)
            teacher.failures = 0 if outcome == "answered" else min(16, teacher.failures + 1)
            if teacher.failures:
                teacher.rests_until = self._clock() + min(LONGEST_REST_S, 0.5 * 2.0**teacher.failures)

    def _answer(self, teacher: _Teacher, graded: GradedGroup) -> list[Spans] | None:
        """[G] what the teacher says of each completion; None for not now. Raises `PeerUnreachable`, `Refusal`."""
        manifest = self._transport.manifest()
        if manifest is None:
            return None
        texts = tuple((each.text, each.finish_reason == "stop") for each in graded.group.completions)
        request = encode_ask(Ask(manifest.run_id, graded.group.question, texts, os.urandom(16)))
        answer = self._transport.request(teacher.peer_id, TEACH_PROTOCOL, request, self._settings.timeout_s)
        return list(map(spans_of, open_opinion(answer, request, texts, teacher.peer_id).said)) if answer else None

    def _differences(self, answered: _Answered) -> list[list[float | None]]:
        """[G][T] nats by which the teacher finds each token's span likelier."""
        found = []
        for completion, said in zip(answered.group.group.completions, answered.said, strict=True):
            cut = cuts(self._policy.decode, completion.token_ids, completion.text, completion.finish_reason == "stop")
            nothing: list[float | None] = [None] * len(completion.token_ids)
            found.append(differences(cut, completion.logprobs, said) if cut else nothing)
        return found

    def _judge(self, answered: _Answered, found: Sequence[Sequence[float | None]]) -> None:
        """Does the teacher prefer what was rewarded?"""
        bound, rewards = self._settings.bound, answered.group.rewards
        rows = [
            (
                wanted,
                fmean(min(max(each, -bound), bound) for each in tokens if each is not None),
                fmean(theirs.logprobs),
            )
            for wanted, tokens, theirs in zip(self._advantages(rewards), found, answered.said, strict=True)
            if any(each is not None for each in tokens)
        ]
        if has_signal(rewards) and len(rows) > 1:
            columns = np.array(rows).T
            if all(columns.std(axis=1) > 0):
                answered.teacher.note(float(np.corrcoef(columns)[0, 1:].min()), self._num_rounds)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


def agree(first: Sequence[Spans], second: Sequence[Spans]) -> bool:
    """Whether two answers [G] about the same texts can both be true, whatever versions they name."""
    for ours, theirs in zip(first, second, strict=True):
        if list(ours.ends) != list(theirs.ends):
            return False
        apart = [abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True)]
        if apart and fmean(apart) > SAME_NATS:
            return False
    return True


def _without_rewards(graded: GradedGroup, added: Sequence[tuple[float, ...]]) -> GradedGroup:
    """The group for a teacher's advantages alone, without completions that it says nothing about."""
    whole = replace(graded, rewards=(0.0,) * len(graded.rewards), parts={}, factors=(), added=tuple(added))
    return only(whole, [any(tokens) for tokens in added])


class TaughtUpdater:
    """The node's updater and its sketcher: each update also has the groups that teachers have answered about, and
    imitates what they share."""

    def __init__(self, inner: Updater, sketcher: GradientSketcher, learning: Learning, worth: WorthEstimator) -> None:
        """`worth` measures teachers, whenever the node measures others' groups."""
        self._inner = inner
        self._sketcher = sketcher
        self._learning = learning
        self._worth = worth
        self._num_own = self._num_others = 0
        """Groups in the last update."""
        self._teachers: list[str] = []
        """Teachers of the groups between them."""

    @property
    def version(self) -> int:
        """See `Updater`."""
        return self._inner.version

    @property
    def max_chars(self) -> int:
        """See `Updater`."""
        return self._inner.max_chars

    def fits(self, group: GradedGroup) -> bool:
        """See `Updater`."""
        return self._inner.fits(group)

    def read(
        self, groups: Sequence[GradedGroup], wanted: Sequence[Sequence[bool]] | None = None
    ) -> list[list[list[ReadTurn]]]:
        """See `Updater`."""
        return self._inner.read(groups, wanted)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """See `Updater`."""
        return self._inner.advantages(rewards)

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """See `Updater`."""
        measured = self._worth.measured()
        for peer_id, each in measured.items():
            self._learning.teachers[peer_id].is_dropped |= each.high <= 0
        groups, self._teachers, figures = self._learning.taught(self._inner.version)
        self._num_own, self._num_others = len(local), len(external)
        report = self._inner.update([*local, *groups], [self._learning.imitated(each) for each in external])
        worth = {f"distill/worth/{peer_id[-8:]}": each.value for peer_id, each in measured.items()}
        return replace(report, figures={**report.figures, **figures, **worth})

    @property
    def refusal(self) -> str | None:
        """See `GradientSketcher`."""
        return self._sketcher.refusal

    @property
    def seconds(self) -> float:
        """See `GradientSketcher`."""
        return self._sketcher.seconds

    def begin_sketches(self) -> None:
        """See `GradientSketcher`."""
        self._sketcher.begin_sketches()

    def take_sketches(self) -> npt.NDArray[np.float32] | None:
        """The sketches without those of teachers' groups, whose worth is measured here."""
        found = self._sketcher.take_sketches()
        first, last = self._num_own, self._num_own + len(self._teachers)
        if found is None or not self._teachers or len(found) != last + self._num_others:
            return found
        if np.isfinite(found).all():
            self._worth.add(found[:last], self._teachers, first)
        return np.delete(found, slice(first, last), axis=0)
