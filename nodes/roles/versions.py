"""What a result was computed with."""

from __future__ import annotations

import platform
from importlib.metadata import version

VERSIONED = ("swarm", "torch", "transformers", "reasoning-gym", "hivemind", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, none of which is imported."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONED}}
