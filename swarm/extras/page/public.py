"""A swarm's page for everybody, as files for any web host: its runs, how to join them, and their members.

It has what members tell everybody, and figures of those nodes whose directories it is made of; none of their files,
alerts, samples or settings. Texts of untrusted peers are cut and cleaned, and become text, never markup or part of a
command.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec import Struct

from swarm.extras.page.report import in_one_file
from swarm.extras.page.site import Json
from swarm.sanitize import clean
from swarm.telemetry.curves import Curve
from swarm.telemetry.nodes import CLAIMS, CREDIT, Credited, Leader, NodeReader, credited, kinds, leaders, short, tail

SCRIPTS = ("dom.js", "chart.js", "members.js", "public.js")
MARK = b'<meta name="generator" content="swarm site">'
MAX_RUNS = 128
MAX_TASKS = 8
MAX_POINTS = 240
MAX_BEFORE_BYTES = 16 * 2**20
WORD = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._:/@-]{0,499}")
"""No shell, and no program, takes it for anything but a word; a run's name at an address fits."""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{mark}{renewed}
<title>Swarm</title>
<link rel="icon" href="data:,">
</head>
<body>
<header>
<h1 id="title">Swarm</h1>
<p id="connection" role="status"></p>
</header>
<main id="runs">
</main>
<footer class="note">Made by <code>swarm site</code>.</footer>
<noscript>This page needs JavaScript.</noscript>
</body>
</html>
"""


class OpenRun(Struct, frozen=True):
    """A run that can be joined."""

    run_id: str
    founder: str
    created_at: float
    """Unix seconds."""
    tasks: Sequence[str]
    models: Sequence[str]
    members: int
    terms: str
    """What a member takes on."""
    join: Sequence[str]
    """The words of the command that joins it."""
    give: Sequence[str] = ()
    """The words of the command that gives to it; none of a run that takes no gifts."""
    nodes: Sequence[NodeReader] = ()
    """Its members' files or lists; none: the run is only listed."""


Points = list[tuple[int, float]]
History = dict[str, dict[str, Points]]
"""(Unix second, value) pairs of each figure, by run id."""


class _Before(Struct):
    history: History = {}


def make_site(runs: Sequence[OpenRun], before: bytes, now: float, every_s: float | None) -> dict[str, bytes]:
    """The files by name. `before` is the `swarm.json` made before, from whose history the new one goes on; `every_s`:
    seconds until the next."""
    history = _history(before)
    ranked = [(leaders(run.nodes, public=True), credited(run.nodes)) for run in runs]
    shown = [_shown(run, *each) for run, each in zip(runs[:MAX_RUNS], ranked, strict=False)]
    kept = history | {
        run.run_id: _longer(history.get(run.run_id, {}), run.members, *each, now)
        for run, each in zip(runs, ranked, strict=True)
        if run.nodes
    }
    kept = dict([*kept.items()][-MAX_RUNS:])
    data = {"made": now, "every": every_s, "claims": CLAIMS, "about_credit": CREDIT, "runs": shown, "history": kept}
    renewed = f'\n<meta http-equiv="refresh" content="{math.ceil(every_s)}">' if every_s else ""
    page = PAGE.format(mark=MARK.decode(), renewed=renewed)
    return {"swarm.json": msgspec.json.encode(data), "index.html": in_one_file(page, SCRIPTS, data)}


def _history(before: bytes) -> History:
    try:
        return msgspec.json.decode(before, type=_Before).history if len(before) <= MAX_BEFORE_BYTES else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _shown(run: OpenRun, best: Sequence[Leader], credit: Sequence[Credited]) -> Json:
    found: dict[str, object] = {
        "run": clean(run.run_id),  # the key of its history
        "name": short(run.run_id.rpartition("-")[0] or run.run_id),
        "founder": tail(run.founder),
        "founded": run.created_at,
        "tasks": [short(task) for task in run.tasks[:MAX_TASKS]],
        "more_tasks": max(0, len(run.tasks) - MAX_TASKS),
        "models": [short(model) for model in run.models[:MAX_TASKS]],
        "members": run.members,
        "terms": short(run.terms),
        "join": command(run.join),
        "give": command(run.give),
    }
    if run.nodes:
        found |= {"leaders": best, "credit": credit, "kinds": kinds(run.nodes), "curves": _curves(run.nodes)}
    return found


def command(words: Sequence[str]) -> str:
    """A line for a shell; empty if any word is more than a word, since untrusted peers choose names and addresses."""
    return " ".join(words) if all(map(WORD.fullmatch, words)) else ""


def _curves(nodes: Sequence[NodeReader]) -> Mapping[str, Points]:
    """Means over the nodes whose files these are, by round."""
    names = ("reward", "accuracy")
    return {name: _mean([node.curves[name] for node in nodes if name in node.curves]) for name in names}


def _mean(curves: Sequence[Curve]) -> Points:
    """On the coarsest stride; between two of its points a curve keeps its value."""
    stride = max((curve.stride for curve in curves), default=1)
    known = [points for curve in curves if (points := curve.points(stride))]
    return [
        (at, fmean(max(p for p in points if p[0] <= at)[1] for points in known if points[0][0] <= at <= points[-1][0]))
        for at in sorted({at for points in known for at, _ in points})
    ]


def _longer(
    before: Mapping[str, Points], members: int, best: Sequence[Leader], credit: Sequence[Credited], now: float
) -> dict[str, Points]:
    """The figures of a run until now."""
    known = [each.accuracy[0] for each in best if each.accuracy is not None and not each.claimed]
    latest = {"members": [float(members)], "accuracy": known, "credit": [each.worth for each in credit]}
    return {
        name: _spread([*before.get(name, []), *([(int(now), fmean(values))] if values else [])], now)
        for name, values in latest.items()
    }


def _spread(points: Points, now: float) -> Points:
    """The first point of each interval, whose length doubles until there are few enough, and the last point."""
    found = sorted(point for point in points if point[0] <= now)
    spacing = 1
    while found and (found[-1][0] - found[0][0]) // spacing > MAX_POINTS - 3:
        spacing *= 2
    kept = {at // spacing: (at, value) for at, value in reversed(found[:-1])}
    return [*sorted(kept.values()), *found[-1:]]
