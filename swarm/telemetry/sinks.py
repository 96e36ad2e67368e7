"""Writes a node's events to its JSONL file and to the trackers that are configured.

A sink that cannot be set up stops the node at its start. A sink that fails later is logged once and disabled: a full
disk or a broken dashboard must not end training.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from msgspec import structs
from pydantic import Field, model_validator

from swarm.errors import ConfigError
from swarm.figures import REWARD_MEAN
from swarm.files import open_private
from swarm.kinds import Kinds, custom_code
from swarm.settings import Settings
from swarm.telemetry.history import PeerHistory, used_of
from swarm.telemetry.records import (
    METRICS_FILE,
    EvaluationEvent,
    Event,
    RoundEvent,
    StartEvent,
    SuiteEvent,
    encode,
)

if TYPE_CHECKING:
    from pandas import DataFrame


MAX_WAITING_EVENTS = 1_000
CLOSE_TIMEOUT_S = 10.0

Measured = RoundEvent | EvaluationEvent | SuiteEvent
"""Events with numbers of a round."""
logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Receives events in order."""

    def write(self, event: Event) -> None:
        """Write one event; any exception disables this sink."""

    def close(self) -> None:
        """Flush, and release files, ports and processes."""


class SinkSettings(Settings):
    """Where events go, as settings; extend it for a custom sink. Import the client's package in `open`, not before."""

    waits: ClassVar[bool] = False
    """Whether writing may wait for another machine: events are then written on another thread."""

    kind: str

    @abstractmethod
    def open(self, out: Path) -> Sink:
        """The sink of a node whose output folder is `out`. Raises `ConfigError` when it is unavailable."""


SINKS: Kinds[type[SinkSettings]] = Kinds(
    "sink",
    "swarm.sinks",
    "swarm.telemetry.sinks:SinkSettings",
    {
        "prometheus": "swarm.extras.trackers.prometheus:Prometheus",
        "tensorboard": "swarm.extras.trackers.tensorboard:TensorBoard",
        "wandb": "swarm.extras.trackers.wandb:Wandb",
        "mlflow": "swarm.extras.trackers.mlflow:Mlflow",
        "trackio": "swarm.extras.trackers.trackio:Trackio",
    },
)
SinkPart = Annotated[SinkSettings, SINKS]
"""A sink of any kind."""


class TelemetrySettings(Settings):
    """The JSONL file is always written; the rest is opt-in."""

    prometheus_port: int | None = Field(None, ge=0, le=65535)
    """Serve /metrics on this port; 0 takes a free one."""
    prometheus_host: str = "127.0.0.1"
    """Address to serve it on; the default is reachable from this machine only."""
    prometheus_names: tuple[str, ...] = ()
    """Names by which Prometheus asks for it, besides localhost and IP addresses; others are refused, so that no website
    can read it through a browser on this machine."""
    ui: bool = False
    """Serve a page about this node for browsers on this machine (extra `ui`); `--ui` sets it. See
    docs/extras/page.md."""
    ui_port: int | None = Field(None, ge=1, le=65535)
    """Its port; default: that of the last start in this directory, 8787, or a free one."""
    site: Path | None = None
    """Keep the swarm's page for everybody in this folder of a web host up to date, as `swarm site` does."""
    tensorboard: bool = False
    """Write event files under `OUT/tensorboard`."""
    wandb_project: str | None = None
    """Log to this Weights & Biases project (extra `wandb`)."""
    wandb_mode: Literal["auto", "online", "offline"] = "auto"
    """Online where this machine is logged in (`auto`), or always, or never: then the run stays on the disk."""
    sinks: tuple[SinkPart, ...] = Field((), max_length=8)
    """Further trackers, of any kind: `{kind: mlflow, experiment: gsm8k}`, `{kind: trackio, project: gsm8k}`, or custom
    code (`{kind: "sinks.py:MySink"}`). See docs/extend.md."""
    samples_bytes: int = Field(16 * 2**20, ge=0)
    """Keep samples of the groups and of what became of them in `samples.jsonl`; beyond this size the older half is
    deleted. 0: keep none. See docs/operate.md."""
    samples_per_outcome: int = Field(4, ge=1)
    """Most groups kept of a round for each outcome: trained on, no signal, or a reason of refusal."""
    worth_every_rounds: int = Field(2, ge=0)
    """A peer measures in every Nth round what others' groups do for it; 0: never. See docs/operate.md."""
    log_every_rounds: int = Field(5, ge=1)
    """Rounds between log lines when there is no terminal."""

    @model_validator(mode="after")
    def _what_is_configured_exists(self) -> TelemetrySettings:
        self.all_sinks()
        return self

    def all_sinks(self) -> tuple[SinkSettings, ...]:
        """The configured sinks: those of the short fields, then `sinks`. Raises `ValueError`."""
        short: list[dict[str, object]] = []
        if self.prometheus_port is not None:
            served = {"port": self.prometheus_port, "host": self.prometheus_host, "names": self.prometheus_names}
            short.append({"kind": "prometheus", **served})
        if self.tensorboard:
            short.append({"kind": "tensorboard"})
        if self.wandb_project is not None:
            short.append({"kind": "wandb", "project": self.wandb_project, "mode": self.wandb_mode})
        return (*map(SINKS.parse, short), *self.sinks)


