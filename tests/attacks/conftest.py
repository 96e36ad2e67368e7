"""Victims and strangers of the tests that attack live nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from swarm.policy.tiny import ensure_tiny
from tests.nodes.processes import LOOPBACK, Swarm, swarm

from .stranger import Stranger


@pytest.fixture(scope="session", autouse=True)
def _embedded_policy() -> None:
    """Made once before the processes of the tests would race to make it."""
    ensure_tiny()


@pytest.fixture(scope="module")
def victims() -> Iterator[Callable[..., Swarm]]:
    """Starts real nodes: `victims(out, "join", ADDRESS, ...)`; they end with the module."""
    with ExitStack() as stack:

        def start(out: Path, role: str, *arguments: str, module: str = "nodes.cli") -> Swarm:
            return stack.enter_context(swarm(out, role, *arguments, "--out", str(out), *LOOPBACK, module=module))

        yield start


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stranger]]:
    """Makes strangers by name; they leave with the module."""
    folder = tmp_path_factory.mktemp("strangers")
    there: list[Stranger] = []

    def arrive(name: str = "stranger") -> Stranger:
        there.append(Stranger(folder, name))
        return there[-1]

    yield arrive
    for stranger in there:
        stranger.close()


def memory_bytes(node: Swarm) -> int:
    """Resident memory of a node and all its processes."""
    total = 0
    for process in node.tree():
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
