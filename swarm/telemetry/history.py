"""Reads a `metrics.jsonl`, whole or as it grows, and derives figures from it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

from msgspec import Struct, structs

from swarm.figures import LAG_MAX
from swarm.reasons import NO_LOSS
from swarm.telemetry.curves import NodeCurves
from swarm.telemetry.records import (
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    Event,
    GroupCounts,
    NoteEvent,
    PauseEvent,
    ResumeEvent,
    RoundEvent,
    StartEvent,
    SuiteEvent,
    decode,
)
from swarm.types import Estimate, SwarmWorth

Result = TypeVar("Result", EvaluationEvent, SuiteEvent)
Phase = Literal["waiting", "running", "done", "interrupted", "error"]
Role = Literal["peer", "learner", "worker", "giver"]

REWARD_SHARE = 0.1
"""`reward_first` and `reward_last` are means over this share of the rounds."""
LEAST_WINDOW = 8
"""They are means over at least so many rounds, or over half of fewer than twice as many: a few questions of a short run
say little."""

PIECE_BYTES = 16 * 2**20
"""Read at a time; more than the longest line."""
KEPT_ROUNDS = 5_000
"""Last rounds that views of running nodes keep."""
FIRST_ROUNDS = 20
"""Kept where memory is bounded, so that the reward at first stays known."""


def reward_window(num_rounds: int) -> int:
    """Rounds at the beginning and at the end of a run whose rewards are compared."""
    return max(int(num_rounds * REWARD_SHARE), min(LEAST_WINDOW, num_rounds // 2), 1)


class PeerSummary(TypedDict):
    """One peer in `summary.json`; None for unknown values."""

    name: str
    role: Role
    peer_id: str | None
    rounds: int
    """Rounds trained, each counted once."""
    reward_first: float | None
    reward_last: float | None
    eval_before: float | None
    eval_after: float | None
    suites: dict[str, dict[str, Estimate]]
    """The last figures of each evaluation suite."""
    groups: GroupCounts
    pool: int
    """Unused received groups held at the end."""
    pending: int
    """Received groups still waiting to be verified at the end."""
    tokens_generated: int
    wall_s: float
    """Seconds of training, including rounds that were lost and repeated."""
    state: Phase
    restarts: int


class Moment(Struct, frozen=True):
    """One line about an event, for people."""

    time: float
    text: str
    level: str
    alert: str = ""
    """The alert that it reports, by its key."""


class PeerHistory:
    """One node's metrics file, up to the position read.

    A killed node repeats the rounds since its last checkpoint. The last line of a repeated round counts; when a process
    resumes from round r, the lines beyond r describe a lost policy and are dropped.
    """

    def __init__(
        self,
        path: Path,
        name: str | None = None,
        max_rounds: int | None = None,
        max_detailed: int | None = None,
        control: bool = False,
    ) -> None:
        """`name` is used until the peer's start event gives one; default: the folder's name.

        With `max_rounds` memory is bounded, for readers that run for weeks: it keeps `FIRST_ROUNDS` and that many of
        the last rounds, of all but the latest only rewards and counts, and the first and the last evaluation. With
        `max_detailed` it keeps all rounds, at most so many with their figures, counters and times: every Nth.
        `control`: the node learns alone for others to be compared with.
        """
        self.control = control
        self.path = path
        self._max_rounds = max_rounds
        self._max_detailed = max_detailed
        self._fallback_name = name or path.parent.name
        self._forget()

    @classmethod
    def read(
        cls,
        path: Path,
        name: str | None = None,
        max_rounds: int | None = None,
        max_detailed: int | None = None,
        control: bool = False,
    ) -> PeerHistory:
        """The whole file; a missing file gives an empty history."""
        history = cls(path, name, max_rounds, max_detailed, control)
        for _ in history.news():
            pass
        return history

    def news(self) -> Iterator[Event]:
        """Read the events appended since the last call, in pieces of bounded memory."""
        before = -1
        while before != self._offset:
            before = self._offset
            yield from self.tail(PIECE_BYTES)

    def tail(self, max_bytes: int = -1) -> list[Event]:
        """Read and return the events appended since the last call, by default all of them.

        `max_bytes` must exceed the longest line. An incomplete last line is left for the next call.
        """
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    # Shorter than the position read: a new run in the same folder replaced the file.
                    self._forget()
                file.seek(self._offset)
                text = file.read(max_bytes)
        except FileNotFoundError:
            return []
        end = text.rfind(b"\n") + 1
        self._offset += end
        events = []
        for line in text[:end].split(b"\n"):
            if not line.strip():
                continue
            event = decode(line)
            if event is None:
                self.ignored_lines += 1
            else:
                self.read_event(event)
                events.append(event)
        return events

    @property
    def demo(self) -> Path:
        """The directory that it shares with its control and the other nodes of its demo."""
        return self.path.parent.parent

    @property
    def has_forgotten(self) -> bool:
        """True if bounded memory may have dropped rounds."""
        return self._max_rounds is not None and max(self.rounds, default=0) > self._max_rounds

    @property
    def name(self) -> str:
        """The peer's display name."""
        return (self.start.name if self.start else "") or self._fallback_name

    @property
    def role(self) -> Role:
        """A round is a peer's or giver's round, a learner's step, or a worker's batch."""
        if self.start is not None and self.start.role == "giver":
            return "giver"
        if self.latest is not None and self.latest.following is not None:
            return "worker"
        return "learner" if self.latest is not None and self.latest.learning is not None else "peer"

    @property
    def phase(self) -> Phase:
        """The state of the process according to the file; a killed process still appears to run."""
        if self.start is None and self.latest is None:
            return "waiting"
        return self.end.reason if self.end else "running"

    @property
    def wall_s(self) -> float:
        """Seconds of training over all processes so far."""
        return self._wall_before_s + self._wall_here_s

    @property
    def groups(self) -> GroupCounts:
        """The latest counts; zeros before the first round."""
        return self.latest.groups if self.latest else _no_groups()

    @property
    def worth(self) -> SwarmWorth | None:
        """Benefit of others' groups to the node, by its latest round; None when it is not measured."""
        return self.latest.worth if self.latest else None

    @property
    def seconds(self) -> float:
        """Wall-clock time of the rounds, without evaluations and checkpoints."""
        return sum(event.seconds for event in self.series())

    def series(self) -> list[RoundEvent]:
        """The rounds in order, each once."""
        return [self.rounds[number] for number in sorted(self.rounds)]

    def reward_first(self) -> float | None:
        """Mean reward over the first rounds (`reward_window`)."""
        return mean(event.reward for event in self.series()[: reward_window(len(self.rounds))])

    def reward_last(self) -> float | None:
        """Mean reward over the last rounds (`reward_window`)."""
        return mean(event.reward for event in self.series()[-reward_window(len(self.rounds)) :])

    def early_reward(self, num_rounds: int) -> float | None:
        """Mean reward over the first `num_rounds` rounds, or fewer; it stays as it is afterwards."""
        return mean(event.reward for event in self.series()[:num_rounds])

    def recent_reward(self, num_rounds: int) -> float | None:
        """Mean reward over the last `num_rounds` rounds, or fewer."""
        return mean(event.reward for event in self.series()[-num_rounds:])

    def evaluation_before(self) -> EvaluationEvent | None:
        """The evaluation before the first round."""
        return self.evaluations.get(0)

    def evaluation_after(self) -> EvaluationEvent | None:
        """The latest evaluation; None when there was none after training started."""
        last = max(self.evaluations, default=0)
        return self.evaluations[last] if last > 0 else None

    def suite_before(self, name: str) -> SuiteEvent | None:
        """A suite's result before the first round."""
        return self.suites[name].get(0)

    def suite_after(self, name: str) -> SuiteEvent:
        """A suite's result of the latest policy that it evaluated."""
        return self.suites[name][max(self.suites[name])]

    def seconds_per_round(self, num_rounds: int = 20) -> float | None:
        """Seconds per round over this process's last rounds; None before its first."""
        resumed_from = (self.start.resumed_from or 0) if self.start else 0
        recent = [event for event in self.series()[-num_rounds:] if event.round > resumed_from]
        if not recent:
            return None
        if len(recent) == 1:
            return recent[0].wall_s / (recent[0].round - resumed_from)
        return (recent[-1].wall_s - recent[0].wall_s) / (recent[-1].round - recent[0].round)

    def peer_summary(self) -> PeerSummary:
        """This peer's entry in `summary.json`."""
        before, after = self.evaluation_before(), self.evaluation_after()
        return PeerSummary(
            name=self.name,
            role=self.role,
            peer_id=self.start.peer_id if self.start else None,
            rounds=len(self.rounds),
            reward_first=self.reward_first(),
            reward_last=self.reward_last(),
            eval_before=before.accuracy if before else None,
            eval_after=after.accuracy if after else None,
            suites={name: self.suite_after(name).scores.figures for name in self.suites},
            groups=self.groups,
            pool=self.latest.pool if self.latest else 0,
            pending=self.latest.pending if self.latest else 0,
            tokens_generated=self.latest.tokens_generated if self.latest else 0,
            wall_s=self.wall_s,
            state=self.phase,
            restarts=self.restarts,
        )

    def _forget(self) -> None:
        self._offset = 0
        self._wall_before_s = 0.0
        self._wall_here_s = 0.0
        self.start: StartEvent | None = None
        """The latest start event."""
        self.pause: PauseEvent | None = None
        """The pause that the node is in, by its latest reason."""
        self.end: EndEvent | None = None
        """None while the process runs, according to the file."""
        self.latest: RoundEvent | None = None
        """The round that describes the node's current state."""
        self.alive_at: float | None = None
        """Unix time at which it last started, trained, was evaluated or resumed."""
        self.rounds: dict[int, RoundEvent] = {}
        self.figures = NodeCurves()
        """The course of its figures."""
        self._detailed_every = 1
        self.max_lag = 0
        """Largest age of a token trained on, in versions, also in rounds whose figures are not kept."""
        self.evaluations: dict[int, EvaluationEvent] = {}
        self.suites: dict[str, dict[int, SuiteEvent]] = {}
        """Results by suite and by the rounds trained before."""
        self.moments: deque[Moment] = deque(maxlen=50)
        self.restarts = 0
        """Starts after a process that did not shut down cleanly."""
        self.ignored_lines = 0
        """Torn lines and events of an unknown kind."""

    @property
    def alone_since(self) -> float | None:
        """Unix time since when no peer is connected, by this process; None while one is."""
        if self.latest is None or self.start is None or self.latest.time < self.start.time:
            return None
        return self.latest.alone_since

    def read_event(self, event: Event) -> None:
        """Add an event as the file's next one."""
        self.figures.read_event(event)
        if isinstance(event, StartEvent | RoundEvent | EvaluationEvent | ResumeEvent):
            self.alive_at = event.time
        match event:
            case StartEvent():
                self._take_start(event)
            case RoundEvent():
                self.rounds[event.round] = event
                self.latest = event
                self.max_lag = max(self.max_lag, int(event.figures.get(LAG_MAX) or 0))
                self._wall_here_s = event.wall_s
                if self._max_rounds is not None:
                    self._shorten(event.round, self._max_rounds)
                if self._max_detailed is not None:
                    self._thin(event.round, self._max_detailed)
            case EvaluationEvent():
                self.evaluations[event.round] = event
                if self._max_rounds is not None:
                    _keep_ends(self.evaluations)
            case SuiteEvent():
                results = self.suites.setdefault(event.suite, {})
                results[event.round] = event
                if self._max_rounds is not None:
                    _keep_ends(results)
                self.moments.append(Moment(event.time, suite_in_words(event), "info"))
            case NoteEvent():
                self.moments.append(Moment(event.time, event.text, event.level, event.alert))
            case CheckpointEvent():
                self.moments.append(Moment(event.time, f"checkpoint at round {event.round}", "debug"))
            case PauseEvent():
                self.pause = event
                self.moments.append(Moment(event.time, pause_in_words(event), "info"))
            case ResumeEvent():
                self.pause = None
                self.moments.append(Moment(event.time, resume_in_words(event), "info"))
            case EndEvent():
                self.end = event
                self.pause = None
                level = "error" if event.reason == "error" else "info"
                self.moments.append(Moment(event.time, f"{event.reason} after round {event.round}", level))

    def _take_start(self, event: StartEvent) -> None:
        if self.end is not None and event.resumed_from is None:
            # A new run in the same folder, not a continuation.
            offset, ignored = self._offset, self.ignored_lines
            self._forget()
            self._offset, self.ignored_lines, self.alive_at = offset, ignored, event.time
            self.figures.read_event(event)
        elif self.start is not None or self.latest is not None:
            crashed = self.end is None
            self.restarts += crashed
            kept = event.resumed_from or 0
            self.rounds = {number: line for number, line in self.rounds.items() if number <= kept}
            self.evaluations = {number: line for number, line in self.evaluations.items() if number <= kept}
            found = {name: {n: line for n, line in lines.items() if n <= kept} for name, lines in self.suites.items()}
            self.suites = {name: lines for name, lines in found.items() if lines}
            self.latest = self.rounds[max(self.rounds)] if self.rounds else None
            how = "restarted" if crashed else "resumed"
            where = f"from round {kept}" if event.resumed_from is not None else "from the beginning"
            self.moments.append(Moment(event.time, f"{how} {where}", "warning" if crashed else "info"))
        self._wall_before_s += self._wall_here_s
        self._wall_here_s = 0.0
        self.start = event
        self.pause = None
        self.end = None

    def _shorten(self, round: int, max_rounds: int) -> None:
        if (before := self.rounds.get(round - 1)) is not None:
            self.rounds[round - 1] = _bare(before)
        while len(self.rounds) > FIRST_ROUNDS + max_rounds:
            del self.rounds[next(islice(self.rounds, FIRST_ROUNDS, None))]

    def _thin(self, round: int, max_detailed: int) -> None:
        """Keep the details of every Nth round and of this one; N doubles when they are too many."""
        before = self.rounds.get(round - 1)
        if before is not None and before.round % self._detailed_every:
            self.rounds[before.round] = _bare(before)
        if len(self.rounds) > max_detailed * self._detailed_every:
            self._detailed_every *= 2
            for number, event in self.rounds.items():
                if number % self._detailed_every and number != round:
                    self.rounds[number] = _bare(event)


