"""Writes a node's events to its JSONL file and, when configured, to Prometheus, TensorBoard and Weights & Biases.

A sink that cannot be set up stops the node at its start. A sink that fails later is logged once and disabled: a full
disk or a broken dashboard must not end training.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import structs
from pydantic import Field

from swarm.distribution import how_to_install
from swarm.errors import ConfigError
from swarm.figures import REWARD_MEAN
from swarm.files import open_private
from swarm.settings import Settings
from swarm.telemetry.history import PeerHistory, used_of
from swarm.telemetry.records import (
    METRICS_FILE,
    EvaluationEvent,
    Event,
    PauseEvent,
    ResumeEvent,
    RoundEvent,
    StartEvent,
    SuiteEvent,
    encode,
)

if TYPE_CHECKING:
    from pandas import DataFrame
    from prometheus_client import Metric


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
    tensorboard: bool = False
    """Write event files under `OUT/tensorboard`."""
    wandb_project: str | None = None
    """Log to this Weights & Biases project (extra `wandb`)."""
    wandb_mode: Literal["online", "offline"] = "offline"
    samples_bytes: int = Field(16 * 2**20, ge=0)
    """Keep samples of the groups and of what became of them in `samples.jsonl`; beyond this size the older half is
    deleted. 0: keep none. See docs/operate.md."""
    samples_per_outcome: int = Field(4, ge=1)
    """Most groups kept of a round for each outcome: trained on, no signal, or a reason of refusal."""
    worth_every_rounds: int = Field(2, ge=0)
    """A peer measures in every Nth round what others' groups do for it; 0: never. See docs/operate.md."""
    log_every_rounds: int = Field(5, ge=1)
    """Rounds between log lines when there is no terminal."""


logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Receives events in order."""

    def write(self, event: Event) -> None:
        """Write one event; any exception disables this sink."""
        ...

    def close(self) -> None:
        """Flush, and release files, ports and processes."""
        ...


class MetricsWriter:
    """ForwardRunner every event to all sinks; thread-safe."""

    def __init__(self, out_dir: Path, settings: TelemetrySettings) -> None:
        """Raises `ConfigError` for a configured sink that is unavailable."""
        self._lock = threading.Lock()
        self._sinks: dict[str, Sink] = {}
        self.prometheus_port: int | None = None
        """The actual port of /metrics, also when the configured port is 0."""
        try:
            self._sinks["jsonl"] = JsonlSink(out_dir / METRICS_FILE)
            if settings.prometheus_port is not None:
                prometheus = PrometheusSink(
                    settings.prometheus_host, settings.prometheus_port, settings.prometheus_names
                )
                self._sinks["prometheus"] = prometheus
                self.prometheus_port = prometheus.port
            if settings.tensorboard:
                self._sinks["tensorboard"] = TensorBoardSink(out_dir / "tensorboard")
            if settings.wandb_project is not None:
                self._sinks["wandb"] = WandbSink(out_dir, settings.wandb_project, settings.wandb_mode)
        except BaseException:
            self.close()
            raise

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


class PrometheusSink:
    """Serves the latest figures at /metrics.

    Counters come from the ledger, which is restored from checkpoints, so that they continue after a resume.
    """

    def __init__(self, host: str, port: int, names: Sequence[str] = ()) -> None:
        """Raises `ConfigError` when the port is unavailable; 0 takes a free one. `names`: see `for_known_hosts`."""
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from swarm.telemetry.metrics_server import MetricsServer, for_known_hosts

        self._start: StartEvent | None = None
        self._round: RoundEvent | None = None
        self._paused = False
        self._evaluation: EvaluationEvent | None = None
        self._suites: dict[str, SuiteEvent] = {}
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = MetricsServer(host, port, for_known_hosts(make_wsgi_app(registry), host, names))
        except OSError as error:
            raise ConfigError(
                f"telemetry.prometheus_port: cannot serve metrics on {host}:{port}: {error}; use another port, "
                "or 0 for a free one"
            ) from error
        self._server.start()
        self.port: int = self._server.server_port
        logger.info("metrics are served at http://%s:%d/metrics", host, self.port)

    def write(self, event: Event) -> None:
        """Keep the latest event of each kind that a scrape shows."""
        if isinstance(event, StartEvent):
            self._start = event
            self._paused = False
        elif isinstance(event, RoundEvent):
            self._round = event
        elif isinstance(event, PauseEvent | ResumeEvent):
            self._paused = isinstance(event, PauseEvent)
        elif isinstance(event, EvaluationEvent):
            self._evaluation = event
        elif isinstance(event, SuiteEvent):
            self._suites = {**self._suites, event.suite: event}  # the server's thread may be reading the old one

    def close(self) -> None:
        """Stop serving."""
        self._server.stop()

    def collect(self) -> Iterable[Metric]:
        """The metrics of one scrape; called on the server's thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        start, event, evaluation = self._start, self._round, self._evaluation
        if start is not None:
            yield InfoMetricFamily(
                "swarm_node",
                "Which node this is.",
                value={"peer_id": start.peer_id, "run_id": start.run_id or "", "name": start.name},
            )
        if evaluation is not None and evaluation.accuracy is not None:
            yield GaugeMetricFamily("swarm_accuracy", "Accuracy on held-out questions.", value=evaluation.accuracy)
        if self._suites:
            suites = GaugeMetricFamily("swarm_eval", "Figures of evaluation suites.", labels=["suite", "figure"])
            for suite, found in self._suites.items():
                for name, estimate in found.scores.figures.items():
                    suites.add_metric([suite, name], estimate.value)
            yield suites
        if event is None:
            return
        gauges: list[tuple[str, str, float | None]] = [
            ("swarm_round", "Rounds trained.", event.round),
            ("swarm_reward", "Mean reward of the last round's own completions.", event.reward),
            ("swarm_pool_groups", "Received groups in the pool.", event.pool),
            ("swarm_pending_groups", "Received groups waiting to be verified.", event.pending),
            ("swarm_paused", "1 while the node pauses, else 0.", self._paused),
            ("swarm_peers", "Peers connected.", event.peers),
            ("swarm_alone_since_seconds", "Unix time since when no peer is connected.", event.alone_since or 0),
            ("swarm_tokens_per_second", "Tokens generated per second, recently.", event.tokens_per_s),
            ("swarm_last_round_time_seconds", "Unix time of the last round's end.", event.time),
        ]
        for name, help_text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(name, help_text, value=value)

        figures = GaugeMetricFamily("swarm_figure", "Figures of the last round, by name.", labels=["name"])
        for name, value in event.figures.items():
            if value is not None:
                figures.add_metric([name], value)
        yield figures
        groups = event.groups
        counts = CounterMetricFamily("swarm_groups", "Rollout groups by what was done with them.", labels=["kind"])
        counts.add_metric(["generated"], groups["generated"])
        counts.add_metric(["shared"], groups["shared"])
        counts.add_metric(["received"], groups["received"])
        counts.add_metric(["offered"], groups.get("offered", 0))
        counts.add_metric(["checked"], groups.get("checked", 0))
        counts.add_metric(["used_local"], groups["used_local"])
        counts.add_metric(["used_external"], groups["used_external"])
        yield counts
        dropped = CounterMetricFamily("swarm_dropped", "Received groups never used, by reason.", labels=["reason"])
        for reason, n in groups["dropped"].items():
            dropped.add_metric([reason], n)
        yield dropped
        local = CounterMetricFamily("swarm_local_unused", "Own groups not trained on, by reason.", labels=["reason"])
        for reason, n in groups.get("local", {}).items():
            local.add_metric([reason], n)
        yield local
        yield CounterMetricFamily("swarm_tokens_generated", "Tokens generated.", value=event.tokens_generated)
        shortfall = GaugeMetricFamily("swarm_shortfall_groups", "Groups missing in the last update.", labels=["side"])
        shortfall.add_metric(["local"], event.local_shortfall)
        shortfall.add_metric(["external"], event.external_shortfall)
        yield shortfall
        stages = GaugeMetricFamily("swarm_stage_seconds", "Seconds of the last round by stage.", labels=["stage"])
        for stage, seconds in event.timings.items():
            stages.add_metric([stage], seconds)
        yield stages


