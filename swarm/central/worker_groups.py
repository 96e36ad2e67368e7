"""A worker's own groups after sampling: checked, graded while sampling continues, and sent as far as there is room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from swarm.figures import Figure, joined
from swarm.groups.building import OwnGroups
from swarm.groups.rollout_figures import rollout_figures
from swarm.groups.signal import has_signal
from swarm.groups.versions import oldest_version
from swarm.protocols import Verifier
from swarm.reasons import Reason
from swarm.telemetry.ledger import Ledger
from swarm.types import Answers, Completion, GradedGroup, Question, Rejection, RolloutGroup


class WorkerGroups:
    """Grades and sends a worker's groups, and counts what becomes of them."""

    def __init__(
        self,
        own: OwnGroups,
        verifier: Verifier,
        hides: Callable[[Sequence[int]], bool],
        has_room: Callable[[], bool],
    ) -> None:
        """No groups yet.

        `hides` says whether token ids contain special tokens that the text does not show; `has_room` whether a group
        can be sent without displacing another.
        """
        self.ledger = Ledger()
        self.num_completions = 0
        """Completions graded so far."""
        self.reward = 0.0
        """Sum of their rewards."""
        self.figures: dict[str, Figure] = {}
        """Figures of the groups graded since `begin_batch`."""
        self._own = own
        self._verifier = verifier
        self._hides = hides
        self._has_room = has_room
        self._ungraded: dict[str, RolloutGroup] = {}
        self._unsent: deque[RolloutGroup] = deque()
        """With signal; they wait for room."""

    @property
    def held_up(self) -> bool:
        """Whether groups wait for room to be sent: what is sampled now would only wait behind them."""
        return len(self._unsent) > 0

    def begin_batch(self) -> None:
        """Start the figures of a new batch."""
        self.figures = {}

    def add(self, question: Question, answers: Answers) -> tuple[Completion, ...]:
        """Queue the answers to one question for grading, and return them; none if they cannot be used."""
        if isinstance(answers, Rejection):
            self.ledger.local(answers.reason)
            return ()
        if any(self._hides(completion.token_ids) for completion in answers):
            self.ledger.local(Reason.HIDDEN_TOKENS)
            return ()
        group = self._own.make(question.ref, answers, (0.0,) * len(answers))
        key = str(group.sequence)
        self._ungraded[key] = group
        self._verifier.submit(key, question.ref, [completion.text for completion in answers])
        return answers

    def send(self, is_stale: Callable[[int], bool]) -> None:
        """Collect the grades that are ready and share the groups with signal, as far as there is room.

        `is_stale` says whether the learner refuses tokens of a version.
        """
        for key, verdict in self._verifier.collect():
            group = self._ungraded.pop(key)
            if isinstance(verdict, Rejection):
                self.ledger.local(verdict.reason)
                continue
            self.num_completions += len(verdict.rewards)
            self.reward += sum(verdict.rewards)
            graded = GradedGroup(group, verdict.prompt, verdict.rewards)
            self.figures = joined([self.figures, rollout_figures([graded])])
            if has_signal(verdict.rewards):
                self._unsent.append(replace(group, rewards=verdict.rewards))
            else:
                self.ledger.local(Reason.ZERO_ADVANTAGE)  # the learner would only drop it
        while self._unsent and self._has_room():
            group = self._unsent.popleft()
            if is_stale(oldest_version(group)):
                self.ledger.local(Reason.STALE_VERSION)
            elif self._own.share(group) is not None:
                self.ledger.shared(1)
