"""The answer to "is the swarm helping me?": by a control if there is one, else by the nodes' own estimates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from swarm.foreign import clean
from swarm.page.node import MAX_NAME_CHARS, NodeReader
from swarm.telemetry import benefit, worth
from swarm.telemetry.history import KEPT_ROUNDS
from swarm.types import Estimate

Verdict = Literal["helps", "hurts", "open"]


class Answer(Struct, frozen=True):
    """A sentence or two."""

    words: str
    verdict: Verdict
    how: str
    """What it rests on."""


UNKNOWN = Answer(
    "Whether the swarm helps is not known yet.",
    "open",
    "A node estimates it from 16 rounds on in which it has own groups and others'.",
)
BY_CONTROL = (
    "Compared with the control: a node that learns the same questions alone. 95% interval over nodes and tasks."
)
BY_ESTIMATE = "The node's own estimate over its last rounds, from the gradients of its updates; with 95% intervals."


def by_control(nodes: Sequence[NodeReader]) -> Answer | None:
    """What the nodes have gained over the control of their demo; None without one, or when nothing can be said."""
    controls = [node for node in nodes if node.control]
    found = [
        (clean(control.demo.name, MAX_NAME_CHARS), answer)
        for control in controls
        if (answer := _over(control, nodes)) is not None
    ]
    if not found:
        return None
    if len(controls) == 1:
        return found[0][1]
    words = " ".join(f"{name}: {answer.words}" for name, answer in found)
    verdicts = {answer.verdict for _, answer in found}
    return Answer(words, verdicts.pop() if len(verdicts) == 1 else "open", BY_CONTROL)


def _over(control: NodeReader, nodes: Sequence[NodeReader]) -> Answer | None:
    """Not where a node is beyond `KEPT_ROUNDS`: its earlier rewards are forgotten."""
    others = [node.history for node in nodes if not node.control and node.demo == control.demo]
    if max(max(each.rounds, default=0) for each in (control.history, *others)) > KEPT_ROUNDS:
        return None
    found = benefit.benefit(others, control.history)
    if found is None:
        return None
    ratio = Estimate(found["cumulative_ratio"], found["low"], found["high"])
    return Answer(benefit.in_words(found), _verdict(ratio) if benefit.is_enough(found) else "open", BY_CONTROL)


def by_estimate(nodes: Sequence[NodeReader]) -> Answer:
    """What the nodes have measured themselves."""
    learner = next((node.history.latest for node in nodes if node.history.role == "learner"), None)
    if learner is not None and (figures := learner.learning) is not None:
        waits = "" if figures.bubble is None else f"; the learner waits {figures.bubble:.0%} of its time"
        words = (
            f"{figures.active} of {figures.workers} workers sample {figures.rate:.1f} completions per second{waits}."
        )
        return Answer(words, "open", "A learner trains on its workers' groups only: there is nothing to compare with.")
    measured = [(node.name, node.history.worth) for node in nodes if not node.control and node.history.worth]
    known = [(name, found) for name, found in measured if found.help is not None]
    if len(measured) == 1:
        words = worth.in_words(measured[0][1])
        help = measured[0][1].help
        return Answer(f"{words[:1].upper()}{words[1:]}.", "open" if help is None else _verdict(help), BY_ESTIMATE)
    if not known:
        return UNKNOWN
    each = ", ".join(f"{name} {worth.in_short(found)}" for name, found in known)
    verdicts = {_verdict(found.help) for _, found in known if found.help is not None}
    return Answer(
        f"Progress with others over progress alone: {each}.",
        verdicts.pop() if len(verdicts) == 1 else "open",
        BY_ESTIMATE,
    )


def _verdict(found: Estimate) -> Verdict:
    if found.low > 1:
        return "helps"
    return "hurts" if found.high < 1 else "open"