class TensorBoardSink:
    """Event files for TensorBoard, written without TensorFlow or torch."""

    def __init__(self, folder: Path) -> None:
        """A new event file in `folder`."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]

        self._writer = EventFileWriter(str(folder), flush_secs=10)

    def write(self, event: Event) -> None:
        """Write the event's figures at its round."""
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]

        if isinstance(event, StartEvent):
            # A session start makes the viewer drop what an earlier process wrote from this step on.
            self._writer.add_event(
                event_pb2.Event(
                    wall_time=event.time,
                    step=(event.resumed_from or 0) + 1,
                    session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START),
                )
            )
        elif isinstance(event, RoundEvent | EvaluationEvent | SuiteEvent):
            values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(event).items()]
            self._writer.add_event(
                event_pb2.Event(wall_time=event.time, step=event.round, summary=summary_pb2.Summary(value=values))
            )

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


class WandbSink:
    """A Weights & Biases run in the output folder; offline unless configured otherwise."""

    def __init__(self, out_dir: Path, project: str, mode: Literal["online", "offline"]) -> None:
        """Raises `ConfigError` when the package is missing, or the login that mode `online` needs."""
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(
                f"telemetry.wandb_project is {project!r}, but Weights & Biases is not installed: "
                f"{how_to_install('wandb')}, or leave the field out"
            )
        if mode == "online":
            import wandb

            # The client would otherwise prompt on the terminal during the run.
            if wandb.api.api_key is None:
                raise ConfigError(
                    "telemetry.wandb_mode is 'online', but this machine has no Weights & Biases login: "
                    "run `wandb login` first, or set it to 'offline'"
                )
        self._out_dir = out_dir
        self._project = project
        self._mode = mode
        self._log: Callable[[dict[str, float]], None] | None = None
        self._finish: Callable[[], None] | None = None

    def write(self, event: Event) -> None:
        """Open the run at the node's start, then log every round and evaluation."""
        if isinstance(event, StartEvent):
            self.close()
            self._open(event)
        elif isinstance(event, RoundEvent | EvaluationEvent | SuiteEvent) and self._log is not None:
            self._log({"round": event.round, **scalars(event)})

    def close(self) -> None:
        """Finish the run."""
        if self._finish is not None:
            self._finish()
        self._log = self._finish = None

    def _open(self, event: StartEvent) -> None:
        import wandb

        run = wandb.init(
            project=self._project,
            mode=self._mode,
            dir=str(self._out_dir),
            name=event.name or event.peer_id,
            group=event.run_id,
            config={"peer_id": event.peer_id, "resumed_from": event.resumed_from, **event.config},
            # The terminal belongs to the live view.
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Rounds repeat after a resume, which W&B's own step counter refuses: the round is an ordinary axis instead.
        run.define_metric("round")
        run.define_metric("*", step_metric="round")
        self._log = run.log
        self._finish = run.finish


def scalars(event: RoundEvent | EvaluationEvent | SuiteEvent) -> dict[str, float]:
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
    events: list[RoundEvent | EvaluationEvent | SuiteEvent] = []
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
