"""Puts teaching and learning into a peer: around its updater, behind what it keeps of groups, and between rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from swarm.config import NodeConfig
from swarm.environments.config import custom_tool_tasks
from swarm.environments.judge import unjudged
from swarm.extras.distill.student import Learning, TaughtUpdater, TextPolicy
from swarm.extras.distill.teacher import Teaching
from swarm.net.records.identity import Identity
from swarm.protocols import GradientSketcher, KeepSample, Transport, Updater, Verifier
from swarm.reasons import Fate
from swarm.sapo.worth import WorthEstimator
from swarm.teaching import TeacherState
from swarm.types import GradedGroup, RolloutGroup


class Trained(Updater, Protocol):
    """A peer's updater, with what it updates."""

    @property
    def policy(self) -> TextPolicy:
        """The policy that is trained."""

    @property
    def sketcher(self) -> GradientSketcher:
        """Sketches the gradients of an update's groups."""


class Distillation:
    """What a peer does as a teacher, as a student, or as both."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        transport: Transport,
        verifier: Verifier,
        trained: Trained,
        keep: KeepSample,
        count: Callable[[str, Callable[[], dict[str, int]]], None],
    ) -> None:
        """`keep` and `count` are the runtime's."""
        settings, teach, policy, sketcher = config.distill, config.teach, trained.policy, trained.sketcher
        self.updater: Updater = trained
        self.sketcher = sketcher
        """Those of the node, with what teachers say."""
        self.notes: list[str] = []
        """What is taught and from whom is learned, a line each."""
        self._me = identity.peer_id
        self._keep = keep
        self._learning: Learning | None = None
        self._teaching: Teaching | None = None
        if teachers := [each for each in config.learn_from if each != self._me]:
            unshared = custom_tool_tasks(config.tasks)
            self._learning = Learning(settings, teachers, transport, policy, trained.advantages, unshared)
            worth = WorthEstimator(sketcher, 1, 1)
            self.updater = self.sketcher = TaughtUpdater(trained, sketcher, self._learning, worth)
            count("distill", self._learning.counters)
            imitates = ", imitates what they share" if settings.imitate else ""
            asks = f"asks about {settings.groups} groups a round{imitates}"
            self.notes.append(f"learns from {', '.join(teachers)}: {asks}")
        if teach.passes_per_min > 0:
            self._teaching = Teaching(teach, identity, transport, unjudged(verifier), trained, policy.decode)
            count("teach", self._teaching.counters)
            students = ", ".join(teach.students) or "every member that asks"
            self.notes.append(f"teaches {students}: {teach.passes_per_min:g} forward passes a minute")

    def keep(self, fate: Fate, group: GradedGroup | RolloutGroup) -> None:
        """What became of a group; own ones may be asked about."""
        self._keep(fate, group)
        if self._learning is not None and isinstance(group, GradedGroup) and group.group.peer_id == self._me:
            self._learning.offer(group)

    def dump(self) -> dict[str, TeacherState]:
        """What is known of the teachers, for a checkpoint."""
        return self._learning.dump() if self._learning is not None else {}

    def restore(self, states: Mapping[str, TeacherState]) -> None:
        """Go on with what `dump` gave. Raises `ValueError` for what it never gives."""
        if self._learning is not None:
            self._learning.restore(states)

    def between_rounds(self) -> None:
        """Ask about the round's groups, and answer students."""
        if self._learning is not None:
            self._learning.ask()
        if self._teaching is not None:
            self._teaching.teach()

    def close(self) -> None:
        """Answer no more."""
        if self._teaching is not None:
            self._teaching.close()
