"""The learner's watch over its accuracy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from swarm.sapo.watch import Alarm, WatchSettings

MAX_SENDERS = 1_024


class EvaluationWatch:
    """Detects that a learner's accuracy on held-out questions has fallen: the one measure that no worker can state."""

    def __init__(self, settings: WatchSettings) -> None:
        """Start without evaluations."""
        self._settings = settings
        self._best: tuple[float, float] | None = None
        """Accuracy and its variance."""
        self._evaluated_at: int | None = None
        self._senders: Counter[str] = Counter()
        """Of groups used since the last good evaluation."""

    def used(self, senders: Sequence[str]) -> None:
        """Remember the authors of an update's groups."""
        self._senders.update(senders)
        if len(self._senders) > MAX_SENDERS:
            self._senders = Counter(dict(self._senders.most_common(MAX_SENDERS)))

    def observe(self, round: int, accuracy: float, num_questions: int) -> Alarm | None:
        """Add the evaluation after `round`, once; an alarm if it is far below the best."""
        if round == self._evaluated_at or num_questions == 0:
            return None
        self._evaluated_at = round
        variance = accuracy * (1 - accuracy) / num_questions
        best = self._best
        if best is None or accuracy >= best[0]:
            self._best = accuracy, variance
        if best is None or not self._has_fallen(best, accuracy, variance):
            self._senders.clear()
            return None
        senders = tuple(sender for sender, _ in self._senders.most_common())
        self._best = None  # otherwise an accuracy that never recovers would raise alarms forever
        self._senders.clear()
        return Alarm(best[0], accuracy, senders, 0)

    def _has_fallen(self, best: tuple[float, float], accuracy: float, variance: float) -> bool:
        lost = best[0] - accuracy
        error = math.sqrt(best[1] + variance)
        return lost > self._settings.drop * best[0] and lost > self._settings.sigmas * error
