"""A peer's policy on all ranks: rank 0 is the peer, see `ranks/led.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from msgspec import Struct

from nodes.roles.ranks.led import GoBack, Led, Snapshot, load_reference
from swarm.config import NodeConfig
from swarm.engines.choice import EngineChoice, choose_engine, open_engine
from swarm.engines.process.engine import ProcessEngine
from swarm.engines.shared import SharedEngine
from swarm.errors import ConfigError
from swarm.policy.loading import Policy, load_policy, sharing_cores
from swarm.policy.ranks import Ranks
from swarm.protocols import GradientSketcher, RolloutEngine, StreamingEngine, Turns, Updater
from swarm.training.checkpoint import MODEL, CheckpointStore, TrainingState, go_back, restore, snapshot
from swarm.training.updater import PolicyUpdater
from swarm.types import Answers, Context, GradedGroup, ReadTurn, Sampling, UpdateReport


class Update(Struct, frozen=True):
    """Train on a share of these groups."""

    local: Sequence[GradedGroup]
    external: Sequence[GradedGroup]


class Score(Struct, frozen=True):
    """Score a share of these groups."""

    groups: Sequence[GradedGroup]


class OwnParts(Struct, frozen=True):
    """Parts that a user puts in place of a node's own, each made of the policy and the node's own part."""

    engine: Callable[[Policy, RolloutEngine], RolloutEngine] | None = None
    updater: Callable[[Policy, Updater], Updater] | None = None


NODES_OWN = OwnParts()
TRAINER_AND_ENGINE = 2


class RankCoordinator(Led):
    """A node's policy with its engines and updater on all ranks: on rank 0 a `RolloutEngine` and an `Updater`."""

    def __init__(
        self,
        config: NodeConfig,
        checkpoint: Path | None,
        ranks: Ranks,
        cancelled: Callable[[], bool],
        progress: Callable[[int, int], None] | None = None,
        own: OwnParts = NODES_OWN,
    ) -> None:
        """Load from a checkpoint or start anew.

        Raises `ConfigError`, `PolicyError`, `CheckpointError`, `EngineError`, `SamplingError`.
        """
        generation = config.generation
        if generation.max_staleness and ranks.size > 1:
            raise ConfigError(
                f"generation.max_staleness must be 0 with {ranks.size} processes, got {generation.max_staleness}: they "
                "alternate between generation and training"
            )
        if generation.max_staleness and own.engine is not None:
            raise ConfigError(
                f"generation.max_staleness must be 0 with an engine of your own, got {generation.max_staleness}: what "
                "is generated ahead is generated in another process"
            )
        if generation.max_staleness:
            config = config.model_copy(update={"policy": sharing_cores(config.policy, TRAINER_AND_ENGINE)})
        super().__init__(config, checkpoint, ranks)
        self._config = config
        self.policy = load_policy(config.policy, checkpoint / MODEL if checkpoint else None, progress, ranks)
        self.choice = choose_engine(generation, self.policy)
        self._updater = PolicyUpdater(
            self.policy, config.update, config.mix, generation.temperature, load_reference(config, ranks)
        )
        self._trainer = own.updater(self.policy, self._updater) if own.updater else self._updater
        """What computes updates; `_updater` has the optimizer that checkpoints hold."""
        self.resumed: TrainingState | None = restore(checkpoint, self._updater) if checkpoint else None
        """The checkpoint's state."""
        self._open = contextlib.ExitStack()
        self._beside = self._engine_beside(config, cancelled) if generation.max_staleness else None
        """The engine that generates for training during updates."""
        in_turn = EngineChoice("transformers", "alternating with updates") if self._beside else self.choice
        engine = open_engine(in_turn, self.policy, config.policy, generation, cancelled)
        self._open.callback(engine.close)
        engine.check(generation.sampling())
        self._engine = SharedEngine(own.engine(self.policy, engine) if own.engine else engine, self.policy)

    @property
    def version(self) -> int:
        """Updates applied so far."""
        return self._updater.version

    @property
    def sketcher(self) -> GradientSketcher:
        """Sketches the gradients of an update's groups."""
        return self._updater.sketcher

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """The same for training, group by group; any thread may call it if updates run concurrently."""
        if self._beside:
            return self._beside.stream(prompts, num_completions, sampling, seed, turns)
        return super().stream(prompts, num_completions, sampling, seed, turns)

    @property
    def max_chars(self) -> int:
        """The most characters of a completion that the model can have room for."""
        return self._trainer.max_chars

    def fits(self, group: GradedGroup) -> bool:
        """Whether the model has room for the group."""
        return self._trainer.fits(group)

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """One policy-gradient update on whole groups."""
        self._order(Update(local, external))
        report = self._trainer.update(local, external)
        if self._beside and not report.skipped:
            self._beside.swap(self.policy.weights, self.version)
        return report

    def read(self, groups: Sequence[GradedGroup]) -> list[list[list[ReadTurn]]]:
        """Others' completions in the newest policy's tokens, with its log-probabilities."""
        self._order(Score(groups))
        return self._trainer.read(groups)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """The advantages of a group's rewards, [G]."""
        return self._trainer.advantages(rewards)

    def go_back(self, checkpoint: Path) -> None:
        """Roll back weights and optimizer to a checkpoint of this node, under a new version.

        Raises `CheckpointError`.
        """
        self._order(GoBack(checkpoint))
        go_back(checkpoint, self.policy, self._updater, self._config.policy)
        if self._beside:
            self._beside.swap(self.policy.weights, self.version)

    def save(self, store: CheckpointStore, state: TrainingState, config: str, well: bool) -> Path:
        """Write a checkpoint; `well`: a healthy one."""
        self._order(Snapshot())
        return store.save(self.policy, self._updater, state, config, well)

    def close_beside(self) -> None:
        """Close the engine that generates during updates; nothing can be generated for training afterwards."""
        if self._beside:
            self._beside.close()

    def close(self) -> None:
        """Close the engines; nothing can be generated afterwards."""
        self._open.close()

    def _engine_beside(self, config: NodeConfig, cancelled: Callable[[], bool]) -> StreamingEngine:
        """An engine in a separate process, as vLLM always is."""
        generation = config.generation
        engine: StreamingEngine
        if self.choice.name == "vllm":
            if generation.vllm.sleep:
                raise ConfigError("generation.vllm.sleep must be false, or max_staleness 0: else vLLM never sleeps")
            engine = open_engine(self.choice, self.policy, config.policy, generation, cancelled)
        else:
            engine = ProcessEngine(self.policy, config.policy, generation, cancelled)
        self._open.callback(engine.close)
        return engine

    def _obey(self, order: object) -> None:
        match order:
            case Update(local, external):
                self._updater.update(local, external)
            case Score(groups):
                self._updater.read(groups)
            case GoBack(checkpoint):
                go_back(checkpoint, self.policy, self._updater, self._config.policy)
            case Snapshot():
                snapshot(self.policy, self._updater)
            case _:
                super()._obey(order)
