"""`swarm ui`, `top`, `logs` and `samples`: looks at nodes on this machine."""

from __future__ import annotations

import heapq
import json
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec
from msgspec import Struct
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nodes import exits
from nodes.boot.directory import running_nodes
from nodes.commands.demo import CONTROL, CONTROL_FILE
from nodes.page import NICENESS, address, check_installed, listen
from nodes.stop import Stop, StopRequest
from swarm.errors import ConfigError
from swarm.kinds import extra
from swarm.reasons import Reason
from swarm.sanitize import clean, clean_lines
from swarm.settings import nearest
from swarm.telemetry.curves import FIGURES
from swarm.telemetry.history import PeerHistory, pause_in_words, resume_in_words, suite_in_words
from swarm.telemetry.live import ASCII_BLOCKS, BLOCKS, LiveView, sparkline
from swarm.telemetry.nodes import CLAIMS, Arrivals, Found, Leader, NodeReader, leaders
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
from swarm.telemetry.samples import SAMPLES_FILE, Outcome, SampledCompletion, SampleRecord, folded, read, why

PAGE_POLL_S = 0.2
PER_SECOND = 1
SHOWN_LEADERS = 8
CURVE_WIDTH = 24
FIRST_CURVES = ("reward", "accuracy", "own groups", "others' groups", "seconds per round")
POLL_S = 0.5
KEPT_ROUNDS = 1
MAX_NAME_CHARS = 24
STYLES = {"warning": "yellow", "error": "bold red"}
LEVELS = ("info", "warning", "error")
GROUP_STYLES = {"used_local": "green", "used_external": "green", "refused": "yellow"}
OUTCOMES: tuple[str, ...] = get_args(Outcome)
INDENT = "    "


def find_nodes(runs: Sequence[Path]) -> list[Found]:
    """The nodes in `runs`, in the order of their names; without any, those that run on this machine.

    A control comes last. Folders of one name are called with the one around them.
    """
    folders = dict.fromkeys(folder for run in runs or running_nodes() for folder in _nodes_in(run))
    names = Counter(folder.name for folder in folders)
    found = [
        Found(folder, _called(folder) if names[folder.name] > 1 else folder.name, _is_control(folder))
        for folder in folders
    ]
    return sorted(found, key=lambda each: (each.control, str(each.folder.parent), _by_number(each.name)))


def check_named(runs: Sequence[Path]) -> None:
    """Raises `ConfigError` for a directory that is not there, or when there is nothing to show."""
    for run in runs:
        if not run.is_dir():
            raise ConfigError(f"there is no directory {run}; name a node's --out, or that of a demo")
    if not runs and not running_nodes():
        raise ConfigError("no node is running here; name the directory of one, such as runs/peer")


def _nodes_in(run: Path) -> list[Path]:
    """Itself, or the nodes one level below, which may be starting."""
    if (run / METRICS_FILE).exists():
        return [run]
    return [path.parent for path in run.glob(f"*/{METRICS_FILE}")]


def _called(folder: Path) -> str:
    return "/".join(folder.absolute().parts[-2:])


def _is_control(folder: Path) -> bool:
    return folder.name == CONTROL and (folder.parent / CONTROL_FILE).exists()


