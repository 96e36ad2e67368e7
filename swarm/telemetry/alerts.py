"""Alerts: problems of a node, each with advice, the same in all views; docs/operate.md lists them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

from msgspec import Struct

from swarm.reasons import Reason
from swarm.sanitize import clean_lines
from swarm.telemetry.curves import RECENT, SHARE_OF_OTHERS, SPEED
from swarm.telemetry.history import PeerHistory, split_drops
from swarm.telemetry.records import Event

Level = Literal["warning", "error"]
T = TypeVar("T")

COLLAPSED = 0.25
"""Fraction of the entropy at the start below which, while answers are still wrong, variety is lost."""
MASTERED = 0.9
"""Mean reward above which low entropy is expected."""
FELL = 0.2
"""Fraction of its best that the reward must have lost."""
CLEARLY = 3.0
"""Standard errors."""
MORE_OTHERS = 0.05
"""Rise of the fraction of others' groups in updates."""
SLOW = 0.5
"""Fraction of the node's best token rate."""
EMPTY_ROUNDS = 3
"""Consecutive rounds, or all of them where there are fewer."""
MANY = 32
"""Groups before their fates say anything."""
CLOCK_GROUPS = 8
HIGH_LEARNING_RATE = 0.01
USUAL_LEARNING_RATES = "Usual are 1e-6 to 1e-3."
"""From here on, pretrained policies hardly ever survive."""
LOW_DISK_BYTES = 2 * 2**30
FULL_DISK_BYTES = 256 * 2**20
LONELY_AFTER_S = 60.0
SILENT_AFTER_S = 60.0
SILENT_AFTER_ROUNDS = 10.0


class Alert(Struct, frozen=True):
    """One problem."""

    key: str
    level: Level
    text: str
    """The observation; figures and the program's own words only."""
    advice: str
    page: str
    """A page of docs/, with a heading's anchor."""

    @property
    def more(self) -> str:
        """The command that shows the section in a terminal."""
        return f"More: swarm docs {self.page}"


class State(Struct, frozen=True):
    """Input of the checks."""

    history: PeerHistory
    now: float
    """Unix seconds."""
    free_bytes: int | None
    """On the disk of its directory; None if unknown."""


def alerts(history: PeerHistory, now: float, free_bytes: int | None = None) -> list[Alert]:
    """Everything wrong with a node, errors first; `now` in Unix seconds."""
    state = State(history, now, free_bytes)
    return [alert for _, alert in worst_first((None, alert) for check in CHECKS for alert in check(state))]


def worst_first(found: Iterable[tuple[T, Alert]]) -> list[tuple[T, Alert]]:
    """Alerts, each with its node, errors first and otherwise in their order."""
    return sorted(found, key=lambda each: each[1].level != "error")


def alerts_at_end(histories: Sequence[PeerHistory]) -> list[tuple[str, Alert]]:
    """Alerts of nodes as of their end, errors first, each with the name of its node."""
    return worst_first((node.name, alert) for node in histories for alert in alerts(node, node.alive_at or 0.0))


