"""The live view of a run: a table that redraws itself in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import signal
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from swarm.figures import LAG_MAX, SLOTS_BUSY
from swarm.sanitize import clean
from swarm.telemetry.alerts import Alert, alerts, free_bytes, worst_first
from swarm.telemetry.benefit.verdict import BY_ESTIMATE, Standing, Verdict, verdict
from swarm.telemetry.history import (
    FIRST_ROUNDS,
    Moment,
    PeerHistory,
    drop_reasons,
    mean,
    mix_in_words,
    num_dropped,
    pause_in_words,
    split_drops,
)
from swarm.telemetry.records import GroupCounts, LearningFigures, RoundEvent

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

REWARD_ROUNDS = FIRST_ROUNDS
"""Rounds in the mean that is shown as the current reward; one round is too noisy."""
SILENT_AFTER_S = 60.0
RESTART_SHOWN_S = 300.0
NUM_MOMENTS = 3
NUM_ALERTS = 2
VERDICT_EVERY_S = 5.0
"""Comparing with a control takes a bootstrap."""
STYLES: dict[Standing, str] = {"helps": "bold green", "mixed": "bold yellow", "hurts": "bold red", "open": "bold"}
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-~=+*#"


class Column(Struct, frozen=True):
    """A column of the live table, shown on terminals of at least `from_width`."""

    name: str
    from_width: int
    max_width: int
    """Doubled on wide terminals."""
    justify: Literal["left", "right"] = "right"


MOST_LINES = 3
"""Lines of a sentence below the table."""
ROOMY = 76
"""Width from which on the view also says why, and what to do."""
MEDIUM = 98
WIDE = 125
COLUMNS = (
    Column("peer", 0, 11, "left"),
    Column("state", 0, 11, "left"),
    Column("round", 0, 6),
    Column("reward", 50, 15, "left"),
    Column("gen", MEDIUM, 5),
    Column("shared", MEDIUM, 6),
    Column("recv", 76, 5),
    Column("used", 62, 9),
    Column("dropped", 70, 15, "left"),
    Column("refused", 125, 10, "left"),
    Column("pool", 76, 5),
    Column("peers", 40, 5),
    Column("tok/s", 76, 5),
)


class LiveView:
    """The table of a set of peers, one row each, with overall progress above it and the latest events below.

    Rendering reads new lines from the files.
    """

    def __init__(
        self,
        histories: Sequence[PeerHistory],
        title: str = "swarm",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`histories` may grow meanwhile; `clock` gives Unix seconds."""
        self._histories = histories
        self._answered: Verdict | None = None
        self._answered_at = -math.inf
        self._title = title
        self._clock = clock
        self._began = clock()
        self._notes: deque[Moment] = deque(maxlen=NUM_MOMENTS)

    def note(self, text: str, level: str = "info") -> None:
        """Show a line that is in no peer's file, e.g. that its process died. Thread-safe."""
        self._notes.append(Moment(self._clock(), text, level))

    @contextmanager
    def shown(self, console: Console | None = None, per_second: float = 2) -> Iterator[LiveView]:
        """Draw on the terminal from a thread while the block runs; the last frame stays."""
        from rich.live import Live

        live = Live(self, console=console, refresh_per_second=per_second, vertical_overflow="crop")
        with live, _cleared_on_resize(live.console):
            yield self

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The frame for the terminal's width and height."""
        for history in self._histories:
            history.tail()
        now = self._clock()
        width = options.max_width
        answer = self._decided(now)
        below = [
            *_wrapped(answer.line, STYLES[answer.standing], width),
            *(_wrapped(answer.why, "", width) if width >= ROOMY else []),
            *(line for alert in self._alarms(now)[:NUM_ALERTS] for line in self._alert_lines(alert, width)),
            *(_line(line, "yellow") for line in self._pauses()),
            *map(_moment_line, self._moments()),
        ]
        # A frame taller than the screen would scroll and flicker, so rows that do not fit are only counted.
        space = (options.height or console.size.height) - len(below) - 6
        shown = self._histories if len(self._histories) <= space else self._histories[: max(1, space - 1)]
        yield self._progress(now, width)
        yield _peer_table(shown, now, width, options.ascii_only)
        if len(shown) < len(self._histories):
            yield _line(f"and {len(self._histories) - len(shown)} more peers", "dim")
        if len(self._histories) == 1 and (event := self._histories[0].latest):
            if self._histories[0].role == "giver":
                yield _line(_given(event), "dim")
            if decided := mix_in_words(event):
                yield _line(f"mix: {clean(decided)}", "dim")
        for line in below:
            line.plain = drawable(line.plain, options.ascii_only)
            line.overflow = _overflow(options.ascii_only)
            yield line

    def _decided(self, now: float) -> Verdict:
        if self._answered is None or not 0 <= now - self._answered_at < VERDICT_EVERY_S:
            self._answered, self._answered_at = verdict(self._histories), now
        return self._answered

    def _alarms(self, now: float) -> list[tuple[str, Alert]]:
        return worst_first(
            (history.name, alert)
            for history in self._histories
            for alert in alerts(history, now, free_bytes(history.path.parent))
        )

    def _alert_lines(self, named: tuple[str, Alert], width: int) -> list[Text]:
        name, alert = named
        style = "bold red" if alert.level == "error" else "yellow"
        text = f"{name}: {alert.text}" if len(self._histories) > 1 else alert.text
        lines = _wrapped(text, style, width)
        return lines if width < ROOMY else [*lines, *_wrapped(alert.advice, "dim", width), _line(alert.more, "dim")]

    def _pauses(self) -> list[str]:
        """Why nodes pause, and until when, in a line for each reason."""
        paused: dict[str, list[str]] = {}
        for history in self._histories:
            if history.pause is not None:
                paused.setdefault(pause_in_words(history.pause), []).append(history.name)
        return [f"{clean(', '.join(names))}: {clean(why)}" for why, names in paused.items()][:NUM_MOMENTS]

    def _moments(self) -> list[Moment]:
        found = list(self._notes)
        for history in self._histories:
            prefix = f"{history.name}: " if len(self._histories) > 1 else ""
            found += [
                Moment(moment.time, prefix + moment.text, moment.level)
                for moment in history.moments
                if moment.level != "debug" and not moment.alert
            ]
        return sorted(found, key=lambda moment: moment.time)[-NUM_MOMENTS:]

    def _progress(self, now: float, width: int) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = Progress.of(self._histories)
        title = Text(self._title, style="bold")
        elapsed = f"{_duration(now - self._began)} elapsed"
        grid = Table.grid(padding=(0, 1), expand=True)
        if progress.total is None:
            grid.add_column(ratio=1, no_wrap=True, overflow="crop")
            grid.add_column(justify="right", no_wrap=True, overflow="crop")
            grid.add_row(title, Text(f"{progress.done} round{'s' * (progress.done != 1)}, {elapsed}"))
            return grid
        left = "" if progress.left_s is None else f", {_duration(progress.left_s)} left"
        share = progress.done / progress.total if progress.total else 1.0
        grid.add_column(no_wrap=True, overflow="crop")
        grid.add_column(ratio=1)
        grid.add_column(justify="right", no_wrap=True, overflow="crop")
        counts = f"{progress.done}/{progress.total} rounds, " if width >= 90 else ""
        grid.add_row(
            title,
            ProgressBar(total=max(1, progress.total), completed=progress.done),
            Text(f"{share:4.0%}  {counts}{elapsed}{left}"),
        )
        return grid


