"""`swarm bench NAME`: runs the package `benchmarks.NAME`, which only the repository contains."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from swarm.errors import ConfigError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
BENCHMARKS = sorted(path.parent.name for path in FOLDER.glob("*/__main__.py"))


def bench(name: str | None, arguments: Sequence[str]) -> int:
    """Become a benchmark with its own options, or list all without a name; returns the exit code.

    Raises `ConfigError` for an unknown name.
    """
    if not FOLDER.is_dir():
        raise ConfigError(
            "the benchmarks are in the repository, not in the installed package: clone it, `pip install -e .` there, "
            "and run this again"
        )
    if name in (None, "--help", "-h"):
        print(_listed())
        return 0
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    sys.stdout.flush()
    # It replaces this process, so that a signal reaches the benchmark, which stops its nodes.
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})


def _listed() -> str:
    """The benchmarks, each with the first paragraph of its module's docstring."""
    lines = ["usage: swarm bench NAME [--help] [--quick] [OPTION ...]", ""]
    for name in BENCHMARKS:
        text = ast.get_docstring(ast.parse((FOLDER / name / "__main__.py").read_text())) or ""
        paragraph = text.partition("\n\n")[0]
        lines.append(f"  {name:<12}{' '.join(paragraph.split())}")
    return "\n".join(lines)