def free_bytes(folder: Path) -> int | None:
    """Free bytes on a directory's disk; None if unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _failed(node: State) -> Iterator[Alert]:
    if node.history.phase == "error":
        yield Alert(
            "failed",
            "error",
            "The node has stopped with an error; the last line of what happened says which.",
            "Look the message up, mend what it names, and repeat the command: it resumes from the last checkpoint.",
            "operate.md#by-message",
        )


def _silent(node: State) -> Iterator[Alert]:
    history = node.history
    if not _works(node) or history.latest is None or history.alive_at is None:
        return
    usual = history.seconds_per_round() or 0.0
    silent_s = node.now - history.alive_at
    if silent_s > max(SILENT_AFTER_S, SILENT_AFTER_ROUNDS * usual):
        yield Alert(
            "silent",
            "error",
            f"No round for {duration(silent_s)}; one takes {usual:.1f} s as a rule.",
            "The process may be dead or hang: `swarm health` says which; repeat the command to resume.",
            "operate.md#by-symptom",
        )


def _disk(node: State) -> Iterator[Alert]:
    free = node.free_bytes
    if free is None or free >= LOW_DISK_BYTES:
        return
    level: Level = "error" if free < FULL_DISK_BYTES else "warning"
    yield Alert(
        "disk",
        level,
        f"{free / 2**20:,.0f} MiB of disk are left; checkpoints take several times the model's size.",
        "Free space, keep fewer checkpoints (checkpoint.keep), or move the node with --out.",
        "operate.md#checkpoints-and-resume",
    )


def _alone(node: State) -> Iterator[Alert]:
    since = node.history.alone_since
    if node.history.control or not _works(node) or since is None:
        return
    if (alone_s := node.now - since) > LONELY_AFTER_S:
        yield Alert(
            "alone",
            "warning",
            f"No peer has been connected for {duration(alone_s)}; the node learns from its own groups only.",
            "Is the bootstrap up, its port open, the clock right? `swarm doctor ADDRESS` tests it. Who founded the run "
            "gives others the line that `swarm join` printed.",
            "operate.md#when-things-fail",
        )


def _clock(node: State) -> Iterator[Alert]:
    groups = node.history.groups
    early = groups["dropped"].get(Reason.CLOCK, 0)
    if early >= CLOCK_GROUPS and early >= groups["received"] / 10:
        yield Alert(
            "wrong-clock",
            "error",
            f"{early:,} of {groups['received']:,} received groups are from the future: this clock is probably slow.",
            "Set the clock by network time (NTP); `swarm doctor ADDRESS` measures how far it is off.",
            "operate.md#by-symptom",
        )


def high_learning_rate(rate: float) -> str:
    """What is said of one from `HIGH_LEARNING_RATE` on, at the start and while it trains."""
    return (
        f"update.learning_rate {rate:g} is high: AdamW may change every weight by as much in each update, which few "
        "trained models survive."
    )


def _learning_rate(node: State) -> Iterator[Alert]:
    update = node.history.start.config.get("update") if node.history.start else None
    rate = update.get("learning_rate") if isinstance(update, dict) else None
    if isinstance(rate, int | float) and rate >= HIGH_LEARNING_RATE and node.history.phase != "done":
        yield Alert(
            "learning-rate",
            "warning",
            high_learning_rate(rate),
            USUAL_LEARNING_RATES,
            "objectives.md#figures",
        )


def _entropy(node: State) -> Iterator[Alert]:
    entropy, reward = node.history.figures.curves.get("entropy"), node.history.figures.curves.get("reward")
    if entropy is None or entropy.first is None or entropy.recent is None:
        return
    mastered = reward is not None and reward.recent is not None and reward.recent > MASTERED
    if not mastered and entropy.recent < COLLAPSED * entropy.first:
        yield Alert(
            "entropy",
            "warning",
            f"Entropy collapsed from {entropy.first:.3f} to {entropy.recent:.3f} nats per token: answers hardly vary, "
            "so that groups have no signal to learn from.",
            "Lower update.learning_rate, raise update.loss.clip_high or generation.temperature, or return to an "
            "earlier checkpoint.",
            "objectives.md#figures",
        )


def _reward(node: State) -> Iterator[Alert]:
    figures = node.history.figures
    if figures.has_collapsed:
        yield Alert(
            "reward",
            "error",
            f"Reward fell to 0: no answer of the last {figures.num_zero:,} rounds earned any, while "
            f"{figures.num_informative:,} groups of {_before(figures.num_rounds - figures.num_zero)} had rewards to "
            "learn from.",
            "Lower update.learning_rate, and start over or from an earlier checkpoint; `swarm samples` shows answers.",
            "operate.md#by-symptom",
        )
        return
    reward, share = node.history.figures.curves.get("reward"), node.history.figures.curves.get(SHARE_OF_OTHERS)
    if reward is None or not reward.best or reward.recent is None:  # from 0, nothing falls: `nothing-right`
        return
    lost = reward.best - reward.recent
    if lost < FELL * reward.best or lost < CLEARLY * math.hypot(reward.best_error, reward.error):
        return
    fell = f"Reward fell from {reward.best:.3f} at its best to {reward.recent:.3f}"
    then, today = node.history.figures.share_at_best, share.recent if share else None
    if then is not None and today is not None and today > then + MORE_OTHERS:
        yield Alert(
            "others",
            "warning",
            f"{fell}, while others' part of the updates rose from {then:.0%} to {today:.0%}.",
            'Others may not help here: compare their worth under "Peers", use fewer (mix.external), mix.policy auto, '
            "or watch.drop, which returns to an earlier policy.",
            "faq.md#can-others-poison-my-model",
        )
    else:
        yield Alert(
            "reward",
            "warning",
            f"{fell}.",
            "Look at the samples and at the entropy; lower update.learning_rate, or set watch.drop.",
            "operate.md#by-symptom",
        )


def _no_groups(node: State) -> Iterator[Alert]:
    figures = node.history.figures
    if figures.num_empty and figures.num_empty >= min(EMPTY_ROUNDS, figures.num_rounds):
        yield Alert(
            "no-groups",
            "error",
            f"No question of {_last(figures.num_empty)} got a group, so that nothing was learned from own questions: "
            f"{clean_lines(figures.problem)}.",
            "`swarm tasks try FILE` asks the task's questions one by one.",
            "operate.md#by-symptom",
        )


def _reward_fails(node: State) -> Iterator[Alert]:
    figures = node.history.figures
    text = figures.reward_failure  # it may come a round later than the failure
    if figures.num_unrewarded >= (min(EMPTY_ROUNDS, max(1, figures.num_rounds)) if text else EMPTY_ROUNDS):
        yield Alert(
            "reward-fails",
            "error",
            f"The reward function failed in {_last(figures.num_unrewarded)}, and nothing earned a reward"
            + (f": {clean_lines(text)}." if text else "."),
            "Mend it, and try it with `swarm tasks try FILE`.",
            "tasks.md#a-custom-task-and-reward",
        )


def _before(rounds: int) -> str:
    return "the round before" if rounds == 1 else f"the {rounds:,} rounds before"


def _last(rounds: int) -> str:
    return "the last round" if rounds == 1 else f"the last {rounds:,} rounds"


def _nothing_right(node: State) -> Iterator[Alert]:
    reward = node.history.figures.curves.get("reward")
    figures = node.history.figures
    explained = figures.num_unrewarded or figures.has_collapsed
    if reward is not None and reward.recent == 0 and not reward.best and not explained:
        yield Alert(
            "nothing-right",
            "warning",
            f"None of this node's own answers of the last {RECENT} rounds earned a reward.",
            "Read some with `swarm samples`: are they wrong, or not found in the text? `find` and `ask` of the task "
            "decide that.",
            "tasks.md#how-an-answer-is-found",
        )


def _slow(node: State) -> Iterator[Alert]:
    """Not beside other nodes, which share the processor or the GPU with this one; `neighbours` says whether."""
    found, event = slowed(node.history), node.history.latest
    if found is not None and node.history.phase == "running" and event is not None and event.neighbours == 0:
        yield Alert(
            "slow",
            "warning",
            f"The engine generates {found[1]:,.0f} tokens per second; its best was {found[0]:,.0f}.",
            "Longer answers, or another program on the same device? Compare the lengths; `swarm doctor` looks at the "
            "machine.",
            "faq.md#what-does-it-cost-my-gpu",
        )


def slowed(history: PeerHistory) -> tuple[float, float] | None:
    """Tokens per second at best and now, if it is now so much less that one should look who else uses the machine."""
    speed = history.figures.curves.get(SPEED)
    if speed is None or speed.best is None or speed.recent is None or speed.recent >= SLOW * speed.best:
        return None
    return speed.best, speed.recent


def _refused(node: State) -> Iterator[Alert]:
    groups = node.history.groups
    _, refused = split_drops(groups)
    count = sum(number for _, number in refused)
    if count >= MANY and count > groups["received"] / 2:
        yield Alert(
            "refused",
            "warning",
            f"{count:,} of {groups['received']:,} received groups were refused, most of them as {refused[0][0]}.",
            "Take the run's tasks (leave `tasks` out) and the pinned versions of the libraries.",
            "reasons.md",
        )


def _skipped(node: State) -> Iterator[Alert]:
    skipped = node.history.figures.curves.get("skipped steps")
    if skipped is not None and skipped.recent:
        yield Alert(
            "skipped",
            "warning",
            "In some of the last 20 rounds no step was taken, because loss or gradient was not finite.",
            "Lower update.learning_rate; after update.max_nonfinite_steps in a row the node stops.",
            "operate.md#when-things-fail",
        )


CHECKS: tuple[Callable[[State], Iterator[Alert]], ...] = (
    _failed,
    _silent,
    _disk,
    _alone,
    _clock,
    _learning_rate,
    _entropy,
    _no_groups,
    _reward_fails,
    _reward,
    _nothing_right,
    _slow,
    _refused,
    _skipped,
)


def _works(node: State) -> bool:
    return node.history.phase == "running" and node.history.pause is None


def duration(seconds: float) -> str:
    """About how long, e.g. `40 s`, `12 min`, `3 h`."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