@contextmanager
def _cleared_on_resize(console: Console) -> Iterator[None]:
    """A terminal that becomes narrower wraps the last frame's lines, which the next frame would not cover."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGWINCH, lambda number, frame: console.clear())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


class Progress(Struct, frozen=True):
    """The progress of a set of peers."""

    done: int
    """Rounds, over all peers."""
    total: int | None
    """Rounds planned; None when a peer has no limit."""
    left_s: float | None
    """Seconds until the slowest peer finishes at its current pace; None while unknown."""

    @classmethod
    def of(cls, histories: Sequence[PeerHistory]) -> Progress:
        """From the files read so far. Peers that have not started are assumed to plan as many rounds as the others."""
        known = [history.start.rounds for history in histories if history.start]
        counts = [rounds for rounds in known if rounds is not None]
        done = sum(_round(history) for history in histories)
        if not counts or len(counts) < len(known):
            return cls(done, None, None)
        left: list[float] = []
        total = 0
        for history in histories:
            rounds = max(counts)
            if history.start and history.start.rounds is not None:
                rounds = history.start.rounds
            if history.phase in ("done", "interrupted", "error"):
                # A stopped peer does no further rounds.
                total += _round(history)
                continue
            total += rounds
            pace = history.seconds_per_round()
            if pace is not None:
                left.append(max(0, rounds - _round(history)) * pace)
        return cls(done, total, max(left, default=None))


def plain_line(history: PeerHistory, clock: Callable[[], float] = time.time, estimates: bool = True) -> str:
    """One peer's state in one line of plain text, for logs and pipes, and with `estimates` its own one in another."""
    parts = [history.name, state_text(history, clock())]
    more = ""
    event = history.latest
    if event is not None:
        groups = event.groups
        first = _figure(history.early_reward(REWARD_ROUNDS))
        total = f"/{history.start.rounds}" if history.start and history.start.rounds is not None else ""
        parts += [
            f"round {event.round}{total}",
            f"reward {_figure(history.recent_reward(REWARD_ROUNDS))} (at first {first})",
            _given(event) if history.role == "giver" else _used(groups),
            f"peers {event.peers}",
        ]
        if decided := mix_in_words(event):
            parts.append(f"mix {clean(decided)}")
        if estimates and event.worth is not None and groups["received"]:
            answer = verdict([history])
            kind = "own estimate: " if answer.how == BY_ESTIMATE else ""
            more = f"\n{history.name} | {kind}{answer.line}"
        if event.tokens_per_s is not None:
            busy = event.figures.get(SLOTS_BUSY)
            of_slots = "" if busy is None else f", {busy:.0%} of slots busy"
            parts.append(f"{_compact(event.tokens_per_s)} tokens/s{of_slots}")
        if event.learning is not None:
            parts += _learning(event.learning, event.figures.get(LAG_MAX))
        if event.following is not None:
            parts.append(f"version {event.following.version} of {event.following.announced}")
    return " | ".join(parts) + more


