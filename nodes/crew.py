"""The processes of one node: rank 0 is the peer and gives orders, the others do their share of the heavy work.

    rank 0    TrainingNode: network, questions, verification, metrics ──▶ Crew ──┐ order
    others    follow: wait for an order, then do what rank 0 does  ◀─────────────┘

torchrun starts several; one process alone gives orders to nobody, and is otherwise the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from nodes import exits
from nodes.stop import StopRequest
from swarm.config import NodeConfig
from swarm.engines.shared import SharedEngine
from swarm.engines.transformers import TransformersEngine
from swarm.errors import Interrupted, NonFiniteUpdates, SwarmError
from swarm.policy.checkpoint import MODEL, CheckpointStore, TrainingState, restore, snapshot
from swarm.policy.loading import Policy, load_policy
from swarm.policy.ranks import Ranks
from swarm.policy.updater import PolicyUpdater
from swarm.types import Answers, GradedGroup, Sampling, UpdateReport


class Begin(Struct, frozen=True):
    """Load the same policy."""

    config: NodeConfig
    checkpoint: Path | None


class Generate(Struct, frozen=True):
    """Answer a share of these questions."""

    prompts: Sequence[str]
    num_completions: int
    sampling: Sampling
    seed: int


class Update(Struct, frozen=True):
    """Train on a share of these groups."""

    local: Sequence[GradedGroup]
    external: Sequence[GradedGroup]


class Snapshot(Struct, frozen=True):
    """Hand over a share of weights and optimizer."""


Order = Begin | Generate | Update | Snapshot | None
"""None: nothing more will come."""


class Crew:
    """A node's policy with what generates and updates: on rank 0 a `RolloutEngine` and an `Updater`."""

    def __init__(
        self,
        config: NodeConfig,
        checkpoint: Path | None,
        ranks: Ranks,
        cancelled: Callable[[], bool],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load from a checkpoint or anew. Raises `PolicyError`, `CheckpointError`, `EngineError`, `SamplingError`."""
        self._ranks = ranks
        if ranks.rank == 0:
            self._order(Begin(config, checkpoint))
        self.policy = load_policy(config.policy, checkpoint / MODEL if checkpoint else None, progress, ranks)
        engine = TransformersEngine(self.policy, config.generation, cancelled)
        engine.check(config.generation.sampling())
        self._engine = SharedEngine(engine, self.policy)
        self._updater = PolicyUpdater(
            self.policy, config.update, config.mix, config.generation.temperature, _reference(config, ranks)
        )
        self.resumed: TrainingState | None = restore(checkpoint, self._updater) if checkpoint else None
        """The state that the checkpoint holds."""

    @property
    def version(self) -> int:
        """Updates applied so far."""
        return self._updater.version

    def generate(self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        """G completions for each of P prompts, [P][G], or why a prompt has none."""
        self._order(Generate(prompts, num_completions, sampling, seed))
        return self._engine.generate(prompts, num_completions, sampling, seed)

    def fits(self, group: GradedGroup) -> bool:
        """Whether the model has room for the group."""
        return self._updater.fits(group)

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """One policy-gradient update on whole groups."""
        self._order(Update(local, external))
        return self._updater.update(local, external)

    def save(self, store: CheckpointStore, state: TrainingState, config: str) -> Path:
        """Write a checkpoint."""
        self._order(Snapshot())
        return store.save(self.policy, self._updater, state, config)

    def follow(self) -> None:
        """Do what rank 0 orders, until there is nothing more."""
        while (order := self._ranks.broadcast(_NOTHING)) is not None:
            with contextlib.suppress(Interrupted, NonFiniteUpdates):  # rank 0 raises the same, and decides
                self._obey(order)

    def _order(self, order: Order) -> None:
        self._ranks.broadcast(order)

    def _obey(self, order: Order) -> None:
        match order:
            case Generate(prompts, num_completions, sampling, seed):
                self._engine.generate(prompts, num_completions, sampling, seed)
            case Update(local, external):
                self._updater.update(local, external)
            case Snapshot():
                snapshot(self.policy, self._updater)
            case _:
                raise AssertionError(f"{order} is no order for a crew that has begun")


_NOTHING: Order = None


@contextlib.contextmanager
def leading(ranks: Ranks) -> Iterator[None]:
    """Dismiss the other ranks in the end; after a crash torchrun ends them."""
    try:
        yield
    except SwarmError:
        with contextlib.suppress(RuntimeError):  # they may have met with the same and be gone
            ranks.broadcast(_NOTHING)
        raise
    ranks.broadcast(_NOTHING)


def follow(ranks: Ranks) -> int:
    """What every rank but 0 does instead of being a peer. Returns the exit code."""
    stop = StopRequest()  # generation ends at the next token, everything else when rank 0 says so
    order = ranks.broadcast(_NOTHING)
    if isinstance(order, Begin):
        Crew(order.config, order.checkpoint, ranks, stop).follow()
    return exits.DONE


def _reference(config: NodeConfig, ranks: Ranks) -> Policy | None:
    """The policy as it was before any training; None where none is needed, or where adapters are what is trained."""
    if config.update.reference_kl == 0 or config.policy.lora.rank > 0:
        return None
    return load_policy(config.policy, ranks=ranks.for_another())
