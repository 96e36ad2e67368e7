"""A learner's or worker's metrics file: how it began, what people should know, how it ended."""

from __future__ import annotations

import time

from nodes.roles.training import EndReason, versions
from swarm.config import NodeConfig
from swarm.evaluation import Evaluation
from swarm.telemetry.records import CheckpointEvent, EndEvent, EvaluationEvent, NoteEvent, RoundEvent, StartEvent
from swarm.telemetry.sinks import MetricsWriter


class Journal:
    """Writes events to all sinks."""

    def __init__(self, config: NodeConfig, peer_id: str) -> None:
        """Raises `ConfigError` for a sink that is configured but cannot be had."""
        self._config = config
        self._peer_id = peer_id
        self._metrics = MetricsWriter(config.out, config.telemetry)

    def began(self, run_id: str | None, resumed_from: int | None = None) -> None:
        """A process began its work."""
        self._metrics.write(
            StartEvent(
                time=time.time(),
                peer_id=self._peer_id,
                run_id=run_id,
                name=self._config.name,
                rounds=self._config.rounds,
                config=self._config.model_dump(mode="json"),
                versions=versions(),
                resumed_from=resumed_from,
            )
        )

    def made(self, event: RoundEvent) -> None:
        """A round, step or batch is done."""
        self._metrics.write(event)

    def evaluated(self, round: int, result: Evaluation) -> None:
        """Accuracy after so many rounds."""
        self._metrics.write(
            EvaluationEvent(
                time=time.time(),
                round=round,
                accuracy=result.accuracy,
                num_questions=result.num_questions,
                tasks=result.tasks,
            )
        )

    def saved(self, round: int, path: str) -> None:
        """A checkpoint is on disk."""
        self._metrics.write(CheckpointEvent(time=time.time(), round=round, path=path))

    def note(self, text: str, level: str = "info") -> None:
        """A line for people."""
        self._metrics.write(NoteEvent(time=time.time(), text=text, level=level))

    def ended(self, round: int, reason: EndReason) -> None:
        """The process stops in an orderly way."""
        self._metrics.write(EndEvent(time=time.time(), round=round, reason=reason))
        self._metrics.close()