def _given(event: RoundEvent) -> str:
    """What became of a giver's groups, as its peers say."""
    shared, uses, by = event.groups["shared"], event.counters.get("given/used", 0), event.counters.get("given/peers", 0)
    return f"groups: given {shared} of {event.groups['generated']} asked, {uses} uses by {by} peer{'s' * (by != 1)}"


def _used(groups: GroupCounts) -> str:
    return (
        f"groups: used {groups['used_local']} local + {groups['used_external']} external, "
        f"shared {groups['shared']}, received {groups['received']}, dropped {num_dropped(groups)}{_drops(groups)}"
    )


def _drops(groups: GroupCounts) -> str:
    """The most frequent reasons, those that are no loss apart."""
    kinds = zip(("no loss", "refused"), split_drops(groups), strict=True)
    words = [f"{kind}: {', '.join(f'{reason} {n}' for reason, n in found[:2])}" for kind, found in kinds if found]
    return f" ({'; '.join(words)})" if words else ""


def _learning(figures: LearningFigures, oldest: float | None) -> list[str]:
    """A learner's version and staleness; its workers' measured and predicted figures."""
    waits = "-" if figures.bubble is None else f"{figures.bubble:.0%}"
    predicted = "-" if figures.predicted_bubble is None else f"{figures.predicted_bubble:.0%}"
    return [
        f"version {figures.version}, lag {'-' if oldest is None else int(oldest)} of {figures.max_staleness}",
        f"{figures.active} of {figures.workers} workers, {figures.rate:.1f} rollouts/s, needed "
        + _figure(figures.required_rate),
        f"waits {waits} (predicted {predicted})",
    ]


def state_text(history: PeerHistory, now: float, short: bool = False) -> str:
    """A peer's state in one to three words."""
    if history.phase == "error":
        return "failed"
    if history.phase != "running":
        return history.phase
    event = history.latest
    if history.pause is not None:
        until = history.pause.until
        return "paused" if short or until is None else f"paused until {_clock_time(until)}"
    if event is not None and history.alive_at is not None and now - history.alive_at > SILENT_AFTER_S:
        return f"silent {_duration(now - history.alive_at)}"
    if history.alone_since is not None:
        since = _clock_time(history.alone_since)
        return f"alone {since}" if short else f"alone since {since}"
    if history.restarts and history.start is not None and now - history.start.time < RESTART_SHOWN_S:
        return f"restart x{history.restarts}" if short else f"restarted x{history.restarts}"
    return "running" if event else "starting"


