"""A giver: answers of an endpoint to questions of its own stream, graded here, and shared where they have signal.

    draw ──▶ ask, as many at once as the endpoint takes ──▶ grade ──▶ signal? ──▶ share

It asks nothing while there is nobody to give to, or no room for its groups. Its groups are text, as everybody's are:
receivers regrade them.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Generator

from msgspec import Struct

from swarm.extras.give.demand import TaskDemand
from swarm.figures import Figure, joined, values
from swarm.groups.building import Member, OwnGroups, with_grade, without_group
from swarm.groups.credit import has_signal
from swarm.groups.episodes import FinishedGroup, Stream
from swarm.groups.flow import Flow
from swarm.groups.rollout_figures import rewards_by_task, rollout_figures
from swarm.protocols import GroupExchange, KeepSample, Verifier
from swarm.reasons import Reason
from swarm.telemetry.ledger import Ledger
from swarm.types import GradedGroup, Question, Rejection

MAX_WAIT_S = 60.0
"""Longest pause between two rounds."""
PATIENCE = 8
"""Rounds without signal before the pauses between them begin, each twice as long as the one before: whoever is always
right or never would ask a server that may cost money, for nothing."""


class GivingPlan(Struct, frozen=True):
    """What a giver asks."""

    num_questions: int
    """Questions of one round, which is what a line of the metrics is about."""
    group_size: int
    slots: int
    """Completions asked for together, at most."""
    first: int = 0
    """Index of the first question in its stream."""
    tasks: tuple[str, ...] = ()
    """Names of the run's tasks."""
    groups: int | None = None
    """Groups with which it has given enough."""
    patience: float = PATIENCE
    most_open: float = math.inf
    """Questions asked at a time."""


class GivenRound(Struct, frozen=True):
    """The result of one round of questions."""

    reward: float | None
    """Mean over the graded completions; None without any."""
    num_shared: int
    num_informative: int
    """Groups with signal, shared or not."""
    seconds: float
    figures: dict[str, float] = {}
    tasks: dict[str, tuple[float, int]] = {}
    problem: str = ""
    """Why none of its questions has a group; empty if one has."""
    groups: tuple[GradedGroup, ...] = ()


class Giver:
    """One thread. `run_round` raises what engine and verifier raise, and can then be called again."""

    def __init__(
        self,
        plan: GivingPlan,
        me: Member,
        stream: Stream,
        verifier: Verifier,
        exchange: GroupExchange,
        keep: KeepSample = lambda fate, group: None,
        demand: TaskDemand | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked yet. `keep` is called with graded groups that are not shared."""
        self.ledger = Ledger()
        self.waits_until = 0.0
        """Time of `clock` before which no round is worth its requests."""
        self.wait_reason = ""
        """Why not, in words."""
        self._barren = 0
        """Rounds without signal until now."""
        self._plan = plan
        self._me = me
        self._verifier = verifier
        self._own = OwnGroups(me, exchange, token_ids=False)
        self._keep = keep
        self._demand = demand or TaskDemand()
        self._chance = random.Random(me.seed)
        self._clock = clock
        self._position = plan.first
        self._drawn: deque[tuple[int, Question]] = deque()
        self._asked: dict[int, Question] = {}
        self._flow = Flow(stream, verifier, self._more, plan.group_size, me.sampling, seed=me.seed, slots=plan.slots)
        self._games: Generator[tuple[int, FinishedGroup | Rejection]] | None = None

    @property
    def has_enough(self) -> bool:
        """Whether it has shared as many groups as it is to share."""
        return self._plan.groups is not None and int(self.ledger.snapshot()["shared"]) >= self._plan.groups

    def run_round(self) -> GivenRound:
        """Questions of one round, answered, graded and shared; others are under way when it ends."""
        began = self._clock()
        graded: list[GradedGroup] = []
        first_failure: Rejection | None = None
        num_over = num_shared = num_informative = 0
        if self._games is None:
            self._games = self._flow.play()
        try:
            while (
                num_over < self._plan.num_questions
                and not self.has_enough
                and (found := next(self._games, None)) is not None
            ):
                number, played = found
                question = self._asked.pop(number)
                num_over += 1
                self.ledger.generated(1)
                if isinstance(played, Rejection):
                    self.ledger.local(played.reason)
                    first_failure = first_failure or played
                    continue
                verdict = played.grading.result()
                if isinstance(verdict, Rejection):
                    self.ledger.local(verdict.reason)
                    first_failure = first_failure or verdict
                    continue
                group = self._own.make(question.ref, played.completions, verdict.rewards)
                graded.append(with_grade(group, verdict))
                self._demand.answered(question.ref.task, has_signal(verdict.rewards))
                if has_signal(verdict.rewards):
                    num_informative += 1
                    num_shared += self._share(graded[-1])
                else:
                    self.ledger.local(Reason.ZERO_ADVANTAGE)
                    self._keep(Reason.ZERO_ADVANTAGE, graded[-1])
        except BaseException:
            self.stop()
            raise
        seconds = self._clock() - began
        if num_shared < num_informative:  # the swarm carries no more: its members' rate is common to all
            unshared = (num_informative - num_shared) / num_informative
            self._wait(seconds * unshared, "the swarm carries no more groups for now")
        self._barren = 0 if num_informative else self._barren + 1
        if self._barren > self._plan.patience:
            self._wait(
                2.0 ** min(10, self._barren - self._plan.patience),
                f"no group had signal in the last {self._barren} rounds",
            )
        rewards = [reward for each in graded for reward in each.rewards]
        figures: dict[str, Figure] = joined([rollout_figures(graded)]) if graded else {}
        return GivenRound(
            sum(rewards) / len(rewards) if rewards else None,
            num_shared,
            num_informative,
            seconds,
            values(figures),
            rewards_by_task(graded),
            "" if graded or first_failure is None else without_group(first_failure),
            tuple(graded),
        )

    def stop(self) -> None:
        """Give up what is under way; a later round asks again."""
        if self._games is not None:
            self._games.close()
            self._games = None

    def _wait(self, seconds: float, reason: str) -> None:
        self.waits_until, self.wait_reason = self._clock() + min(MAX_WAIT_S, seconds), reason

    def asked(self, number: int) -> Question:
        """A question that is not over. Raises `KeyError`."""
        return self._asked[number]

    def _more(self) -> tuple[int, Question] | None:
        """The next question that is asked: those of tasks of less use to receivers are often passed over."""
        if len(self._asked) >= self._plan.most_open:
            return None
        while not self._drawn:
            questions = self._verifier.draw(self._me.seed, self._position, self._plan.num_questions)
            self._drawn.extend(
                (number, question)
                for number, question in enumerate(questions, start=self._position)
                if self._chance.random() < self._demand.part(question.ref.task, self._plan.tasks)
            )
            self._position += len(questions)
        number, question = self._drawn.popleft()
        self._asked[number] = question
        return number, question

    def _share(self, graded: GradedGroup) -> bool:
        if self._own.share_all([graded.group])[0] is None:
            self.ledger.local(Reason.NOT_SAMPLED)
            self._keep(Reason.NOT_SAMPLED, graded)
            return False
        self.ledger.shared(1)
        return True
