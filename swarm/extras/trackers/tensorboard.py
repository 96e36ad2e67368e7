"""Event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from swarm.telemetry.records import Event, StartEvent
from swarm.telemetry.sinks import Measured, SinkSettings, scalars


class TensorBoard(SinkSettings):
    """Event files under `OUT/tensorboard`."""

    kind: Literal["tensorboard"] = "tensorboard"

    def open(self, out: Path) -> TensorBoardSink:
        """Begin an event file."""
        return TensorBoardSink(out / "tensorboard")


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
        elif isinstance(event, Measured):
            values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(event).items()]
            self._writer.add_event(
                event_pb2.Event(wall_time=event.time, step=event.round, summary=summary_pb2.Summary(value=values))
            )

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
