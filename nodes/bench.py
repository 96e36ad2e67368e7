"""`swarm bench NAME`: runs `benchmarks/NAME.py`, which is part of the repository and not of an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from swarm.errors import ConfigError

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
PARTS = frozenset(
    {"__init__", "arithmetic", "attacks", "children", "delivery", "faults", "fleet", "flood", "groups", "hostile"}
    | {"learner", "node", "report"}
)
"""Modules that benchmarks are made of, and are none themselves."""


def bench(name: str, arguments: Sequence[str]) -> int:
    """Run one with its own options; returns its exit code. Raises `ConfigError` when there is none of that name."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in PARTS)
    if not names:
        raise ConfigError(
            "the benchmarks are in the repository, not in the installed package: clone it, `pip install -e .` there, "
            "and run this again"
        )
    if name not in names:
        raise ConfigError(f"there is no benchmark {name!r}; there is {', '.join(names)}")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal has told it too; it ends its nodes and then itself.
            continue
