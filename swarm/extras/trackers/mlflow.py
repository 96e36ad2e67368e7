"""A run of an MLflow tracking server."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from swarm.distribution import how_to_install
from swarm.errors import ConfigError
from swarm.settings import leaves
from swarm.telemetry.records import StartEvent
from swarm.telemetry.sinks import Measured, RunTracker, SinkSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

URI = "MLFLOW_TRACKING_URI"
MAX_PARAM_CHARS = 6_000
MAX_PARAMS = 100
"""MLflow's limits for a value, and for the values of a request."""


class Mlflow(SinkSettings):
    """A run of an MLflow tracking server, one for each start of the node."""

    waits: ClassVar[bool] = True

    kind: Literal["mlflow"] = "mlflow"
    experiment: str = Field("swarm", min_length=1)
    """Name of the experiment, made when it is missing."""
    uri: str | None = None
    """Address of the server; default: the environment's `MLFLOW_TRACKING_URI`."""

    def open(self, out: Path) -> MlflowSink:
        """Check the package and the address; the run begins with the node's first event."""
        try:
            from mlflow import MlflowClient
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"telemetry.sinks names mlflow, which is not installed: {how_to_install('mlflow')}, or leave it out"
            ) from error
        if (uri := self.uri or os.environ.get(URI)) is None:
            raise ConfigError(f"telemetry.sinks names mlflow, but no server: set its uri, or {URI}")
        return MlflowSink(MlflowClient(tracking_uri=uri), self.experiment)


class MlflowSink(RunTracker):
    """Logs every number of rounds and evaluations; the step is the round."""

    def __init__(self, client: MlflowClient, experiment: str) -> None:
        """Ask the server for nothing yet."""
        self._client = client
        self._experiment = experiment

    def _log(self, event: Measured, figures: dict[str, float]) -> None:
        from mlflow.entities import Metric

        at_ms = int(event.time * 1000)
        metrics = [Metric(_name(name), value, at_ms, event.round) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def _end(self) -> None:
        self._client.set_terminated(self._run, end_time=int(time.time() * 1000))

    def _begin(self, event: StartEvent) -> None:
        from mlflow.entities import Param

        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self._experiment)
        tags = {"peer_id": event.peer_id, "run_id": event.run_id or ""}
        run = self._client.create_run(experiment, run_name=event.name or event.peer_id, tags=tags)
        self._run = run.info.run_id
        params = [Param(key, str(value)[:MAX_PARAM_CHARS]) for key, value in flat(event.config).items()]
        for first in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run, params=params[first : first + MAX_PARAMS])


def flat(values: object) -> dict[str, object]:
    """A nested mapping's values by dotted path."""
    return {path: value for path, value in leaves(values) if value != {}}


def _name(figure: str) -> str:
    """A figure's name in MLflow's characters: `pass@4` is `pass_at_4`."""
    return re.sub(r"[^\w.:\- /]", "_", figure.replace("@", "_at_"))