AGAIN_AFTER_ROUNDS = 500
"""Rounds between two reports of one alert."""
REPORTED_OTHERWISE = frozenset({"failed", "silent", "alone", "refused", "no-groups"})
"""The node has notes of these with more detail, or cannot report them."""


class AlertWatch:
    """The alerts that a running node reports itself, each once in a while."""

    def __init__(self, history: PeerHistory) -> None:
        """`history` starts empty; `read_event` feeds it."""
        self.history = history
        self._reported: dict[str, int] = {}
        """The round in which each alert was last reported."""

    def read_event(self, event: Event) -> None:
        """Add an event that the node has just written."""
        self.history.read_event(event)

    def look(self, now: float) -> Iterator[Alert]:
        """New alerts; `now` in Unix seconds."""
        event = self.history.latest
        if event is None:
            return
        for alert in alerts(self.history, now, free_bytes=free_bytes(self.history.path.parent)):
            last = self._reported.get(alert.key)
            if alert.key not in REPORTED_OTHERWISE and (last is None or event.round - last >= AGAIN_AFTER_ROUNDS):
                self._reported[alert.key] = event.round
                yield alert


FIRST = 32
"""Groups dropped for one reason before the first line about it; the next one comes at ten times as many."""

_OWN_TASKS = "take the run's tasks (remove `tasks` from the configuration), or make sure that all members list the same"
REMEDIES: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.UNKNOWN_TASK: f"their tasks are not among this node's: {_OWN_TASKS}",
        Reason.OPTIONS_DIFFER: f"their tasks have other options, rules or rewards here: {_OWN_TASKS}",
        Reason.OTHER_TASK: "their tasks run other code here: get the same version of it",
        Reason.QUESTION_MISMATCH: "this node gets other questions for their references: get the same versions of the "
        "libraries and of the data sets (`revision`)",
        Reason.MEDIA_MISMATCH: "their pictures, sounds or clips have another content here: get the same files",
        Reason.EPISODE_MISMATCH: "their episodes go otherwise here: get the same version of the environment",
        Reason.TOO_MANY: "they have more completions than this node's run allows: it may have been begun again with "
        "another generation.group_size; restart the nodes that joined before",
        Reason.UNTRUSTED: "only their author has the tool that they used: list its peer id in `trusted` to believe it",
        Reason.NOT_INVITED: "their workers are not among `learner.workers`: add a worker's peer id to take its groups",
        Reason.OTHER_POLICY: "their tokenizer is another: workers must set the learner's policy.model",
        Reason.OTHER_SAMPLING: "they sample with another temperature: workers must set the learner's "
        "generation.temperature",
        Reason.NO_TOKENS: "they have no token ids: a learner's groups come from `swarm work`, not from `swarm join`",
        Reason.WRONG_LOGPROBS: "their log-probabilities are not those of the snapshots: workers must set the learner's "
        "policy.system_prompt, dtype and chat template",
    }
)
"""The remedy for each reason that a difference of configurations explains."""


class RefusalWatch:
    """Warns of groups dropped because this node and others do not agree."""

    def __init__(self) -> None:
        self._next = dict.fromkeys(REMEDIES, FIRST)

    def look(self, dropped: Mapping[str, int]) -> Iterator[str]:
        """A line for each reason whose count has reached the next step."""
        for reason, remedy in REMEDIES.items():
            count = dropped.get(reason, 0)
            if count < self._next[reason]:
                continue
            while self._next[reason] <= count:
                self._next[reason] *= 10
            yield f"{count} groups of others were dropped as {reason}: {remedy}"
