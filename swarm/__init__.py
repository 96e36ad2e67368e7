"""A peer-to-peer client for collaborative RL post-training of language models.

Each concept has its own folder; the SAPO round is `sapo/round.py`. Processes, command line and roles live in `nodes/`.
`types/` holds the records that all parts share, `protocols.py` their interfaces.

What users import is listed here and loaded when it is first used, so that `import swarm` stays light; docs/python.md
describes it. The project itself imports names from the modules that define them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodes.api import Node
    from swarm.algorithms.losses import Loss
    from swarm.config import NodeConfig
    from swarm.environments.task import Task
    from swarm.errors import ConfigError, SwarmError
    from swarm.protocols import RolloutEngine, Updater
    from swarm.sapo.mixing import MixPolicy
    from swarm.telemetry.history import PeerHistory
    from swarm.telemetry.records import RoundEvent
    from swarm.telemetry.sinks import frame, history, records

__all__ = [
    "ConfigError",
    "Loss",
    "MixPolicy",
    "Node",
    "NodeConfig",
    "PeerHistory",
    "RolloutEngine",
    "RoundEvent",
    "SwarmError",
    "Task",
    "Updater",
    "frame",
    "history",
    "records",
]

_DEFINED_IN = {
    "ConfigError": "swarm.errors",
    "Loss": "swarm.algorithms.losses",
    "MixPolicy": "swarm.sapo.mixing",
    "Node": "nodes.api",
    "NodeConfig": "swarm.config",
    "PeerHistory": "swarm.telemetry.history",
    "RolloutEngine": "swarm.protocols",
    "RoundEvent": "swarm.telemetry.records",
    "SwarmError": "swarm.errors",
    "Task": "swarm.environments.task",
    "Updater": "swarm.protocols",
    "frame": "swarm.telemetry.sinks",
    "history": "swarm.telemetry.sinks",
    "records": "swarm.telemetry.sinks",
}


def __getattr__(name: str) -> object:
    """A public name, loaded now. Raises `AttributeError`."""
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_DEFINED_IN[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
