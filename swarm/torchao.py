"""Hides torchao in the processes that swarm starts, until a setting asks for it.

transformers and peft import it in every process that has it, whatever the model: half a second, and lines on stderr.
None among the loaded modules tells them that there is none. A user's own process (`swarm.Node`) is left alone.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

NAME = "torchao"


def hide() -> None:
    """Make later importers find no torchao, unless it is loaded already."""
    sys.modules.setdefault(NAME, None)  # type: ignore[arg-type]  # None is how Python says that


def show() -> None:
    """Make it importable again."""
    if NAME in sys.modules and sys.modules[NAME] is None:
        del sys.modules[NAME]


def is_installed() -> bool:
    """Whether it could be imported, hidden or not."""
    return PathFinder.find_spec(NAME) is not None