def _by_number(name: str) -> list[tuple[int, str]]:
    """`peer-10` after `peer-9`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


class UiOptions(Struct, frozen=True):
    """Options of the command line."""

    runs: tuple[Path, ...]
    port: int | None
    socket: int | None
    """A listening socket that this process has inherited."""
    supervised: bool


def show_ui(options: UiOptions, console: Console) -> int:
    """Serve the page until Ctrl-C. Raises `ConfigError`."""
    check_installed()
    stop = StopRequest(options.supervised)
    if options.socket is not None:
        os.nice(NICENESS)
        listening = socket.socket(fileno=options.socket)
    else:
        check_named(options.runs)
        listening, changed = listen(None, options.port)
        if changed:
            console.print(changed, style="yellow")
    console.print(f"page: {address(listening)} (this machine only; Ctrl-C ends it)", highlight=False)
    _serve(options.runs, listening, stop)
    return exits.INTERRUPTED if stop() else exits.DONE


def _serve(runs: Sequence[Path], listening: socket.socket, stop: Stop) -> None:
    page = extra("page.server")
    server = page.make_server(page.Site(lambda: find_nodes(runs)))
    # Not on the main thread: uvicorn would take the signals there, and miss one that came before.
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="page")
    serving.start()
    while serving.is_alive() and not stop():
        serving.join(PAGE_POLL_S)
    server.should_exit = True
    serving.join()


def show_top(runs: Sequence[Path], once: bool, console: Console) -> None:
    """Show the nodes in `runs`, or all that run here, until Ctrl-C; `once`, or without a terminal, one frame.

    Raises `ConfigError` when there is none.
    """
    check_named(runs)
    frame = Frame(partial(find_nodes, runs))
    if once or not console.is_terminal:
        console.print(frame)
        return
    with suppress(KeyboardInterrupt), Live(frame, console=console, refresh_per_second=PER_SECOND, screen=True):
        while True:
            time.sleep(PER_SECOND)


class Frame:
    """One frame: the live view's table, then the alerts; of a single node also its curves."""

    def __init__(self, find: Callable[[], Sequence[Found]]) -> None:
        """Rendering reads what is new, also of nodes that `find` finds only then."""
        self._arrivals = Arrivals(find)
        self._nodes: list[NodeReader] = []
        self._histories: list[PeerHistory] = []
        self._view = LiveView(self._histories, "swarm top")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The frame for the terminal's width."""
        for found in self._arrivals.new():
            self._nodes.append(NodeReader(found.folder, found.name, found.control))
            self._histories.append(self._nodes[-1].history)
        for node in self._nodes:
            node.read()
        yield self._view
        yield from _leaders(leaders(self._nodes))
        if len(self._nodes) == 1:
            yield _curves(self._nodes[0], options.ascii_only)


def _leaders(found: Sequence[Leader]) -> Iterator[RenderableType]:
    """Who is how far, where other members tell it."""
    if not any(leader.claimed for leader in found):
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("member", "accuracy", "rounds", "gave", "used"):
        table.add_column(title, justify="left" if title == "member" else "right")
    for leader in found[:SHOWN_LEADERS]:
        known = leader.accuracy
        accuracy = "-" if known is None else f"{known[0]:.2f} ({known[1]:.2f} to {known[2]:.2f})"
        cells = (leader.name or leader.peer, accuracy, str(leader.rounds), str(leader.given), str(leader.used))
        table.add_row(*map(Text, cells), style="yellow" if leader.claimed else "")
    yield table
    yield Text(f"yellow: {CLAIMS}", "dim")


