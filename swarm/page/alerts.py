"""What is wrong with a node, in words, each with what to do. docs/page.md lists all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from swarm.page.node import SHARE_OF_OTHERS, NodeReader
from swarm.reasons import Reason
from swarm.telemetry.history import split_drops

Level = Literal["warning", "error"]

COLLAPSED = 0.25
"""Of the entropy at the start: below, and while answers are still wrong, variety is lost."""
MASTERED = 0.9
"""Mean reward above which little entropy is what one expects."""
FELL = 0.2
"""Part of its best that the reward must have lost."""
CLEARLY = 3.0
"""Standard errors."""
MORE_OTHERS = 0.05
"""Rise of others' part of the updates."""
SLOW = 0.5
"""Of the node's best rate of tokens."""
MANY = 32
"""Groups, before their fates are judged."""
CLOCK_GROUPS = 8
LOW_DISK_BYTES = 2 * 2**30
FULL_DISK_BYTES = 256 * 2**20
LONELY_AFTER_S = 60.0
SILENT_AFTER_S = 60.0
SILENT_AFTER_ROUNDS = 10.0


class Alert(Struct, frozen=True):
    """One thing that is wrong."""

    key: str
    level: Level
    text: str
    """What is seen; figures and the program's own words only."""
    advice: str
    page: str
    """Of docs/, with a heading's anchor."""


def alerts(node: NodeReader, now: float) -> list[Alert]:
    """All that is wrong, errors first; `now` in Unix seconds."""
    found = [alert for check in CHECKS for alert in check(node, now)]
    return sorted(found, key=lambda alert: alert.level != "error")


def _failed(node: NodeReader, now: float) -> Iterator[Alert]:
    if node.history.phase == "error":
        yield Alert(
            "failed",
            "error",
            'The node has stopped with an error; the last line under "What happened" says which.',
            "Look the message up, mend what it names, and repeat the command: it resumes from the last checkpoint.",
            "troubleshooting.md#by-message",
        )


def _silent(node: NodeReader, now: float) -> Iterator[Alert]:
    history = node.history
    if not _works(node) or history.latest is None or history.alive_at is None:
        return
    usual = history.seconds_per_round() or 0.0
    silent_s = now - history.alive_at
    if silent_s > max(SILENT_AFTER_S, SILENT_AFTER_ROUNDS * usual):
        yield Alert(
            "silent",
            "error",
            f"No round for {duration(silent_s)}; one takes {usual:.1f} s as a rule.",
            "The process may be dead or hang: `swarm health` says which; repeat the command to resume.",
            "troubleshooting.md#by-symptom",
        )


def _disk(node: NodeReader, now: float) -> Iterator[Alert]:
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


def _alone(node: NodeReader, now: float) -> Iterator[Alert]:
    since = node.history.alone_since
    if node.control or not _works(node) or since is None:
        return
    if (alone_s := now - since) > LONELY_AFTER_S:
        yield Alert(
            "alone",
            "warning",
            f"No peer has been connected for {duration(alone_s)}; the node learns from its own groups only.",
            "Is the bootstrap up, its port open, the clock right? `swarm doctor ADDRESS` tests it. Who founded the run "
            "gives others the line that `swarm join` printed.",
            "operate.md#when-things-fail",
        )


def _clock(node: NodeReader, now: float) -> Iterator[Alert]:
    groups = node.history.groups
    early = groups["dropped"].get(Reason.CLOCK, 0)
    if early >= CLOCK_GROUPS and early >= groups["received"] / 10:
        yield Alert(
            "wrong-clock",
            "error",
            f"{early:,} of {groups['received']:,} received groups are from the future: this clock is probably slow.",
            "Set the clock by network time (NTP); `swarm doctor ADDRESS` measures how far it is off.",
            "troubleshooting.md#by-symptom",
        )


def _entropy(node: NodeReader, now: float) -> Iterator[Alert]:
    entropy, reward = node.curves.get("entropy"), node.curves.get("reward")
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


def _reward(node: NodeReader, now: float) -> Iterator[Alert]:
    reward, share = node.curves.get("reward"), node.curves.get(SHARE_OF_OTHERS)
    if reward is None or reward.best is None or reward.recent is None:
        return
    lost = reward.best - reward.recent
    if lost < FELL * reward.best or lost < CLEARLY * reward.error:
        return
    fell = f"Reward fell from {reward.best:.3f} at its best to {reward.recent:.3f}"
    then, today = node.share_at_best, share.recent if share else None
    if then is not None and today is not None and today > then + MORE_OTHERS:
        yield Alert(
            "others",
            "warning",
            f"{fell}, while others' part of the updates rose from {then:.0%} to {today:.0%}.",
            'Others may not help here: compare their worth under "Peers", use fewer (mix.external), mix.policy auto, '
            "or watch.drop, which returns to an earlier policy.",
            "questions.md#can-others-poison-my-model",
        )
    else:
        yield Alert(
            "reward",
            "warning",
            f"{fell}.",
            "Look at the samples and at the entropy; lower update.learning_rate, or set watch.drop.",
            "troubleshooting.md#by-symptom",
        )


def _nothing_right(node: NodeReader, now: float) -> Iterator[Alert]:
    reward = node.curves.get("reward")
    if reward is not None and reward.recent == 0:
        yield Alert(
            "nothing-right",
            "warning",
            "None of this node's own answers of the last 20 rounds earned a reward.",
            "Read some below: are they wrong, or not found in the text? `find` and `ask` of the task decide that.",
            "tasks.md#how-an-answer-is-found",
        )


def _slow(node: NodeReader, now: float) -> Iterator[Alert]:
    speed = node.curves.get("tokens per second")
    if node.history.phase != "running" or speed is None or speed.best is None or speed.recent is None:
        return
    if speed.recent < SLOW * speed.best:
        yield Alert(
            "slow",
            "warning",
            f"The engine generates {speed.recent:,.0f} tokens per second; its best was {speed.best:,.0f}.",
            "Longer answers, or another program on the same device? Compare the lengths; `swarm doctor` looks at the "
            "machine.",
            "questions.md#what-does-it-cost-my-gpu",
        )


def _refused(node: NodeReader, now: float) -> Iterator[Alert]:
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


def _skipped(node: NodeReader, now: float) -> Iterator[Alert]:
    skipped = node.curves.get("skipped steps")
    if skipped is not None and skipped.recent:
        yield Alert(
            "skipped",
            "warning",
            "In some of the last 20 rounds no step was taken, because loss or gradient was not finite.",
            "Lower update.learning_rate; after update.max_nonfinite_steps in a row the node stops.",
            "operate.md#when-things-fail",
        )


CHECKS: tuple[Callable[[NodeReader, float], Iterator[Alert]], ...] = (
    _failed,
    _silent,
    _disk,
    _alone,
    _clock,
    _entropy,
    _reward,
    _nothing_right,
    _slow,
    _refused,
    _skipped,
)


def _works(node: NodeReader) -> bool:
    return node.history.phase == "running" and node.history.pause is None


def duration(seconds: float) -> str:
    """About how long, e.g. `40 s`, `12 min`, `3 h`."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
