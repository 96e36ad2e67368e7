"""What package registries call this project: `swarm` is another project's name there."""

from __future__ import annotations

from importlib.metadata import version

NAME = "swarm-rl"


def own_version() -> str:
    """The version that is installed."""
    return version(NAME)
