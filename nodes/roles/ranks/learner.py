"""A learner's policy on all ranks: rank 0 is the learner, see `led.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from nodes.roles.ranks.led import GoBack, Led, Snapshot, load_reference
from swarm.config import NodeConfig
from swarm.engines.shared import SharedEngine
from swarm.engines.transformers.engine import TransformersEngine
from swarm.policy.loading import Policy, load_policy
from swarm.policy.ranks import Ranks
from swarm.training.checkpoint import MODEL, CheckpointStore, TrainingState, go_back, restore, snapshot
from swarm.training.updater import StreamedUpdater
from swarm.types import GradedGroup, UpdateReport


class Accumulate(Struct, frozen=True):
    """Train on a share of these groups, in the open update."""

    groups: Sequence[GradedGroup]


class Apply(Struct, frozen=True):
    """Take the steps of the open update."""


class Abandon(Struct, frozen=True):
    """Discard the open update."""


class Pack(Struct, frozen=True):
    """Send this rank's shard of the weights, which the leader writes to a file."""

    path: Path


class Rise(Struct, frozen=True):
    """Give the policy a higher version."""

    version: int


Order = Accumulate | Apply | Abandon | Pack | Rise


class LearnerRanks(Led):
    """A learner's policy with its updater; on rank 0 also the `RolloutEngine` of its evaluations."""

    def __init__(
        self,
        config: NodeConfig,
        checkpoint: Path | None,
        ranks: Ranks,
        cancelled: Callable[[], bool],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load from a checkpoint or start anew. Raises `PolicyError`, `CheckpointError`, `SamplingError`."""
        super().__init__(config, checkpoint, ranks)
        self._config = config
        self.policy = load_policy(config.policy, checkpoint / MODEL if checkpoint else None, progress, ranks)
        engine = TransformersEngine(self.policy, config.generation, cancelled)
        engine.check(config.generation.sampling())
        self._engine = SharedEngine(engine, self.policy)
        self.updater = _LedUpdater(self._tell, self.policy, config, load_reference(config, ranks))
        self.resumed: TrainingState | None = restore(checkpoint, self.updater) if checkpoint else None
        """The checkpoint's state."""

    def go_back(self, checkpoint: Path) -> None:
        """Roll back weights and optimizer to a checkpoint of this node, under a new version.

        Raises `CheckpointError`.
        """
        self._order(GoBack(checkpoint))
        go_back(checkpoint, self.policy, self.updater, self._config.policy)

    def save(self, store: CheckpointStore, state: TrainingState, config: str, well: bool) -> Path:
        """Write a checkpoint; `well`: a healthy one."""
        self._order(Snapshot())
        return store.save(self.policy, self.updater, state, config, well)

    def _tell(self, order: Order) -> None:
        if self._ranks.rank == 0:
            self._order(order)

    def _obey(self, order: object) -> None:
        match order:
            case Accumulate(groups):
                self.updater.accumulate(groups)
            case Apply():
                self.updater.apply()
            case Abandon():
                self.updater.abandon()
            case Pack(path):
                self.updater.snapshot(path)
            case Rise(version):
                self.updater.rise_to(version)
            case GoBack(checkpoint):
                go_back(checkpoint, self.policy, self.updater, self._config.policy)
            case Snapshot():
                snapshot(self.policy, self.updater)
            case _:
                super()._obey(order)


class _LedUpdater(StreamedUpdater):
    """A `StreamingUpdater` that tells the other ranks what it does before it does it."""

    def __init__(
        self, tell: Callable[[Order], None], policy: Policy, config: NodeConfig, reference: Policy | None
    ) -> None:
        super().__init__(
            policy, config.update, config.mix, config.generation.sampling(), reference, config.learner.precision
        )
        self._tell = tell

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        self._tell(Accumulate(groups))
        super().accumulate(groups)

    def apply(self) -> UpdateReport:
        self._tell(Apply())
        return super().apply()

    def abandon(self) -> None:
        self._tell(Abandon())
        super().abandon()

    def snapshot(self, path: Path) -> None:
        self._tell(Pack(path))
        super().snapshot(path)

    def rise_to(self, version: int) -> None:
        self._tell(Rise(version))
        super().rise_to(version)