def _curves(node: NodeReader, ascii_only: bool) -> Table:
    """The latest value of each figure, and its course."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure")
    table.add_column("now", justify="right")
    table.add_column("by round")
    names = dict.fromkeys((*FIRST_CURVES, *FIGURES, *node.curves))
    for name in (name for name in names if name in node.curves):
        curve = node.curves[name]
        values = [value for _, value in curve.points()]
        now = curve.recent if curve.recent is not None else curve.last
        course = sparkline(values, CURVE_WIDTH, max(values, default=0.0), ASCII_BLOCKS if ascii_only else BLOCKS)
        table.add_row(name, "-" if now is None else f"{now:.4g}", Text(course, "cyan"))
    return table


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
    check_named(options.runs)
    arrivals = Arrivals(partial(find_nodes, options.runs))
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


class SampleFilter(Struct, frozen=True):
    """Which samples to show; None: any."""

    task: str | None = None
    sender: str | None = None
    """The beginning or the end of a peer id."""
    outcome: str | None = None
    """An outcome or a reason."""
    last: int = 10
    """Most groups shown of those that match."""

    def __call__(self, record: SampleRecord) -> bool:
        """Whether a sample matches."""
        return (
            self.task in (None, record.task)
            and (self.sender is None or record.sender.startswith(self.sender) or record.sender.endswith(self.sender))
            and self.outcome in (None, record.outcome, record.reason)
        )


def show_samples(folder: Path, wanted: SampleFilter, as_json: bool, console: Console) -> None:
    """Print the last samples of a node that match, oldest first. Raises `ConfigError` for a directory without any."""
    if wanted.outcome not in (None, *OUTCOMES, *Reason):
        near = nearest(wanted.outcome or "", [*OUTCOMES, *Reason])
        raise ConfigError(
            f"--outcome must be {', '.join(OUTCOMES)}, or a reason (docs/reasons.md), got {wanted.outcome!r}"
            f"{f'; did you mean {near}?' if near else ''}"
        )
    records = read(folder)
    if not records:
        raise ConfigError(f"{folder} has no {SAMPLES_FILE}{_elsewhere(folder)}")
    chosen = [record for record in records if wanted(record)][-wanted.last :]
    if as_json:
        # In ASCII, every control character but the last one is escaped.
        print(json.dumps(msgspec.to_builtins(chosen), indent=1).replace("\x7f", "\\u007f"))
        return
    for record in chosen:
        console.print(_in_words(record), soft_wrap=True)
    if not chosen:
        console.print(f"none of the {len(records)} samples kept matches")


def _elsewhere(folder: Path) -> str:
    """Where else the user may have meant, for a directory with several nodes."""
    found = sorted(str(path.parent) for path in folder.glob(f"*/{SAMPLES_FILE}"))
    return f"; choose one of {', '.join(found)}" if found else ": name a node's directory, its --out"


def _in_words(record: SampleRecord) -> Text:
    """A sample as a few lines; everything in it may come from untrusted peers."""
    text = Text()
    outcome = f"{record.outcome}: {record.reason}" if record.outcome in ("unused", "refused") else record.outcome
    sender = "this node" if record.own else record.sender
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))
    text.append(f"round {record.round}  {clean(record.task)}  ", "bold")
    text.append(clean(outcome), GROUP_STYLES.get(record.outcome, ""))
    text.append(clean(f"  from {sender}  {record.policy} version {record.version}  {when}"), "dim").append("\n")
    text.append(_indented(record.question if record.question is not None else "(question not made here)"))
    if record.expected:
        text.append(f"  expected: {clean(record.expected)}\n")
    for completion, count in folded(record.completions):
        said = why(completion.reward, record.expected, completion.found)
        text.append(f"  {count} x " if count > 1 else "  ").append(_rewards(completion), "cyan")
        text.append(f"{f'; {clean(said)}' if said else ''}\n", "cyan")
        for line in _turns(completion):
            text.append(line)
    if record.num_completions > len(record.completions):
        text.append(f"  and {record.num_completions - len(record.completions)} more completions\n", "dim")
    return text


def _rewards(completion: SampledCompletion) -> str:
    own = "not graded" if completion.reward is None else f"reward {completion.reward:g}{in_words(completion.parts)}"
    claimed = completion.claimed
    says = "" if claimed is None or claimed == completion.reward else f", its sender says {claimed:g}"
    return f"{own}{says}, ended by {clean(completion.finish_reason)}"


def in_words(parts: Mapping[str, float]) -> str:
    """Named rewards after their weighted mean; empty without any."""
    return f" ({', '.join(f'{clean(name)} {value:.3g}' for name, value in parts.items())})" if parts else ""


def _turns(completion: SampledCompletion) -> Iterator[str]:
    for turn in completion.turns:
        cut = turn.num_chars - len(turn.text)
        more = f"... ({cut:,} more characters)" if cut > 0 else ""
        yield _indented(f"{f'{turn.role}: ' if completion.names_speakers else ''}{turn.text}{more}")


def _indented(text: str) -> str:
    return "".join(f"{INDENT}{line}\n" for line in clean_lines(text).split("\n"))
