"""A worker's own groups after sampling: checked, graded while sampling continues, and sent as far as there is room."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from msgspec.structs import replace

from swarm.figures import Figure, joined
from swarm.groups.building import OwnGroups, with_grade, without_group
from swarm.groups.credit import has_signal
from swarm.groups.episodes import FinishedGroup
from swarm.groups.rollout_figures import rollout_figures
from swarm.reasons import Reason
from swarm.telemetry.ledger import Ledger
from swarm.types import Completion, Grade, Question, Rejection, RolloutGroup

logger = logging.getLogger(__name__)


class WorkerGroups:
    """Grades and sends a worker's groups, and counts what becomes of them."""

    def __init__(
        self,
        own: OwnGroups,
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
        self._hides = hides
        self._has_room = has_room
        self._ungraded: list[tuple[RolloutGroup, Future[Grade | Rejection]]] = []
        self._told: set[Reason] = set()
        """Why questions had no groups so far."""
        self._unsent: deque[RolloutGroup] = deque()
        """With signal; they wait for room."""

    @property
    def held_up(self) -> bool:
        """Whether groups wait for room to be sent: what is sampled now would only wait behind them."""
        return len(self._unsent) > 0

    def begin_batch(self) -> None:
        """Start the figures of a new batch."""
        self.figures = {}

    def add(self, question: Question, played: FinishedGroup | Rejection) -> tuple[Completion, ...]:
        """Keep the answers to one question until they are graded, and return them; none if they cannot be used."""
        if isinstance(played, Rejection):
            self._lost(played)
            return ()
        completions = played.completions
        if any(self._hides(turn.token_ids) for completion in completions for turn in completion.by_turn()):
            self.ledger.local(Reason.HIDDEN_TOKENS)
            return ()
        self._ungraded.append((self._own.make(question.ref, completions, (0.0,) * len(completions)), played.grading))
        return completions

    def _lost(self, rejection: Rejection) -> None:
        """Count a question without a group, and say why the first time."""
        self.ledger.local(rejection.reason)
        if rejection.reason not in self._told:
            self._told.add(rejection.reason)
            logger.warning("a question has no group; %s", without_group(rejection))

    def send(self, is_stale: Callable[[int], bool]) -> None:
        """Share the groups with signal that are graded by now, as far as there is room.

        `is_stale` says whether the learner refuses tokens of a version.
        """
        waiting, self._ungraded = self._ungraded, []
        for group, grading in waiting:
            if not grading.done():
                self._ungraded.append((group, grading))
                continue
            verdict = grading.result()
            if isinstance(verdict, Rejection):
                self._lost(verdict)
                continue
            self.num_completions += len(verdict.rewards)
            self.reward += sum(verdict.rewards)
            self.figures = joined([self.figures, rollout_figures([with_grade(group, verdict)])])
            if has_signal(verdict.rewards):
                self._unsent.append(replace(group, rewards=verdict.rewards))
            else:
                self.ledger.local(Reason.ZERO_ADVANTAGE)  # the learner would only drop it
        while self._unsent and self._has_room():
            group = self._unsent.popleft()
            if is_stale(group.oldest_version):
                self.ledger.local(Reason.STALE_VERSION)
            elif self._own.share(group) is not None:
                self.ledger.shared(1)