def _bare(event: RoundEvent) -> RoundEvent:
    return structs.replace(event, figures={}, counters={}, timings={}, took_s=event.seconds, worth=None)


def _keep_ends(by_round: dict[int, Result]) -> None:
    """Keep the first and the last result."""
    for number in sorted(by_round)[1:-1]:
        del by_round[number]


def suite_in_words(event: SuiteEvent) -> str:
    """A suite's result in one line: avg@k and pass@k with their intervals."""
    figures = event.scores.figures
    shown = dict.fromkeys((f"avg@{event.k}", f"pass@{event.k}"))
    known = [(name, figures[name]) for name in shown if name in figures]
    words = [f"{name} {found.value:.3f} ({found.low:.3f} to {found.high:.3f})" for name, found in known]
    return f"{event.suite} after round {event.round}: {', '.join(words) or 'nothing could be graded'}"


def pause_in_words(event: PauseEvent) -> str:
    """A pause in one line: why, and until when in local time."""
    if event.until is None:
        return f"paused: {event.why}"
    return f"paused until {time.strftime('%a %H:%M', time.localtime(event.until))}: {event.why}"


def resume_in_words(event: ResumeEvent) -> str:
    """The end of a pause in one line."""
    return f"resumed after a pause of {event.paused_s:.0f} s"


