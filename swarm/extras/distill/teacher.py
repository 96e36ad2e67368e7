"""A teacher: it answers what students ask, between its own rounds, within the budget that its owner set.

    network thread    request ──▶ may it ask? room? ──▶ waiting, a few a student ─ ─ ─ ─ ─ ─ ─ ─▶ signed answer
                                        │ no                        ▲                  ▲
                                        ▼                           │ turns, budget    │
                                  empty answer         main thread  └──▶ question made again ──▶ passes over texts

Questions are made again by the verifier from their references, without the students' texts: nothing of a student's is
graded. Its texts are read as other peers' completions are for an update.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass

from swarm.errors import Refusal
from swarm.extras.distill.messages import MAX_READ_CHARS, TEACH_PROTOCOL, Ask, open_ask, seal
from swarm.extras.distill.spans import Decode, Spans, cuts, spans
from swarm.lru import LruDict
from swarm.net.bandwidth import TokenBucket
from swarm.net.records.identity import Identity
from swarm.protocols import Transport, Updater, Verifier
from swarm.teaching import TeachSettings
from swarm.types import Completion, Grade, GradedGroup, PolicyId, RolloutGroup, Sampling

logger = logging.getLogger(__name__)

MAX_WAITING, MAX_WAITING_PER_STUDENT = 32, 8
MAX_STUDENTS = 256
"""Remembered."""
MAX_WAIT_S = 3_600.0
"""A student waits as long as it likes, which its place bounds; this is for one whose end is not noticed."""
MAX_QUESTION_S = 10.0
"""For the verifier to make a question again."""
SLOW_S = 300.0
"""For which a student whose question took longer is refused."""
BATCH_PASSES = 64
"""Passes for texts that are read together."""
NOTHING = Spans((), ())


@dataclass(eq=False)
class _Waiting:
    """A request of a student."""

    student: str
    request: bytes
    ask: Ask
    since: float
    answer: bytes | None = None
    """None until it is there; empty: none will be."""


class Teaching:
    """The requests of students, and their answers."""

    def __init__(
        self,
        settings: TeachSettings,
        identity: Identity,
        transport: Transport,
        verifier: Verifier,
        updater: Updater,
        decode: Decode,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve students on this transport; `updater` reads their texts."""
        self._settings = settings
        self._identity = identity
        self._transport = transport
        self._verifier = verifier
        self._updater = updater
        self._decode = decode
        self._clock = clock
        self._budget = TokenBucket(settings.passes_per_min / 60, max(float(BATCH_PASSES), settings.passes_per_min))
        """Passes; taken when a request has its turn."""
        self._had_a_turn = LruDict[str, float](MAX_STUDENTS)
        """When, by student."""
        self._slow = LruDict[str, float](MAX_STUDENTS)
        """When the verifier did not make a question again in time, by student."""
        self._lock = threading.Lock()
        """Guards the budget, what is remembered of students, what waits, and the counts."""
        self._waiting: deque[_Waiting] = deque()
        self._counts: Counter[str] = Counter()
        self._is_closed = False
        transport.serve_stream(TEACH_PROTOCOL, self._serve)

    def counters(self) -> dict[str, int]:
        """Cumulative counts: requests taught, refused, busy and failed, texts read."""
        with self._lock:
            return dict(self._counts)

    def teach(self) -> None:
        """Answer what waits, students in turns, for as long as is allowed between two rounds."""
        ends_at = self._clock() + self._settings.seconds_per_round
        while self._clock() < ends_at and (batch := self._next()):
            try:
                self._answer(batch, ends_at)
            except Exception:  # one of them is to blame
                for each in [each for each in batch if each.answer is None]:
                    try:
                        self._answer([each], ends_at)
                    except Exception:
                        logger.warning("the student %s was not answered", each.student, exc_info=True)
                        self._count("failed")
            for each in batch:
                each.answer = each.answer or b""

    def close(self) -> None:
        """Leave what waits, and admit no more."""
        with self._lock:
            self._is_closed = True
            for each in self._waiting:
                each.answer = b""
            self._waiting.clear()

    def _serve(self, student: str, request: bytes) -> Iterator[bytes | None]:
        waiting = self._admit(student, request)
        if waiting is None:
            return
        try:
            while waiting.answer is None and self._clock() < waiting.since + MAX_WAIT_S:
                yield None
            if waiting.answer:
                yield waiting.answer
        finally:  # also when the student has left
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)

    def _admit(self, student: str, request: bytes) -> _Waiting | None:
        """The request, unless its student must not ask it, or there is no room for it. Raises `Refusal`."""
        manifest = self._transport.manifest()
        if manifest is None or (self._settings.students and student not in self._settings.students):
            self._count("refused")
            return None
        try:
            ask = open_ask(request, manifest.run_id)
        except Refusal:
            self._count("refused")
            raise
        if ask.passes > self._budget.burst or any(len(text) > MAX_READ_CHARS for text, _ in ask.texts):
            self._count("refused")
            return None
        with self._lock:
            now = self._clock()
            if self._is_closed or now < self._slow.get(student, -math.inf) + SLOW_S:
                self._counts["refused"] += 1
                return None
            if not self._has_room(student):
                self._counts["busy"] += 1
                return None
            waiting = _Waiting(student, request, ask, now)
            self._waiting.append(waiting)
            return waiting

    def _has_room(self, student: str) -> bool:
        """Whether a place is free, or is now: the newest of the student with the most waiting makes room for one with
        fewer, which then still has no more than that one."""
        places = Counter(each.student for each in self._waiting)
        if places[student] >= MAX_WAITING_PER_STUDENT:
            return False
        if len(self._waiting) >= MAX_WAITING:
            (most, number), *_ = places.most_common(1)
            if places[student] + 1 >= number:
                return False
            newest = next(each for each in reversed(self._waiting) if each.student == most)
            self._waiting.remove(newest)
            newest.answer = b""
            self._counts["busy"] += 1
        return True

    def _next(self) -> list[_Waiting]:
        """Some requests that the budget has passes for: of each student first the oldest one, and first of the student
        whose last turn is longest ago."""
        with self._lock:
            now = self._clock()
            turns = Counter[str]()
            order = []
            for each in self._waiting:
                order.append((turns[each.student], self._had_a_turn.get(each.student, -math.inf), each.since, each))
                turns[each.student] += 1
            batch: list[_Waiting] = []
            num_passes = 0
            for *_, each in sorted(order, key=lambda entry: entry[:3]):
                num_passes += each.ask.passes
                if (batch and num_passes > BATCH_PASSES) or each.ask.passes > self._budget.left(now):
                    break
                self._budget.spend(each.ask.passes, now)
                self._had_a_turn[each.student] = now
                batch.append(each)
                self._waiting.remove(each)
            return batch

    def _answer(self, batch: Sequence[_Waiting], ends_at: float) -> None:
        """Raises what the verifier and the updater raise."""
        making = [self._verifier.begin_grading(each.ask.question, ()) for each in batch]
        limit_s = min(MAX_QUESTION_S, max(0.0, ends_at - self._clock()))
        made = wait(making, limit_s).done
        late = [each.student for each, future in zip(batch, making, strict=True) if future not in made]
        if late and limit_s >= min(MAX_QUESTION_S, self._settings.seconds_per_round) / 2:
            with self._lock:
                self._slow[late[0]] = self._clock()  # the others may have waited behind it
        asked: list[tuple[_Waiting, GradedGroup]] = []
        for each, future in zip(batch, making, strict=True):
            grade = future.result() if future in made else None
            group = _as_group(each.ask, grade) if isinstance(grade, Grade) and not grade.held_out else None
            if group is not None and self._updater.fits(group):
                asked.append((each, group))
            else:
                each.answer = b""
                self._count("refused")
        if not asked:
            return
        for (each, group), read in zip(asked, self._updater.read([group for _, group in asked]), strict=True):
            opinions = []
            for completion, turns in zip(group.group.completions, read, strict=True):
                cut: Sequence[int | None] = ()
                if turns:
                    ended = completion.finish_reason == "stop"
                    cut = cuts(self._decode, turns[0].ids, completion.text, ended)
                known = cut and all(map(math.isfinite, turns[0].logprobs))
                opinions.append(spans(cut, turns[0].logprobs) if known else NOTHING)
            each.answer = seal(self._identity, each.request, self._updater.version, opinions)
            self._count("taught")
            self._count("texts", len(opinions))

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number


def _as_group(ask: Ask, grade: Grade) -> GradedGroup:
    """The texts as a group of another peer's."""
    completions = tuple(Completion(text, "stop" if ended else "length") for text, ended in ask.texts)
    rewards = (0.0,) * len(completions)
    who = PolicyId("student", "", 0)
    return GradedGroup(
        RolloutGroup(ask.run_id, "", 0, 0.0, who, Sampling(), ask.question, completions, rewards), grade.prompt, rewards
    )