def sparkline(values: Sequence[float | None], width: int, top: float, blocks: str = BLOCKS) -> str:
    """`values` from 0 to `top` in at most `width` characters, each the mean of its bin; blank where unknown."""
    num_bins = min(width, len(values))
    bins = [mean(values[i * len(values) // num_bins : (i + 1) * len(values) // num_bins]) for i in range(num_bins)]
    highest = len(blocks) - 1
    return "".join(
        " " if value is None else blocks[min(highest, max(0, round(value / top * highest))) if top > 0 else 0]
        for value in bins
    )


def _peer_table(histories: Sequence[PeerHistory], now: float, width: int, ascii_only: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    columns = [column for column in COLUMNS if column.from_width <= width]
    wide = width >= WIDE
    spark_width = 16 if wide else 10 if width >= MEDIUM else 8
    rewards = [[event.reward for event in history.series()] for history in histories]
    # One scale makes the rows comparable.
    bins = [mean(values[i : i + REWARD_ROUNDS]) for values in rewards for i in range(0, len(values), REWARD_ROUNDS)]
    top = max((value for value in bins if value is not None), default=0.0)

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=False, header_style="bold")
    for column in columns:
        heading = f"reward 0-{top:.2f}" if column.name == "reward" and top else column.name
        table.add_column(
            heading,
            justify=column.justify,
            # When space is short, the reasons are cut: rich narrows wrapping columns first.
            no_wrap=column.name != "dropped",
            overflow=_overflow(ascii_only),
            max_width=column.max_width if not wide else column.max_width * 2,
        )
    for history, values in zip(histories, rewards, strict=True):
        curve = sparkline(values, spark_width, top, ASCII_BLOCKS if ascii_only else BLOCKS)
        row = _row(history, now, width, curve.ljust(spark_width))
        table.add_row(
            *(Text(row[column.name], style=_style(column.name, history, row), no_wrap=True) for column in columns)
        )
    return table


def _row(history: PeerHistory, now: float, width: int, curve: str) -> dict[str, str]:
    """Text of each column."""
    row = dict.fromkeys((column.name for column in COLUMNS), "")
    row["peer"] = history.name
    row["state"] = state_text(history, now, short=width < WIDE)
    event = history.latest
    if event is None:
        return row
    groups = event.groups
    reasons, (_, refused) = drop_reasons([groups]), split_drops(groups)
    row |= {
        "round": str(event.round),
        "reward": f"{curve} {_figure(history.recent_reward(REWARD_ROUNDS), 2)}",
        "gen": _compact(groups["generated"]),
        "shared": _compact(groups["shared"]),
        "recv": _compact(groups["received"]),
        "used": f"{_compact(groups['used_local'])}+{_compact(groups['used_external'])}",
        "dropped": _most(reasons) if width >= MEDIUM else _compact(num_dropped(groups)),
        "refused": _most(refused),
        "pool": _compact(event.pool),
        "peers": str(event.peers),
        "tok/s": "" if event.tokens_per_s is None else _compact(event.tokens_per_s),
    }
    return row


def _most(reasons: Sequence[tuple[str, int]]) -> str:
    """The number of all these groups, and the most frequent reason."""
    total = _compact(sum(count for _, count in reasons))
    return f"{total} {reasons[0][0]}" if reasons else total


def _style(column: str, history: PeerHistory, row: dict[str, str]) -> str:
    if column == "reward":
        return "cyan"
    if column == "state":
        if history.phase == "error":
            return "bold red"
        if history.phase == "done":
            return "green"
        return "yellow" if row["state"].startswith(("alone", "paused", "restart", "silent", "interrupted")) else ""
    return ""


def _round(history: PeerHistory) -> int:
    return history.latest.round if history.latest else 0


def _line(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="crop")


def _wrapped(text: str, style: str, width: int) -> list[Text]:
    """At most `MOST_LINES`."""
    lines = textwrap.wrap(clean(text), width, max_lines=MOST_LINES, placeholder=" ...", break_on_hyphens=False)
    return [_line(each, style) for each in lines]


def _moment_line(moment: Moment) -> Text:
    style = {"warning": "yellow", "error": "bold red"}.get(moment.level, "dim")
    return _line(f"{_clock_time(moment.time, seconds=True)} {clean(moment.text)}", style)


def _overflow(ascii_only: bool) -> Literal["crop", "ellipsis"]:
    """Some encodings have no ellipsis."""
    return "crop" if ascii_only else "ellipsis"


def drawable(text: str, ascii_only: bool) -> str:
    """With letters for the signs that some terminals lack."""
    return text.replace("→", "->").replace("×", "x") if ascii_only else text


def _figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _compact(value: float) -> str:
    """At most five characters up to a billion."""
    for limit, divisor, suffix in ((10_000, 1, ""), (1_000_000, 1e3, "k"), (1_000_000_000, 1e6, "M")):
        if round(value) < limit:
            scaled = value / divisor
            return f"{scaled:.1f}{suffix}" if suffix and scaled < 99.95 else f"{scaled:.0f}{suffix}"
    return f"{value / 1e9:.0f}G"


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _clock_time(unix_s: float, seconds: bool = False) -> str:
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(unix_s))
