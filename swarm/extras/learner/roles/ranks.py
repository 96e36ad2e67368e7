"""The policy of a learner on all its ranks; see `nodes/roles/ranks.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from nodes.roles.ranks import RankGroup, load_on_ranks, load_reference
from swarm.algorithms.advantages import BY_REWARD
from swarm.config import NodeConfig
from swarm.engines.base import SharedEngine
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import ConfigError
from swarm.extras.learner.updater import StreamedUpdater
from swarm.policy.loading import Policy
from swarm.policy.ranks import Ranks
from swarm.training import checkpoint as checkpoints
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


class LearnerRanks(RankGroup):
    """A learner's policy with its updater; on rank 0 also the `RolloutEngine` of its evaluations."""

    def __init__(
        self,
        config: NodeConfig,
        checkpoint: Path | None,
        ranks: Ranks,
        cancelled: Callable[[], bool],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load from a checkpoint or start new.

        Raises `ConfigError`, `PolicyError`, `CheckpointError`, `SamplingError`.
        """
        if config.update.advantage in BY_REWARD:
            raise ConfigError(
                f"update.advantage {config.update.advantage} is for nodes that train on own groups; choose another for "
                "a learner"
            )
        if config.update.reference == "best":
            raise ConfigError("update.reference best is for peers, which measure their own reward; use initial")
        policy = load_on_ranks(LearnerRanks, config, checkpoint, ranks, progress)
        engine = TransformersEngine(policy, config.generation, cancelled)
        engine.check(config.generation.sampling())
        self.updater = _BroadcastingUpdater(ranks, policy, config)
        resumed = checkpoints.restore(checkpoint, self.updater) if checkpoint else None
        super().__init__(config, ranks, policy, self.updater, SharedEngine(engine, policy), resumed)

    def _execute(self, order: object) -> None:
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
            case _:
                super()._execute(order)


class _BroadcastingUpdater(StreamedUpdater):
    """A `StreamingUpdater` that, on rank 0, tells the other ranks what it does before it does it."""

    def __init__(self, ranks: Ranks, policy: Policy, config: NodeConfig) -> None:
        sampling, reference = config.generation.sampling(), load_reference(config, ranks)
        super().__init__(policy, config.update, config.mix, sampling, reference, config.learner.precision)
        self._group = ranks

    def _broadcast(self, order: Accumulate | Apply | Abandon | Pack | Rise) -> None:
        if self._group.rank == 0:
            self._group.broadcast(order)

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        self._broadcast(Accumulate(groups))
        super().accumulate(groups)

    def apply(self) -> UpdateReport:
        self._broadcast(Apply())
        return super().apply()

    def abandon(self) -> None:
        self._broadcast(Abandon())
        super().abandon()

    def snapshot(self, path: Path) -> None:
        self._broadcast(Pack(path))
        super().snapshot(path)

    def rise_to(self, version: int) -> None:
        self._broadcast(Rise(version))
        super().rise_to(version)
