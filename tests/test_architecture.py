"""The shape of the code, held by its imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What a part may import of this project. A folder's rule holds for all its modules.
PURE = {
    "swarm.types",
    "swarm.errors",
    "swarm.foreign",
    "swarm.protocols",
    "swarm.settings",
    "swarm.telemetry.intervals",
    "swarm.stopwatch",
}
ALLOWED = {
    "swarm/types.py": set(),
    "swarm/foreign.py": set(),
    "swarm/errors.py": {"swarm.foreign"},
    "swarm/settings.py": set(),
    "swarm/protocols.py": {"swarm.types"},
    "swarm/algorithms": {"swarm.algorithms"},
    "swarm/sapo/mixing.py": PURE,
    "swarm/groups/expectation.py": PURE,
    "swarm/sapo/pool.py": PURE,
    "swarm/groups/copies.py": PURE,
    "swarm/groups/plausibility.py": PURE,
    "swarm/sapo/watch.py": PURE,
    "swarm/central/capacity.py": PURE,
    "swarm/sapo/round.py": PURE
    | {
        "swarm.groups.copies",
        "swarm.groups.expectation",
        "swarm.groups.intake",
        "swarm.sapo.mixing",
        "swarm.groups.plausibility",
        "swarm.sapo.pool",
    }
    | {"swarm.sapo.rollouts", "swarm.telemetry.ledger", "swarm.sapo.watch"},
    "swarm/sapo/rollouts.py": PURE,
    "swarm/stopwatch.py": set(),
    "swarm/central/buffer.py": PURE | {"swarm.sapo.pool"},
    "swarm/groups/intake.py": PURE | {"swarm.telemetry.ledger"},
    "swarm/central/learner.py": PURE
    | {
        "swarm.central.buffer",
        "swarm.central.capacity",
        "swarm.groups.intake",
        "swarm.sapo.mixing",
        "swarm.telemetry.ledger",
    },
    "swarm/central/follower.py": PURE
    | {"swarm.central.buffer", "swarm.groups.expectation", "swarm.sapo.mixing", "swarm.telemetry.ledger"},
    "swarm/central/workforce.py": PURE | {"swarm.central.capacity", "swarm.central.learner"},
    "swarm/policy": PURE
    | {
        "swarm.policy",
        "swarm.algorithms",
        "swarm.groups.expectation",
        "swarm.sapo.mixing",
        "swarm.sapo.pool",
        "swarm.environments",
        "swarm.telemetry",
    },
    "swarm/engines": PURE | {"swarm.engines", "swarm.policy"},
    # What runs in vLLM's Python, which has nothing of this project's dependencies but msgspec.
    "swarm/engines/vllm/server.py": {"swarm.types", "swarm.engines.vllm.messages"},
    "swarm/engines/vllm/messages.py": {"swarm.types"},
    "swarm/evaluation.py": PURE,
    "swarm/telemetry": PURE | {"swarm.telemetry"},
    "swarm/environments": PURE | {"swarm.environments"},
    "swarm/net": PURE | {"swarm.net", "swarm.net.snapshots.delta"},
    "swarm/net/snapshots/delta.py": {"swarm.errors"},
}
FORBIDDEN = {
    "swarm/net": {"torch", "transformers"},
    "swarm/engines": {"swarm.net", "nodes"},
    "swarm/policy": {"swarm.net", "nodes"},
    "swarm/engines/vllm/process.py": {"vllm"},
    "swarm/engines/vllm/messages.py": {"torch", "pydantic", "vllm"},
    "swarm/environments": {"torch"},
    "swarm/telemetry": {"torch"},
    "swarm": {"nodes", "tests", "benchmarks"},
}


def _modules(part: str) -> list[Path]:
    path = ROOT / part
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
    return found


def _under(module: str, roots: set[str]) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in roots)


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_only_what_it_may(part: str) -> None:
    for path in _modules(part):
        own = {module for module in _imports(path) if _under(module, {"swarm", "nodes"})}
        extra = {module for module in own if not _under(module, ALLOWED[part])}
        assert not extra, f"{path.relative_to(ROOT)} must not import {sorted(extra)}"


@pytest.mark.parametrize("part", FORBIDDEN)
def test_a_part_keeps_away_from_what_it_must_not_know(part: str) -> None:
    for path in _modules(part):
        bad = {module for module in _imports(path) if _under(module, FORBIDDEN[part])}
        assert not bad, f"{path.relative_to(ROOT)} must not import {sorted(bad)}"


HEAVY = ("torch", "transformers", "hivemind", "reasoning_gym", "datasets", "matplotlib", "libp2p", "trio")


@pytest.mark.parametrize(
    "statement",
    [
        "import swarm",
        "import swarm.config",
        "import swarm.sapo.round",
        "import swarm.net.hivemind.transport",
        "import swarm.net.libp2p.transport, swarm.net.backends",
        "import nodes.cli",
        "import nodes.commands.doctor",
        "import nodes.cli, sys; sys.argv = ['swarm', '--help']; nodes.cli.app(standalone_mode=False)",
    ],
)
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    probe = f"{statement}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.splitlines()[-1] == "[]"
