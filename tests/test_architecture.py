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
    "swarm.reasons",
    "swarm.figures",
    "swarm.distribution",
    "swarm.foreign",
    "swarm.files",
    "swarm.protocols",
    "swarm.settings",
    "swarm.telemetry.intervals",
    "swarm.fair_store",
    "swarm.lru",
    "swarm.stopwatch",
    "swarm.inherited",
    "swarm.kernel",
    "swarm.machine",
    "swarm.torchao",
}
LEDGER = {"swarm.telemetry.ledger"}
NET = PURE | {f"swarm.net.{name}" for name in ("bandwidth", "config", "guard", "roster", "runtime")}
RECORDS, ADDRESSES, TRUST = {"swarm.net.records"}, {"swarm.net.addresses"}, {"swarm.net.trust"}
SNAPSHOTS, SERVICES, MEMBERSHIP = {"swarm.net.snapshots"}, {"swarm.net.services"}, {"swarm.net.membership"}
BACKEND = NET | RECORDS | ADDRESSES | TRUST | SNAPSHOTS | SERVICES | MEMBERSHIP
ALLOWED = {
    "swarm/reasons.py": set(),
    "swarm/types": {"swarm.types", "swarm.reasons"},
    "swarm/distribution.py": set(),
    "swarm/foreign.py": set(),
    "swarm/files.py": set(),
    "swarm/errors.py": {"swarm.foreign", "swarm.reasons"},
    "swarm/figures.py": set(),
    "swarm/settings.py": {"swarm.errors", "swarm.files"},
    "swarm/fair_store.py": set(),
    "swarm/lru.py": set(),
    "swarm/stopwatch.py": set(),
    "swarm/inherited.py": set(),
    "swarm/machine.py": set(),
    "swarm/torchao.py": set(),
    "swarm/protocols.py": {"swarm.reasons", "swarm.types", "swarm.files"},
    "swarm/evaluation.py": PURE | {"swarm.groups"},
    "swarm/suites": PURE
    | {
        "swarm.suites",
        "swarm.environments.config",
        "swarm.environments.fields",
        "swarm.evaluation",
        "swarm.groups",
        "swarm.telemetry.records",
    },
    "swarm/algorithms": {"swarm.algorithms", "swarm.figures", "swarm.settings", "swarm.errors"},
    "swarm/telemetry": PURE | {"swarm.telemetry"},
    "swarm/schedule": PURE | {"swarm.schedule"},
    "swarm/page": PURE | {"swarm.page", "swarm.telemetry", "swarm.net.roster", "swarm.net.addresses.listening"},
    "swarm/environments": PURE | {"swarm.environments"},
    "swarm/judging": PURE
    | {"swarm.judging", "swarm.environments"}
    | {"swarm.policy.config", "swarm.policy.loading", "swarm.engines.config", "swarm.engines.transformers.engine"},
    "swarm/groups": PURE | {"swarm.groups"},
    "swarm/received": PURE | {"swarm.received", "swarm.groups"} | LEDGER,
    "swarm/sapo/mixing": PURE | {"swarm.sapo.mixing", "swarm.received.authors"},
    "swarm/sapo": PURE | {"swarm.sapo", "swarm.groups", "swarm.received"} | LEDGER,
    "swarm/central/capacity.py": PURE,
    "swarm/central": PURE | {"swarm.central", "swarm.groups", "swarm.received", "swarm.sapo.watch"} | LEDGER,
    "swarm/policy": PURE | {"swarm.policy", "swarm.environments.tiny", "swarm.environments.generated"},
    "swarm/training": PURE
    | {"swarm.training", "swarm.policy", "swarm.algorithms", "swarm.sapo.mixing"}
    | {"swarm.groups.credit", "swarm.groups.expectation", "swarm.groups.sampled"}
    | {"swarm.received.pool", "swarm.sapo.watch", "swarm.telemetry.records"},
    "swarm/engines": PURE | {"swarm.engines", "swarm.policy"},
    "swarm/preflight": PURE
    | {
        "swarm.preflight",
        "swarm.config",
        "swarm.environments.modalities",
        "swarm.policy",
        "swarm.engines",
        "swarm.training.config",
        "swarm.training.forward",
        "swarm.training.optimizers",
    },
    # What runs in vLLM's Python, which has nothing of this project's dependencies but msgspec.
    "swarm/engines/vllm/server.py": {
        "swarm.types",
        "swarm.engines.vllm.arguments",
        "swarm.engines.vllm.messages",
        "swarm.engines.vllm.pieces",
        "swarm.engines.vllm.reading",
        "swarm.engines.vllm.scheduler",
    },
    "swarm/engines/vllm/arguments.py": {
        "swarm.engines.vllm.messages",
        "swarm.engines.vllm.pieces",
        "swarm.engines.vllm.reading",
    },
    "swarm/engines/vllm/scheduler.py": {"swarm.types"},
    "swarm/engines/vllm/pieces.py": {"swarm.engines.vllm.messages"},
    "swarm/engines/vllm/reading.py": {"swarm.engines.vllm.messages"},
    "swarm/engines/vllm/messages.py": {"swarm.types"},
    "swarm/net": PURE | {"swarm.net"},
    "swarm/net/records": PURE | RECORDS,
    "swarm/net/addresses": NET | RECORDS | ADDRESSES,
    "swarm/net/trust": NET | RECORDS | ADDRESSES | TRUST,
    "swarm/net/snapshots": NET | RECORDS | ADDRESSES | SNAPSHOTS,
    "swarm/net/services": NET | RECORDS | ADDRESSES | SNAPSHOTS | SERVICES,
    "swarm/net/membership": NET | RECORDS | ADDRESSES | TRUST | SERVICES | MEMBERSHIP,
    "swarm/net/hivemind": BACKEND | {"swarm.net.hivemind"},
    "swarm/extras/libp2p": BACKEND | {"swarm.extras.libp2p"},
    "swarm/extras/direct": NET | RECORDS | ADDRESSES | {"swarm.extras.direct"},
    "nodes/commands": {"swarm", "nodes"},
    "nodes/roles": {"swarm", "nodes.roles", "nodes.exits", "nodes.neighbours", "nodes.stop"},
    "nodes/simulation": {"swarm", "nodes.roles", "nodes.simulation", "nodes.exits", "nodes.stop"},
}
FORBIDDEN = {
    "swarm/net": {"torch", "transformers"},
    "swarm/engines": {"swarm.net", "swarm.training"},
    "swarm/policy": {"swarm.net", "swarm.training"},
    "swarm/training": {"swarm.net", "swarm.engines"},
    "swarm/engines/vllm/process.py": {"vllm"},
    "swarm/engines/vllm/messages.py": {"torch", "pydantic", "vllm"},
    "swarm/environments": {"torch"},
    "swarm/telemetry": {"torch"},
    "swarm/page": {"torch"},
    "swarm/schedule": {"torch"},
    "swarm/judging": {"torch", "transformers"},
    "swarm": {"nodes", "tests", "benchmarks"},
}