def mix_in_words(event: RoundEvent) -> str:
    """A peer's decision for the round's update in one line; empty for a fixed mix."""
    if event.mix is None or event.mix.policy == "fixed":
        return ""
    reason = f": {event.mix.reason}" if event.mix.reason else ""
    return f"{event.mix.local} local + {event.mix.external} external by {event.mix.policy}{reason}"


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; None when there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def drop_reasons(counts: Iterable[GroupCounts]) -> list[tuple[str, int]]:
    """(reason, number of groups) over all of `counts`, the most frequent first."""
    total: Counter[str] = Counter()
    for groups in counts:
        total.update(groups["dropped"])
    return sorted(((reason, n) for reason, n in total.items() if n), key=lambda item: (-item[1], item[0]))


def split_drops(groups: GroupCounts) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Drops that are no loss, and the others; see `swarm.reasons.NO_LOSS`."""
    found = drop_reasons([groups])
    return [each for each in found if each[0] in NO_LOSS], [each for each in found if each[0] not in NO_LOSS]


def num_dropped(groups: GroupCounts) -> int:
    """Received groups dropped, for any reason."""
    return sum(groups["dropped"].values())


def used_of(groups: Iterable[GroupCounts], what: Literal["received", "checked"]) -> float | None:
    """The fraction of received, or of graded, groups that an update used; None without any."""
    counts = list(groups)
    total = sum(each.get(what, 0) for each in counts)
    return sum(each["used_external"] for each in counts) / total if total else None


def _no_groups() -> GroupCounts:
    return GroupCounts(
        generated=0,
        shared=0,
        received=0,
        used_local=0,
        used_external=0,
        dropped={},
        local={},
        reused_external=0,
        offered=0,
        checked=0,
    )