class MetricsWriter:
    """Forwards every event to all sinks; thread-safe."""

    def __init__(self, out_dir: Path, settings: TelemetrySettings) -> None:
        """Raises `ConfigError` for a configured sink that is unavailable."""
        self._lock = threading.Lock()
        self._sinks: dict[str, Sink] = {}
        """Sinks by the name of their kind, and a number from the second of a kind on."""
        try:
            self._sinks["jsonl"] = JsonlSink(out_dir / METRICS_FILE)
            for configured in settings.all_sinks():
                with custom_code(f"telemetry.sinks: {configured.kind}"):
                    sink = configured.open(out_dir)
                if configured.waits:
                    sink = _Background(sink)
                self._sinks[_unused(configured.kind, self._sinks)] = sink
        except BaseException:
            self.close()
            raise

    def sink(self, name: str) -> Sink:
        """The open sink of this name. Raises `KeyError`."""
        return self._sinks[name]

    def write(self, event: Event) -> None:
        """Record one event. A failing sink never raises here."""
        with self._lock:
            for name in list(self._sinks):
                self._attempt(name, lambda sink: sink.write(event))

    def close(self) -> None:
        """Close every sink."""
        with self._lock:
            for name in list(self._sinks):
                self._attempt(name, lambda sink: sink.close())
            self._sinks.clear()

    def __enter__(self) -> MetricsWriter:
        """Return itself; leaving the block calls `close`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every sink."""
        self.close()

    def _attempt(self, name: str, act: Callable[[Sink], None]) -> None:
        try:
            act(self._sinks[name])
        except Exception as error:
            # Dashboard clients raise arbitrary exceptions: this boundary keeps them away from training.
            broken = self._sinks.pop(name)
            logger.error("metrics sink %s failed and is switched off: %s: %s", name, type(error).__name__, error)
            # Closing may still release its port or file; a second failure adds nothing.
            with suppress(Exception):
                broken.close()


class _Background:
    """Writes to a sink on another thread; what a slow one leaves behind is dropped, the oldest first."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._events: deque[Event] = deque(maxlen=MAX_WAITING_EVENTS)
        self._awake = threading.Event()
        self._closing = False
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)
        self._thread.start()

    def write(self, event: Event) -> None:
        """Raises what the sink raised for an earlier event."""
        if self._problem is not None:
            raise self._problem
        self._events.append(event)
        self._awake.set()

    def close(self) -> None:
        """Write what is left, for at most `CLOSE_TIMEOUT_S`."""
        self._closing = True
        self._awake.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            while not self._closing:
                self._awake.wait()
                self._awake.clear()
                while self._events:
                    self._sink.write(self._events.popleft())
            self._sink.close()
        except Exception as error:  # raised where the next event is written
            self._problem = error


def _unused(kind: str, taken: Collection[str]) -> str:
    names = (kind if number == 1 else f"{kind} {number}" for number in count(1))
    return next(name for name in names if name not in taken)


class JsonlSink:
    """One flushed line per event, appended to an earlier process's file."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` when the file is not writable."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_private(path, "a+b")
        except OSError as error:
            raise ConfigError(f"cannot write metrics to {path}: {error}; choose another output folder") from error
        if self._file.tell() > 0:
            self._file.seek(-1, 2)
            if self._file.read(1) != b"\n":
                # End a line that a killed process left incomplete, so that only this line is lost.
                self._file.write(b"\n")

    def write(self, event: Event) -> None:
        """Append the event's line."""
        self._file.write(encode(event))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RunTracker(ABC):
    """A sink whose service keeps runs: one for each start of the node, with every number of rounds and evaluations."""

    _run: Any = None
    """The client's run, as `_begin` sets it; None before the node's start."""

    def write(self, event: Event) -> None:
        """Begin a run at the node's start, then log. Raises what the service's client raises."""
        if isinstance(event, StartEvent):
            self.close()
            self._begin(event)
        elif isinstance(event, Measured) and self._run is not None:
            self._log(event, scalars(event))

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._end()
            self._run = None

    @abstractmethod
    def _begin(self, event: StartEvent) -> None:
        """Open a run."""

    @abstractmethod
    def _log(self, event: Measured, figures: dict[str, float]) -> None:
        """Keep these figures at the event's round."""

    @abstractmethod
    def _end(self) -> None:
        """Close the run."""


