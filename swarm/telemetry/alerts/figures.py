"""The course of a node's figures, in bounded memory, and what alerts need to know of it."""

from __future__ import annotations

from collections.abc import Mapping

from swarm.figures import LAG_MAX, LAG_MEAN
from swarm.reasons import Reason
from swarm.telemetry.alerts.curves import Curve
from swarm.telemetry.records import EvaluationEvent, Event, GroupCounts, NoteEvent, RoundEvent, StartEvent

SHARE_OF_OTHERS = "share of others"
"""Others' part of the groups in an update."""
SPEED = "tokens per second of generation"
"""Rounds also take time for others' groups and updates, of which `tokens_per_s` is a mean."""
SCORER_FAILURES = "verifier/scorer_failures"
"""The counter of completions whose reward function failed."""
LEAST_ZERO = 5
"""Rounds without reward before a collapse is considered."""
UNLIKELY = 1e-4
"""Probability below which chance explains nothing."""
FIGURES = {
    "entropy": "entropy",
    "KL to the reference": "kl",
    "KL to the sampler": "sampling/behaviour_kl",
    "gradient norm": "grad_norm",
    "mean length": "completions/mean_length",
    "cut off": "completions/clipped_ratio",
    "mean lag": LAG_MEAN,
    "largest lag": LAG_MAX,
    "no signal": "frac_reward_zero_std",
    "skipped steps": "train/num_skipped_steps",
}
"""Curves of `RoundEvent.figures`, by the name that people see."""


class NodeCurves:
    """A curve of each figure, fed with a node's events in order."""

    def __init__(self) -> None:
        """Without events."""
        self._forget()

    def _forget(self) -> None:
        self.curves: dict[str, Curve] = {}
        """By name: reward, accuracy, those of `FIGURES`, and what a round did."""
        self.share_at_best: float | None = None
        """Others' part of the updates when the reward was at its best."""
        self.reward_failure = ""
        """The text of the first reward function's failure."""
        self.problem = ""
        """The first of the rounds that `num_empty` counts."""
        self._new_process()

    def _new_process(self) -> None:
        self.num_rounds = 0
        self.num_empty = 0
        """Rounds in a row, up to the latest, in which none of the node's own questions got a group."""
        self.num_unrewarded = 0
        """Rounds in a row, up to the latest, in which the reward function failed and nothing earned a reward."""
        self.num_zero = 0
        """Rounds in a row, up to the latest, in which no answer earned a reward."""
        self.num_informative = 0
        """Own groups with signal."""
        self._num_useless = 0
        self._before: RoundEvent | None = None

    @property
    def has_collapsed(self) -> bool:
        """Whether chance hardly explains that the last rounds earned nothing.

        If groups with signal came at an even rate, all of them would be in the rounds before with this probability.
        """
        before = self.num_rounds - self.num_zero
        if not before or self.num_zero < LEAST_ZERO:
            return False
        return (before / self.num_rounds) ** self.num_informative < UNLIKELY

    @property
    def useless(self) -> bool:
        """Whether the process has made rounds, and each of them had no group, or a reward function that failed."""
        return 0 < self.num_rounds == self._num_useless

    def take(self, event: Event) -> None:
        """Add what an event says."""
        match event:
            case StartEvent(resumed_from=None):
                self._forget()
            case StartEvent():
                for curve in self.curves.values():
                    curve.cut(event.resumed_from or 0)
                self._new_process()
            case RoundEvent():
                self._add_round(event)
            case NoteEvent(alert="scorer_failures"):
                self.reward_failure = self.reward_failure or event.text
            case EvaluationEvent():
                self._curve("accuracy").add(max(1, event.round), event.accuracy)

    def _add_round(self, event: RoundEvent) -> None:
        self.num_rounds += 1
        if event.problem and not self.num_empty:
            self.problem = event.problem
        self.num_empty = self.num_empty + 1 if event.problem else 0
        self.num_unrewarded = self.num_unrewarded + 1 if self._was_unrewarded(event) else 0
        informative = _informative(event) - (_informative(self._before) if self._before else 0)
        self.num_zero = self.num_zero + 1 if event.reward == 0 and not informative else 0
        self.num_informative += informative
        self._num_useless += bool(self.num_empty or self.num_unrewarded)
        values: dict[str, float | None] = {"reward": event.reward, "tokens per second": event.tokens_per_s}
        values |= {name: event.figures.get(key) for name, key in FIGURES.items()}
        before, self._before = self._before, event
        if before is not None and before.round == event.round - 1:
            values |= between(before, event)
        for name, value in values.items():
            if value is not None:
                self._curve(name).add(event.round, value)
        reward = self.curves.get("reward")
        if reward is not None and reward.recent is not None and reward.recent == reward.best:
            share = self.curves.get(SHARE_OF_OTHERS)
            self.share_at_best = share.recent if share is not None else None

    def _was_unrewarded(self, event: RoundEvent) -> bool:
        """Equal completions are graded once, so that fewer failures are counted than completions."""
        before = self._before.counters.get(SCORER_FAILURES, 0) if self._before is not None else 0
        return event.reward == 0 and event.counters.get(SCORER_FAILURES, 0) > before

    def _curve(self, name: str) -> Curve:
        return self.curves.setdefault(name, Curve())


def _informative(event: RoundEvent) -> int:
    local = event.groups.get("local", {})
    return event.groups["used_local"] + sum(
        local.get(reason, 0) for reason in (Reason.NOT_SAMPLED, Reason.UPDATE_SKIPPED)
    )


def between(before: RoundEvent, now: RoundEvent) -> dict[str, float | None]:
    """What a round did, from the cumulative counts before and after it."""
    own = now.groups["used_local"] - before.groups["used_local"]
    others = external_uses(now.groups) - external_uses(before.groups)
    seconds = now.wall_s - before.wall_s
    tokens, generating = now.tokens_generated - before.tokens_generated, now.timings.get("generate", 0.0)
    values: dict[str, float | None] = {
        "own groups": own,
        "others' groups": others,
        SHARE_OF_OTHERS: others / (own + others) if own + others > 0 else None,
        "seconds per round": seconds if seconds > 0 else None,
        SPEED: tokens / generating if generating > 0 else now.tokens_per_s,  # generated ahead: it is not a stage
    }
    for name, counter in (("sent", "network/published_bytes"), ("received", "network/received_bytes")):
        if seconds > 0 and (moved := _moved(before.counters, now.counters, counter)) is not None:
            values[f"bytes {name} per second"] = moved / seconds
    return values


def external_uses(groups: GroupCounts) -> int:
    """Uses of others' groups in updates, further ones of the same group included."""
    return groups["used_external"] + groups.get("reused_external", 0)


def _moved(before: Mapping[str, int], now: Mapping[str, int], counter: str) -> int | None:
    """None where the counter began anew, or the node does not have it."""
    moved = now.get(counter, 0) - before.get(counter, 0)
    return moved if counter in now and moved >= 0 else None
