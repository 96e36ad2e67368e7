"""The policy of a training node on all its ranks: rank 0 is the node and sends orders, the others do their share.

    rank 0    a node: network, questions, verification, metrics ──▶ its `RankGroup` ──┐ order
    others    follow: wait for an order, then do what rank 0 does  ◀──────────────────┘

torchrun starts several ranks; a single process works the same way without sending orders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from nodes import exits
from nodes.stop import StopRequest
from swarm.config import NodeConfig
from swarm.engines.base import SharedEngine
from swarm.engines.choice import EngineChoice, choose_engine, open_engine
from swarm.engines.process.engine import ProcessEngine
from swarm.environments.config import reward_weights
from swarm.errors import ConfigError, Interrupted, NonFiniteUpdates, SwarmError
from swarm.policy.cache import Progress
from swarm.policy.loading import Policy, load_policy, sharing_cores
from swarm.policy.ranks import Ranks
from swarm.protocols import GradientSketcher, RolloutEngine, StreamingEngine, Turns, Updater
from swarm.training import checkpoint as checkpoints
from swarm.training.checkpoint import MODEL, CheckpointStore, TrainingState
from swarm.training.imitation import Demonstration, Imitation
from swarm.training.updater import PolicyUpdater
from swarm.types import Answers, Context, GradedGroup, ReadTurn, Sampling, UpdateReport

TRAINER_AND_ENGINE = 2
END: object = None
"""The last order."""


MakeGroup = Callable[[NodeConfig, Path | None, Ranks, Callable[[], bool]], "RankGroup"]


class Begin(Struct, frozen=True):
    """Make the same group with the same policy, and execute its orders."""

    make: MakeGroup
    config: NodeConfig
    checkpoint: Path | None


class Generate(Struct, frozen=True):
    """Answer a share of these questions."""

    prompts: Sequence[Context]
    num_completions: int
    sampling: Sampling
    seed: int


class Snapshot(Struct, frozen=True):
    """Send this rank's shard of weights and optimizer."""


class GoBack(Struct, frozen=True):
    """Roll back to a checkpoint of this node."""

    checkpoint: Path


class RenewReference(Struct, frozen=True):
    """Keep the policy as it is now as the reference."""


class Update(Struct, frozen=True):
    """Train on a share of these groups."""

    local: Sequence[GradedGroup]
    external: Sequence[GradedGroup]


class Imitate(Struct, frozen=True):
    """Learn from a share of these demonstrations, as `PolicyUpdater.imitate` does."""

    demonstrations: Sequence[Demonstration]
    rate: float
    last: bool


class Score(Struct, frozen=True):
    """Score a share of these groups' wanted completions, as in `Updater.read`."""

    groups: Sequence[GradedGroup]
    wanted: Sequence[Sequence[bool]] | None


@contextlib.contextmanager
def leading(ranks: Ranks) -> Iterator[None]:
    """Dismiss the other ranks at the end; after a crash torchrun ends them."""
    try:
        yield
    except SwarmError:
        with contextlib.suppress(RuntimeError):  # they may have failed for the same reason
            ranks.broadcast(END)
        raise
    ranks.broadcast(END)


def follow(ranks: Ranks) -> int:
    """The main loop of every rank except 0. Returns the exit code."""
    stop = StopRequest()  # generation ends at the next token, everything else by rank 0's order
    order = ranks.broadcast(END)
    if isinstance(order, Begin):
        order.make(order.config, order.checkpoint, ranks, stop).follow()
    return exits.DONE


