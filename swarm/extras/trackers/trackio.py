"""A run of trackio, Hugging Face's local tracker."""

from __future__ import annotations

import importlib.util
import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from swarm.distribution import how_to_install
from swarm.errors import ConfigError
from swarm.telemetry.records import StartEvent
from swarm.telemetry.sinks import Measured, RunTracker, SinkSettings


class Trackio(SinkSettings):
    """A run of trackio, one for each start of the node; `trackio show` displays it."""

    waits: ClassVar[bool] = True

    kind: Literal["trackio"] = "trackio"
    project: str = Field("swarm", min_length=1)
    """The project to log to."""
    space: str | None = None
    """A Space of the Hugging Face hub to log to, `USER/NAME`; default: this machine."""

    def open(self, out: Path) -> TrackioSink:
        """Check the package; the run begins with the node's first event."""
        if importlib.util.find_spec("trackio") is None:
            raise ConfigError(
                f"telemetry.sinks names trackio, which is not installed: {how_to_install('trackio')}, or leave it out"
            )
        return TrackioSink(self.project, self.space)


class TrackioSink(RunTracker):
    """Logs every number of rounds and evaluations; the step is the round."""

    def __init__(self, project: str, space: str | None) -> None:
        self._project = project
        self._space = space

    def _log(self, event: Measured, figures: dict[str, float]) -> None:
        self._run.log(figures, step=event.round)

    def _end(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()

    def _begin(self, event: StartEvent) -> None:
        import trackio

        with redirect_stdout(io.StringIO()):  # the terminal belongs to the live view
            self._run = trackio.init(
                project=self._project,
                name=f"{event.name or event.peer_id} {int(event.time)}",
                group=event.run_id,
                space_id=self._space,
                config={"peer_id": event.peer_id, **event.config},
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
