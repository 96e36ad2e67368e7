"""The top of the report: what is wrong, and whether the swarm helped, in the words of all views."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from swarm.foreign import clean_lines
from swarm.telemetry.alerts.checks import Alert
from swarm.telemetry.verdict.verdict import Verdict


def alarms(found: Sequence[tuple[str, Alert]]) -> str:
    """Alerts with the names of their nodes, each with what to do; empty without any."""
    boxes = (
        f'<div class="alarm {alert.level}"><p><strong>{escape(clean_lines(name))}:</strong> {_marked(alert.text)}</p>'
        f"<p>{_marked(alert.advice)} <small>{escape(alert.more)}</small></p></div>"
        for name, alert in found
    )
    return "".join(boxes)


def answer(found: Verdict) -> str:
    """The verdict, both clocks, and why."""
    tiles = "".join(
        f'<div class="card"><div class="what">{what}</div><div class="value">{escape(value.partition(" (")[0])}</div>'
        f'<div class="detail">{escape(_interval(value))}</div></div>'
        for what, value in (("per round", found.per_round), ("in the same time", found.in_time))
        if value
    )
    return (
        f'<section class="answer {found.standing}"><p class="verdict">{escape(found.word)}</p>'
        + (f'<div class="cards">{tiles}</div>' if tiles else "")
        + (f"<p>{escape(found.why)}</p>" if found.why else "")
        + f'<p class="note">{escape(found.how)}</p></section>'
    )


def _interval(value: str) -> str:
    bounds = value.partition(" (")[2].removesuffix(")")
    return f"95% interval: {bounds}" if bounds else ""


def _marked(text: str) -> str:
    """Text whose words between backticks are code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(clean_lines(text)))
