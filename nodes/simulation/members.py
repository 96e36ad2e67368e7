"""Who takes part in a simulated run."""

from __future__ import annotations

from msgspec import Struct

from swarm.config import NodeConfig


class Member(Struct, frozen=True):
    """A node of a run."""

    config: NodeConfig
    """With its own `name`, `out` and `seed`."""
    joins_at: int = 0
    """Turns after which it joins."""
