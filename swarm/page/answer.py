"""The verdict on the nodes of a page: by a demo's control if there is one, else by the nodes' own estimates."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.foreign import clean
from swarm.page.node import MAX_NAME_CHARS, NodeReader
from swarm.telemetry.history import KEPT_ROUNDS
from swarm.telemetry.verdict.benefit import benefit
from swarm.telemetry.verdict.verdict import BY_CONTROL, Verdict, by_control, by_estimate


def answer(nodes: Sequence[NodeReader]) -> Verdict:
    """Of nodes of one demo, of several, or of none."""
    return answer_by_control(nodes) or answer_by_estimate(nodes)


def answer_by_estimate(nodes: Sequence[NodeReader]) -> Verdict:
    """What the nodes have measured themselves, whatever their controls."""
    return by_estimate([node.history for node in nodes if not node.control])


def answer_by_control(nodes: Sequence[NodeReader]) -> Verdict | None:
    """What the nodes have gained over the control of their demo; None without one, or when nothing can be said."""
    controls = [node for node in nodes if node.control]
    found = [(control, verdict) for control in controls if (verdict := _over(control, nodes)) is not None]
    if not found:
        return None
    if len(controls) == 1:
        return found[0][1]
    named = [(clean(control.demo.name, MAX_NAME_CHARS), verdict) for control, verdict in found]
    why = " ".join(f"{name}: {verdict.words}" for name, verdict in named)
    alike = len({verdict.standing for _, verdict in named}) == 1
    first = named[0][1]
    return Verdict(first.standing if alike else "open", first.word if alike else "The demos differ", why, BY_CONTROL)


def _over(control: NodeReader, nodes: Sequence[NodeReader]) -> Verdict | None:
    """Not where a node is beyond `KEPT_ROUNDS`: its earlier rewards are forgotten."""
    others = [node.history for node in nodes if not node.control and node.demo == control.demo]
    if max(max(each.rounds, default=0) for each in (control.history, *others)) > KEPT_ROUNDS:
        return None
    found = benefit(others, control.history)
    return None if found is None else by_control(found)
