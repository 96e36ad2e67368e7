"""Serves a node's latest figures to Prometheus, by a bounded HTTP server: it runs in the node's own process."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from pydantic import Field

from swarm.errors import ConfigError
from swarm.telemetry.records import EvaluationEvent, Event, PauseEvent, ResumeEvent, RoundEvent, StartEvent, SuiteEvent
from swarm.telemetry.sinks import SinkSettings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import Metric


MAX_CONNECTIONS = 16
"""A thread each; the oldest makes room for a newer one."""
SILENCE_S = 5.0
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers `app`, on separate threads from `start` to `stop`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, app: WSGIApplication) -> None:
        """Listen at an address. Raises `OSError`."""
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}
        self.address_family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(app)
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        """Answer requests from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection on a thread; close the oldest one if there are too many."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > MAX_CONNECTIONS:
                _hang_up(next(iter(self._open)))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that ended is no error of the node."""


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def for_known_hosts(app: WSGIApplication, host: str, names: Sequence[str]) -> WSGIApplication:
    """`app`, served at `host`, for requests that name this machine; others are refused.

    Without this, a website could read it in a browser by pointing its own name here. A name must be one of `names` or
    localhost; an IP address must be this machine's own, or any if the server is open to other machines.
    """
    is_open = host not in THIS_MACHINE
    known = {*THIS_MACHINE, *(name.lower() for name in names)}

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = _host_of(str(environ.get("HTTP_HOST", "")))
        if asked in known or (is_open and _is_ip(asked)):
            return app(environ, start_response)
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [b"unknown host; telemetry.prometheus_names lists those that are answered\n"]

    return guarded


def _host_of(header: str) -> str:
    """The host without a port, in small letters; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it may have ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


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
