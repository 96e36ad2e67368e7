"""What a result was computed with."""

from __future__ import annotations

import platform
from importlib.metadata import version

from swarm.distribution import own_version

VERSIONED = ("torch", "transformers", "reasoning-gym", "hivemind", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, none of which is imported."""
    own = {"python": platform.python_version(), "swarm": own_version()}
    return own | {name: version(name) for name in VERSIONED}