class RankGroup:
    """A training node's policy, updater and engine, the same on every rank.

    Rank 0 uses it, also as its `RolloutEngine`; it tells the others what it does, and they do the same.
    """

    def __init__(
        self,
        config: NodeConfig,
        ranks: Ranks,
        policy: Policy,
        updater: PolicyUpdater,
        engine: RolloutEngine,
        resumed: TrainingState | None,
    ) -> None:
        """`config` loaded the policy; `resumed` is the state of the checkpoint that the parts were loaded from."""
        self.policy = policy
        self.resumed = resumed
        self._config = config
        self._ranks = ranks
        self._updater = updater
        """It has the optimizer that checkpoints hold."""
        self._engine = engine

    @property
    def version(self) -> int:
        """Updates applied so far."""
        return self._updater.version

    def follow(self) -> None:
        """Execute rank 0's orders until the last."""
        while (order := self._ranks.broadcast(END)) is not None:
            with contextlib.suppress(Interrupted, NonFiniteUpdates):  # rank 0 raises the same and decides
                self._execute(order)

    def generate(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> list[Answers]:
        """G completions for each of P prompts, [P][G], or a `Rejection`; from the newest policy."""
        self._broadcast(Generate(prompts, num_completions, sampling, seed))
        return self._engine.generate(prompts, num_completions, sampling, seed)

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """The same, group by group."""
        self._broadcast(Generate(prompts, num_completions, sampling, seed))
        return self._engine.stream(prompts, num_completions, sampling, seed, turns)

    def go_back(self, checkpoint: Path) -> None:
        """Roll back weights and optimizer to a checkpoint of this node, under a new version.

        Raises `CheckpointError`.
        """
        self._broadcast(GoBack(checkpoint))
        checkpoints.go_back(checkpoint, self.policy, self._updater, self._config.policy)

    def save(self, store: CheckpointStore, state: TrainingState, config: str, well: bool) -> Path:
        """Write a checkpoint; `config` is the node's as JSON, `well`: a healthy one."""
        self._broadcast(Snapshot())
        return store.save(self.policy, self._updater, state, config, well)

    def _broadcast(self, order: object) -> None:
        self._ranks.broadcast(order)

    def _execute(self, order: object) -> None:
        """Do what rank 0 does after this order."""
        match order:
            case Generate(prompts, num_completions, sampling, seed):
                self._engine.generate(prompts, num_completions, sampling, seed)
            case GoBack(checkpoint):
                checkpoints.go_back(checkpoint, self.policy, self._updater, self._config.policy)
            case Snapshot():
                checkpoints.snapshot(self.policy, self._updater)
            case _:
                raise AssertionError(f"{order} is not a valid order after the start")


class CustomParts(Struct, frozen=True):
    """A user's replacements of a node's own parts, each made of the policy and that part."""

    engine: Callable[[Policy, RolloutEngine], RolloutEngine] | None = None
    updater: Callable[[Policy, Updater], Updater] | None = None


NO_CUSTOM_PARTS = CustomParts()


class PeerRanks(RankGroup):
    """A peer's policy with its engines and updater: on rank 0 a `RolloutEngine` and an `Updater`."""

    def __init__(
        self,
        config: NodeConfig,
        checkpoint: Path | None,
        ranks: Ranks,
        cancelled: Callable[[], bool],
        progress: Progress | None = None,
        custom: CustomParts = NO_CUSTOM_PARTS,
    ) -> None:
        """Load from a checkpoint or start new.

        Raises `ConfigError`, `PolicyError`, `CheckpointError`, `EngineError`, `SamplingError`.
        """
        _check_staleness(config.generation.max_staleness, ranks, custom)
        generation = config.generation
        if generation.max_staleness:
            config = config.model_copy(update={"policy": sharing_cores(config.policy, TRAINER_AND_ENGINE)})
        policy = load_on_ranks(PeerRanks, config, checkpoint, ranks, progress)
        self.choice = choose_engine(generation, policy)
        reference = load_reference(config, ranks)
        updater = PolicyUpdater(
            policy, config.update, config.mix, generation.temperature, reference, reward_weights(config.tasks)
        )
        self._trainer = custom.updater(policy, updater) if custom.updater else updater
        """Computes updates."""
        resumed = checkpoints.restore(checkpoint, updater) if checkpoint else None
        self._open = contextlib.ExitStack()
        self._async_engine = self._open_async_engine(config, policy, cancelled) if generation.max_staleness else None
        """Generates for training during updates."""
        in_turn = EngineChoice("transformers", "alternating with updates") if self._async_engine else self.choice
        engine = open_engine(in_turn, policy, config.policy, generation, cancelled)
        self._open.callback(engine.close)
        engine.check(generation.sampling())
        shared = SharedEngine(custom.engine(policy, engine) if custom.engine else engine, policy)
        super().__init__(config, ranks, policy, updater, shared, resumed)

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
        if self._async_engine:
            return self._async_engine.stream(prompts, num_completions, sampling, seed, turns)
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
        self._broadcast(Update(local, external))
        report = self._trainer.update(local, external)
        if self._async_engine and not report.skipped:
            self._async_engine.swap(self.policy.weights, self.version)
        return report

    def renew_reference(self) -> None:
        """See `PolicyUpdater.renew_reference`."""
        self._broadcast(RenewReference())
        self._updater.renew_reference()

    def imitate(self, demonstrations: Sequence[Demonstration], rate: float, last: bool) -> Imitation:
        """One supervised step. See `PolicyUpdater.imitate`."""
        self._broadcast(Imitate(demonstrations, rate, last))
        step = self._updater.imitate(demonstrations, rate, last)
        if last and self._async_engine:
            self._async_engine.swap(self.policy.weights, self.version)
        return step

    def read(
        self, groups: Sequence[GradedGroup], wanted: Sequence[Sequence[bool]] | None = None
    ) -> list[list[list[ReadTurn]]]:
        """See `Updater`; by the newest policy."""
        self._broadcast(Score(groups, wanted))
        return self._trainer.read(groups, wanted)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """The advantages of a group's rewards, [G]."""
        return self._trainer.advantages(rewards)

    def go_back(self, checkpoint: Path) -> None:
        """See `RankGroup.go_back`; the engine that generates during updates gets the weights, too."""
        super().go_back(checkpoint)
        if self._async_engine:
            self._async_engine.swap(self.policy.weights, self.version)

    def close_async_engine(self) -> None:
        """Close the engine that generates during updates; nothing can be generated for training afterwards."""
        if self._async_engine:
            self._async_engine.close()

    def close(self) -> None:
        """Close the engines; nothing can be generated afterwards."""
        self._open.close()

    def _open_async_engine(self, config: NodeConfig, policy: Policy, cancelled: Callable[[], bool]) -> StreamingEngine:
        """An engine in a separate process, as vLLM always is."""
        generation = config.generation
        engine: StreamingEngine
        if self.choice.name != "transformers":
            if self.choice.name == "vllm" and generation.vllm.sleep:
                raise ConfigError("generation.vllm.sleep must be false, or max_staleness 0: else vLLM never sleeps")
            engine = open_engine(self.choice, policy, config.policy, generation, cancelled)
        else:
            engine = ProcessEngine(policy, config.policy, generation, cancelled)
        self._open.callback(engine.close)
        return engine

    def _execute(self, order: object) -> None:
        match order:
            case Update(local, external):
                self._updater.update(local, external)
            case RenewReference():
                self._updater.renew_reference()
            case Imitate(demonstrations, rate, last):
                self._updater.imitate(demonstrations, rate, last)
            case Score(groups, wanted):
                self._updater.read(groups, wanted)
            case _:
                super()._execute(order)


def load_on_ranks(
    make: MakeGroup, config: NodeConfig, checkpoint: Path | None, ranks: Ranks, progress: Progress | None
) -> Policy:
    """The policy of the group that `make` makes, on every rank: rank 0 orders the others to make the same group."""
    if ranks.rank == 0:
        ranks.broadcast(Begin(make, config, checkpoint))
    return load_policy(config.policy, checkpoint / MODEL if checkpoint else None, progress, ranks)


def load_reference(config: NodeConfig, ranks: Ranks) -> Policy | None:
    """The initial policy; None when it is not needed, or when only adapters are trained."""
    if config.update.reference_kl == 0 or config.policy.lora.rank > 0:
        return None
    return load_policy(config.policy, ranks=ranks.for_another())


def _check_staleness(max_staleness: int, ranks: Ranks, custom: CustomParts) -> None:
    """Raises `ConfigError` for generation ahead of training where it is not possible."""
    if max_staleness and ranks.size > 1:
        raise ConfigError(
            f"generation.max_staleness must be 0 with {ranks.size} processes, got {max_staleness}: they "
            "alternate between generation and training"
        )
    if max_staleness and custom.engine is not None:
        raise ConfigError(
            f"generation.max_staleness must be 0 with an engine of your own, got {max_staleness}: what "
            "is generated ahead is generated in another process"
        )
