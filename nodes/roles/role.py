"""A node of one role: what the role asks of a run, and its steps between pauses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import ClassVar

from nodes.roles.runtime import EndReason, NodeParts, RoleRuntime
from swarm.config import NodeConfig, Values
from swarm.policy.config import public_name
from swarm.preflight.duties import Duties
from swarm.schedule import Pausing, Schedule
from swarm.types import RunManifest, Terms


class RoleNode(ABC):
    """A node of one role, which its class is: what the role asks of a run, and steps between pauses.

    A class is found in `nodes.roles.ROLES` and called with `NodeParts`. Raises `SwarmError`.
    """

    role: ClassVar[str]
    duties: ClassVar[Duties] = Duties()
    """What it does with its policy, as far as memory goes."""
    alone: ClassVar[str]
    """Its activity while no peer is connected, for messages."""
    awaits_run: ClassVar[bool] = False
    """Whether it cannot begin before it knows the run: a member's answer is awaited, or an earlier one remembered."""
    invites: ClassVar[str] = "join"
    """The subcommand with which others join it."""
    has_policy: ClassVar[bool] = True
    """Whether it holds a model; otherwise nothing of torch is loaded, and its parts have no ranks."""
    founds: ClassVar[bool] = False
    """Whether a node of this role without an address founds a run as a matter of course."""

    @classmethod
    @abstractmethod
    def plan(cls, config: NodeConfig) -> list[tuple[str, str]]:
        """Lines that describe its plan: names and values."""

    @classmethod
    def model(cls, config: NodeConfig) -> str:
        """Its model's name for other members."""
        return public_name(config.policy.model)

    @classmethod
    def terms(cls, config: NodeConfig) -> Terms | None:
        """What members of a run that it founds must share with it, as far as the configuration says."""
        return None

    @classmethod
    def values_of(cls, manifest: RunManifest) -> Values:
        """What the run sets for this role only, as a layer of the configuration."""
        return {}

    @classmethod  # noqa: B027  # most fit any run
    def check(cls, config: NodeConfig, manifest: RunManifest, peer_id: str) -> None:
        """Raises `ConfigError` for a run in which this node cannot have the role."""

    def __init__(self, parts: NodeParts) -> None:
        """Load everything. Raises `ConfigError`, for a schedule that cannot be kept here, too."""
        self._runtime = RoleRuntime(parts)
        self._config = parts.config
        self._identity = parts.identity
        self._transport = parts.transport
        self._verifier = parts.verifier
        self._cancelled = parts.cancelled
        self._open = ExitStack()
        schedule = Schedule(parts.config.schedule, parts.config.out)
        self._pausing = Pausing(schedule, self, self._runtime, parts.cancelled)
        self._open.callback(self._pausing.close)

    def _write_start(self, resumed_from: int | None = None) -> None:
        self._runtime.begin(self.role, self.model(self._config), resumed_from)

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the node has finished."""

    @abstractmethod
    def begin(self) -> None:
        """Write the start event and prepare the first step. Raises `Interrupted`."""

    @abstractmethod
    def end(self, reason: EndReason) -> None:
        """Save, and write the end event."""

    def step(self) -> None:
        """One round, step or batch; a moment of a pause instead, if there is one.

        Raises `Interrupted` in a consistent state.
        """
        if not self._pausing.hold():
            self._work()

    @abstractmethod
    def _work(self) -> None:
        """What `step` does outside of pauses."""

    def note(self, text: str, level: str = "info", alert: str = "") -> None:
        """Put a line for people into the metrics file; `alert`: see `NoteEvent`."""
        self._runtime.note(text, level, alert)

    def close(self) -> None:
        """Stop background work; always called, possibly twice."""
        self._open.close()

    @abstractmethod
    def on_pause(self) -> None:
        """A pause begins."""

    def while_paused(self) -> None:  # noqa: B027  # most roles have nothing to do
        """Called now and then during a pause."""

    def on_resume(self) -> None:  # noqa: B027
        """A pause is over."""