def scalars(event: Measured) -> dict[str, float]:
    """All numbers of an event by name, without unknown ones."""
    figures: dict[str, float | None]
    if isinstance(event, EvaluationEvent):
        figures = {"evaluate/accuracy": event.accuracy}
        for task, (correct, asked) in event.tasks.items():
            figures[f"evaluate/{task}"] = correct / asked if asked else None
    elif isinstance(event, SuiteEvent):
        parts = {event.suite: event.scores, **{f"{event.suite}/{task}": part for task, part in event.tasks.items()}}
        figures = {
            f"eval/{part}/{name}": estimate.value
            for part, scores in parts.items()
            for name, estimate in scores.figures.items()
        }
    else:
        groups = event.groups
        figures = {
            REWARD_MEAN: event.reward,
            "generate/groups": groups["generated"],
            "generate/tokens": event.tokens_generated,
            "generate/tokens_per_s": event.tokens_per_s,
            "share/groups": groups["shared"],
            "receive/groups": groups["received"],
            "receive/offered": groups.get("offered", 0),
            "receive/checked": groups.get("checked", 0),
            "receive/used_of_received": used_of([groups], "received"),
            "receive/used_of_checked": used_of([groups], "checked"),
            "pool/groups": event.pool,
            "pool/pending": event.pending,
            "update/local_groups": groups["used_local"],
            "update/external_groups": groups["used_external"],
            "mix/local_shortfall": event.local_shortfall,
            "mix/external_shortfall": event.external_shortfall,
            "mix/filled": event.filled,
            "peers/connected": event.peers,
        }
        figures |= {f"filter/{outcome}": n for outcome, n in groups.get("local", {}).items()}
        figures |= {f"drop/{reason}": n for reason, n in groups["dropped"].items()}
        figures |= {f"time/{stage}_s": seconds for stage, seconds in event.timings.items()}
        figures |= event.figures
        if event.learning is not None:
            figures |= {f"learn/{name}": value for name, value in structs.asdict(event.learning).items()}
        if event.following is not None:
            figures |= {f"follow/{name}": value for name, value in structs.asdict(event.following).items()}
    return {name: float(value) for name, value in figures.items() if value is not None}


def history(run: str | Path) -> PeerHistory:
    """The history of the node of this directory so far, running or not.

    Raises `ConfigError` where no node has written anything.
    """
    file = Path(run) / METRICS_FILE
    if not file.exists():
        raise ConfigError(f"there is no {file}: a node writes it while it runs; give a node's directory")
    return PeerHistory.read(file)


def records(run: str | Path) -> list[dict[str, float]]:
    """The rounds of the node of this directory in order, each once, with what evaluations found after them.

    Every record has `round`; counts of groups and tokens are cumulative, and what is unknown is left out. Round 0 is
    the evaluation before the first round. Raises `ConfigError` as `history` does.
    """
    found = history(run)
    suites = [event for results in found.suites.values() for event in results.values()]
    events: list[Measured] = []
    events += [*found.rounds.values(), *found.evaluations.values(), *suites]
    rows: dict[int, dict[str, float]] = {}
    for event in events:
        rows.setdefault(event.round, {"round": event.round}).update(scalars(event))
    for number, made in found.rounds.items():
        rows[number] |= {"time": made.time, "wall_s": made.wall_s}
    return [rows[number] for number in sorted(rows)]


def frame(run: str | Path) -> DataFrame:
    """`records` as a pandas `DataFrame`, with NaN for what is unknown. Raises `ConfigError` as `history` does."""
    from pandas import DataFrame

    return DataFrame(records(run))