EXTRAS = "swarm/extras"

ENTRY = ROOT / "swarm" / "__main__.py"
"""`python -m swarm`, which is nothing but the command of `nodes`."""

PUBLIC = ROOT / "swarm" / "__init__.py"
"""`import swarm`, which names what users import, `nodes.api` included, and loads nothing by itself."""


def _modules(part: str) -> list[Path]:
    path = ROOT / part
    return [path] if path.suffix == ".py" else [file for file in sorted(path.rglob("*.py")) if file != ENTRY]


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            submodules = {alias.name for alias in node.names if _is_module(f"{module}.{alias.name}")}
            found |= {f"{module}.{name}" for name in submodules}
            if len(submodules) < len(node.names):
                found.add(module)
    return found


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


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
    for path in [path for path in _modules(part) if path != PUBLIC]:
        bad = {module for module in _imports(path) if _under(module, FORBIDDEN[part])}
        assert not bad, f"{path.relative_to(ROOT)} must not import {sorted(bad)}"


def test_the_core_never_imports_extras() -> None:
    core = [path for part in ("swarm", "nodes") for path in _modules(part) if not path.is_relative_to(ROOT / EXTRAS)]
    for path in core:
        bad = {module for module in _imports(path) if _under(module, {"swarm.extras"})}
        assert not bad, f"{path.relative_to(ROOT)} must not import {sorted(bad)}"


def _graph() -> dict[str, set[str]]:
    """What each module of this project imports of it, wherever in the file it does so."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for part in ("swarm", "nodes", "benchmarks")
        for path in _modules(part)
    }
    return {module: _imports(path) & paths.keys() - {module} for module, path in paths.items()}


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = _graph()
    # Modules that import none but such as are gone are gone as well; what stays is in a circle, or imports one.
    while leaves := {module for module, imports in graph.items() if not imports & graph.keys()}:
        graph = {module: imports for module, imports in graph.items() if module not in leaves}
    assert not graph


@pytest.mark.parametrize("part", ["swarm", "nodes", "benchmarks"])
def test_every_folder_says_what_lives_there(part: str) -> None:
    for path in _modules(part):
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)} must say what lives there"


HEAVY = ("torch", "transformers", "hivemind", "reasoning_gym", "datasets", "matplotlib", "libp2p", "trio")


@pytest.mark.parametrize(
    "statement",
    [
        "import swarm; swarm.frame; swarm.NodeConfig; swarm.Task; swarm.MixPolicy",
        "import swarm.config",
        "import swarm.sapo.round",
        "import swarm.judging.opening, swarm.judging.endpoint",
        "import swarm.net.hivemind.transport",
        "import swarm.net.hivemind.session, swarm.net.hivemind.daemon, swarm.net.hivemind.dht",
        "import swarm.extras.libp2p.transport, swarm.net.backends",
        "import nodes.cli",
        "import nodes.commands.running.demo, nodes.commands.running.sweep",
        "import nodes.commands.doctor.command",
        "import nodes.commands.watching.top, nodes.commands.watching.ui, swarm.page.app",
        "import nodes.cli, sys; sys.argv = ['swarm', '--help']; nodes.cli.app(standalone_mode=False)",
    ],
)
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    probe = f"{statement}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.splitlines()[-1] == "[]"
