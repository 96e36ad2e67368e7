"""Serves a node's latest figures to Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from swarm.errors import ConfigError
from swarm.telemetry.records import EvaluationEvent, Event, PauseEvent, ResumeEvent, RoundEvent, StartEvent, SuiteEvent
from swarm.telemetry.sinks import SinkSettings

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger(__name__)


class Prometheus(SinkSettings):
    """The latest figures at /metrics, for Prometheus to ask for."""

    kind: Literal["prometheus"] = "prometheus"
    port: int = Field(0, ge=0, le=65535)
    """Serve on this port; 0 takes a free one."""
    host: str = "127.0.0.1"
    """Address to serve on; the default is reachable from this machine only."""
    names: tuple[str, ...] = ()
    """Names by which Prometheus asks, besides localhost and IP addresses; others are refused, so that no website can
    read the figures through a browser on this machine."""

    def open(self, out: Path) -> PrometheusSink:
        """Serve from now on."""
        return PrometheusSink(self)


class PrometheusSink:
    """Serves the latest figures at /metrics.

    Counters come from the ledger, which is restored from checkpoints, so that they continue after a resume.
    """

    def __init__(self, settings: Prometheus) -> None:
        """Raises `ConfigError` when the port is unavailable."""
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from swarm.extras.trackers.metrics_server import MetricsServer, for_known_hosts

        self._start: StartEvent | None = None
        self._round: RoundEvent | None = None
        self._paused = False
        self._evaluation: EvaluationEvent | None = None
        self._suites: dict[str, SuiteEvent] = {}
        registry = CollectorRegistry()
        registry.register(self)
        app = for_known_hosts(make_wsgi_app(registry), settings.host, settings.names)
        try:
            self._server = MetricsServer(settings.host, settings.port, app)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {settings.host}:{settings.port}: {error}; set telemetry.prometheus_port to "
                "another port, or to 0 for a free one"
            ) from error
        self._server.start()
        self.port: int = self._server.server_port
        logger.info("metrics are served at http://%s:%d/metrics", settings.host, self.port)

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
