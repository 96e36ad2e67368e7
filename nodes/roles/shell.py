"""What surrounds the work of every role: groups in and out, evaluation, the metrics file, how it resumes and ends."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Protocol

from msgspec.structs import replace

from swarm.config import NodeConfig
from swarm.errors import CheckpointError, Interrupted, SwarmError
from swarm.evaluation import evaluate
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits
from swarm.net.trust.exchange import Exchange
from swarm.protocols import RolloutEngine, Transport, Verifier
from swarm.reasons import Reason
from swarm.sapo.pool import PooledGroup
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import (
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    NoteEvent,
    RoundEvent,
    StartEvent,
)
from swarm.telemetry.sinks import MetricsWriter
from swarm.training.checkpoint import TrainingState

CHECKPOINTS = "checkpoints"
EndReason = Literal["done", "interrupted", "error"]
VERSIONED = ("swarm", "torch", "transformers", "reasoning-gym", "hivemind", "numpy")


class Held(Protocol):
    """Groups of others that wait for an update: a peer's pool, a learner's buffer."""

    def restore(self, groups: Iterable[PooledGroup]) -> None:
        """What a checkpoint holds."""
        ...

    def num_unused(self) -> int:
        """Groups that no update has used."""
        ...


class Shell:
    """A role fills it with its steps and their figures."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        transport: Transport,
        verifier: Verifier,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Around a node on an open transport. Raises `ConfigError` for a sink that cannot be had."""
        limits = Limits(config.network.max_record_bytes, config.network.max_completion_chars)
        self.exchange = Exchange(transport, identity, limits, config.network.safety, clock=clock)
        self.peer_id = identity.peer_id
        self._config = config
        self._transport = transport
        self._verifier = verifier
        self._sampling = config.generation.sampling()
        self._metrics = MetricsWriter(config.out, config.telemetry)
        self._began = time.monotonic()

    @property
    def max_pending_per_peer(self) -> int:
        """Groups of one peer that may be in verification at a time."""
        return max(1, int(self._config.verification.queue_groups * self._config.pool.max_share_per_peer))

    def begin(self, resumed_from: int | None = None) -> None:
        """The process begins its work."""
        self._metrics.write(
            StartEvent(
                time=time.time(),
                peer_id=self.peer_id,
                run_id=self._transport.status().run_id,
                name=self._config.name,
                rounds=self._config.rounds,
                config=self._config.model_dump(mode="json"),
                versions=versions(),
                resumed_from=resumed_from,
            )
        )

    def start_clock(self) -> None:
        """Steps are timed from now."""
        self._began = time.monotonic()

    def made(self, event: RoundEvent) -> None:
        """A round, step or batch is done; time, network and counters are added to what its role says of it."""
        network = self._transport.status()
        self._metrics.write(
            replace(
                event,
                time=time.time(),
                wall_s=time.monotonic() - self._began,
                peers=len(network.connected),
                alone_since=network.alone_since,
                counters={
                    **{f"network/{name}": count for name, count in self._transport.counters().items()},
                    **{f"verifier/{name}": count for name, count in self._verifier.counters().items()},
                },
            )
        )

    def note(self, text: str, level: str = "info") -> None:
        """A line for people."""
        self._metrics.write(NoteEvent(time=time.time(), text=text, level=level))

    def saved(self, round: int, path: Path) -> None:
        """A checkpoint is on disk."""
        self._metrics.write(CheckpointEvent(time=time.time(), round=round, path=str(path)))

    def evaluate(self, engine: RolloutEngine, round: int) -> None:
        """Accuracy on held-out questions after `round` rounds, unless the configuration asks none."""
        settings = self._config.evaluation
        if settings.num_questions == 0:
            return
        result = evaluate(engine, self._verifier, self._sampling, settings.num_questions, settings.stream)
        self._metrics.write(
            EvaluationEvent(
                time=time.time(),
                round=round,
                accuracy=result.accuracy,
                num_questions=result.num_questions,
                tasks=result.tasks,
            )
        )

    def has_enough(self, round: int) -> bool:
        """Whether `round` is all that was asked for."""
        return self._config.rounds is not None and round >= self._config.rounds

    def do_what_is_due(self, engine: RolloutEngine, round: int, save: Callable[[], None]) -> None:
        """After a step: evaluate, unless the last evaluation is next, and `save` a checkpoint."""
        every = self._config.evaluation.every_rounds
        if every and round % every == 0 and not self.has_enough(round):
            self.evaluate(engine, round)
        if round % self._config.checkpoint.every_rounds == 0:
            save()

    def resume(self, checkpoint: Path, state: TrainingState, model: str, held: Held, ledger: Ledger) -> None:
        """Go on with what a checkpoint holds of others' groups. Raises `CheckpointError` for one of another model."""
        check_model(checkpoint, state, model)
        if state.peer_id != self.peer_id:
            self.note(f"the checkpoint was written as {state.peer_id}; this node is now another peer", "warning")
        held.restore(state.pool)
        ledger.restore(state.ledger)
        self.exchange.book.restore(state.sequences)
        # What was being regraded when the checkpoint was written is not in it.
        ledger.dropped(Reason.LOST_IN_RESTART, ledger.unaccounted(held.num_unused(), 0))

    def end(
        self,
        round: int,
        reason: EndReason,
        engine: RolloutEngine | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Evaluate with `engine` if all is done, `close`, and write the end event.

        Raises what keeps the evaluation from being made.
        """
        failure: SwarmError | None = None
        try:
            if reason == "done" and engine is not None:
                self.evaluate(engine, round)
        except Interrupted:
            reason = "interrupted"
        except SwarmError as error:
            self.note(f"the last evaluation failed: {error}", "error")
            reason, failure = "error", error
        close()
        self._metrics.write(EndEvent(time=time.time(), round=round, reason=reason))
        self._metrics.close()
        if failure is not None:
            raise failure


def check_model(checkpoint: Path, state: TrainingState, model: str) -> None:
    """Raises `CheckpointError` for a checkpoint of another model than the one configured."""
    if state.model != model:
        raise CheckpointError(
            f"{checkpoint} is of model {state.model!r}, the configuration asks for {model!r}; choose another "
            "directory with --out, or the model the checkpoint has"
        )


def stream_seed(peer_id: str) -> int:
    """The question stream of a peer that was given no seed: no two peers ask the same questions."""
    return int.from_bytes(hashlib.blake2b(peer_id.encode(), digest_size=7).digest(), "big")


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONED}}
