"""A run of trackio, Hugging Face's local tracker."""

from __future__ import annotations

import importlib.util
import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from swarm.distribution import how_to_install
from swarm.errors import ConfigError
from swarm.telemetry.records import EvaluationEvent, Event, RoundEvent, StartEvent, SuiteEvent
from swarm.telemetry.sinks import SinkSettings, scalars

if TYPE_CHECKING:
    from trackio import Run


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


class TrackioSink:
    """Logs every number of rounds and evaluations; the step is the round."""

    def __init__(self, project: str, space: str | None) -> None:
        """No run yet."""
        self._project = project
        self._space = space
        self._run: Run | None = None

    def write(self, event: Event) -> None:
        """Begin a run at the node's start, then log every round and evaluation."""
        if isinstance(event, StartEvent):
            self.close()
            self._begin(event)
        elif isinstance(event, RoundEvent | EvaluationEvent | SuiteEvent) and self._run is not None:
            self._run.log(scalars(event), step=event.round)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            with redirect_stdout(io.StringIO()):
                self._run.finish()
            self._run = None

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
