"""`swarm logs`: what happened to nodes, a line for each event, by time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from nodes.commands.watching import finding
from swarm.foreign import clean, clean_lines
from swarm.telemetry.history import PeerHistory, pause_in_words, resume_in_words, suite_in_words
from swarm.telemetry.nodes import Arrivals
from swarm.telemetry.records import (
    METRICS_FILE,
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    Event,
    NoteEvent,
    PauseEvent,
    ResumeEvent,
    RoundEvent,
    StartEvent,
    SuiteEvent,
)

POLL_S = 0.5
KEPT_ROUNDS = 1
MAX_NAME_CHARS = 24
STYLES = {"warning": "yellow", "error": "bold red"}
LEVELS = ("info", "warning", "error")


class LogOptions(Struct, frozen=True):
    """Options of the command line."""

    runs: tuple[Path, ...]
    last: int
    follow: bool
    rounds: bool
    """Whether each round has a line, too."""
    level: str
    """The least of `LEVELS`."""


class Line(NamedTuple):
    """One event in words."""

    time: float
    name: str
    level: str
    text: str


def show_logs(options: LogOptions, console: Console) -> None:
    """Print the last lines, and with `follow` new ones until Ctrl-C. Raises `ConfigError` when there is no node."""
    finding.check(options.runs)
    arrivals = Arrivals(partial(finding.find, options.runs))
    histories: list[PeerHistory] = []
    with suppress(KeyboardInterrupt):
        while True:
            # Also while it follows: a node that is resumed has a history.
            new = [PeerHistory(found.folder / METRICS_FILE, found.name, KEPT_ROUNDS) for found in arrivals.new()]
            lines = [*_last(_read(new, options), options.last), *_read(histories, options)]
            for line in sorted(lines, key=lambda line: line.time):
                console.print(_drawn(line), soft_wrap=True)
            histories += new
            if not options.follow:
                return
            time.sleep(POLL_S)


def _last(lines: Iterator[Line], count: int) -> list[Line]:
    """The last ones by time, in bounded memory."""
    # By time, and by a number, so that lines of the same time stay in order.
    kept: list[tuple[float, int, Line]] = []
    for number, line in enumerate(lines):
        heapq.heappush(kept, (line.time, number, line))
        if len(kept) > count:
            heapq.heappop(kept)
    return [line for _, _, line in sorted(kept)]


def _read(histories: Iterable[PeerHistory], options: LogOptions) -> Iterator[Line]:
    """What was appended since the last call."""
    for history in histories:
        for event in history.news():
            line = _line(history.name, event)
            least = LEVELS.index(options.level)
            if LEVELS.index(line.level) >= least and (options.rounds or not isinstance(event, RoundEvent)):
                yield line


def _line(name: str, event: Event) -> Line:
    level = "info"
    match event:
        case StartEvent():
            text = "started" if event.resumed_from is None else f"resumed from round {event.resumed_from}"
        case NoteEvent():
            level, text = event.level if event.level in LEVELS else "info", event.text
        case EvaluationEvent():
            accuracy = "nothing could be graded" if event.accuracy is None else f"accuracy {event.accuracy:.3f}"
            text = f"round {event.round}: {accuracy} on {event.num_questions} held-out questions"
        case SuiteEvent():
            text = suite_in_words(event)
        case CheckpointEvent():
            text = f"checkpoint at round {event.round}"
        case PauseEvent():
            text = pause_in_words(event)
        case ResumeEvent():
            text = resume_in_words(event)
        case EndEvent():
            level, text = "error" if event.reason == "error" else "info", f"{event.reason} after round {event.round}"
        case RoundEvent():
            reward = "-" if event.reward is None else f"{event.reward:.3f}"
            groups = event.groups
            text = (
                f"round {event.round}: reward {reward}, used {groups['used_local']} own + {groups['used_external']} of "
                f"others so far, peers {event.peers}"
            )
    return Line(event.time, name, level, text)


def _drawn(line: Line) -> Text:
    """Texts in it may be anybody's."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time))
    text = Text(f"{when} ", "dim")
    text.append(f"{clean(line.name, MAX_NAME_CHARS)} ", "cyan")
    level = "" if line.level == "info" else f"{line.level}: "
    return text.append(level + clean_lines(line.text), STYLES.get(line.level, ""))
