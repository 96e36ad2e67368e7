"""The shape of the code, held by its imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
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
    "swarm.sanitize",
    "swarm.files",
    "swarm.protocols",
    "swarm.settings",
    "swarm.kinds",
    "swarm.telemetry.intervals",
    "swarm.fair_store",
    "swarm.lru",
    "swarm.stopwatch",
    "swarm.children",
    "swarm.kernel",
    "swarm.machine",
    "swarm.torchao",
    "swarm.endpoint",
    "swarm.following",
}
LEDGER = {"swarm.telemetry.ledger"}
NET = PURE | {f"swarm.net.{name}" for name in ("bandwidth", "config", "guard", "roster", "runtime")}
RECORDS, ADDRESSES, TRUST = {"swarm.net.records"}, {"swarm.net.addresses"}, {"swarm.net.trust"}
SERVICES, MEMBERSHIP = {"swarm.net.services"}, {"swarm.net.membership"}
LEARNER = PURE | {"swarm.extras.learner", "swarm.groups", "swarm.received"}
BACKEND = NET | RECORDS | ADDRESSES | TRUST | SERVICES | MEMBERSHIP
ALLOWED = {
    "swarm/reasons.py": set(),
    "swarm/types": {"swarm.types", "swarm.reasons"},
    "swarm/distribution.py": set(),
    "swarm/sanitize.py": set(),
    "swarm/files.py": set(),
    "swarm/errors.py": {"swarm.sanitize", "swarm.reasons"},
    "swarm/figures.py": set(),
    "swarm/fair_store.py": set(),
    "swarm/lru.py": set(),
    "swarm/settings.py": set(),
    "swarm/kinds.py": {"swarm.errors", "swarm.files", "swarm.sanitize", "swarm.settings"},
    "swarm/stopwatch.py": set(),
    "swarm/suggestions.py": {"swarm.kinds", "swarm.settings"},
    "swarm/children.py": set(),
    "swarm/machine.py": set(),
    "swarm/torchao.py": set(),
    "swarm/endpoint.py": {"swarm.errors", "swarm.settings"},
    "swarm/protocols.py": {"swarm.reasons", "swarm.types", "swarm.files"},
    "swarm/evaluation.py": PURE | {"swarm.groups"},
    "swarm/suites": PURE
    | {
        "swarm.suites",
        "swarm.environments.config",
        "swarm.environments.sources.dataset",
        "swarm.evaluation",
        "swarm.groups",
        "swarm.telemetry.records",
    },
    "swarm/algorithms": {"swarm.algorithms", "swarm.figures", "swarm.settings", "swarm.kinds", "swarm.errors"},
    "swarm/documents.py": {"swarm.errors"},
    "swarm/telemetry": PURE | {"swarm.telemetry", "swarm.net.roster"},
    "swarm/extras/trackers": PURE | {"swarm.extras.trackers", "swarm.distribution", "swarm.telemetry"},
    "swarm/extras/export": PURE
    | {"swarm.extras.export", "swarm.config", "swarm.policy.config", "swarm.telemetry"}
    | {"swarm.environments.sources.dataset"},
    "swarm/opponents.py": PURE | {"swarm.environments.config", "swarm.environments.episodes.source", "swarm.policy"},
    "swarm/schedule.py": PURE,
    "swarm/extras/schedule": PURE | {"swarm.extras.schedule", "swarm.schedule"},
    "swarm/environments": PURE | {"swarm.environments"},
    "swarm/extras/judging": PURE
    | {"swarm.extras.judging", "swarm.environments"}
    | {"swarm.policy.config", "swarm.policy.loading", "swarm.engines.config", "swarm.engines.transformers.engine"},
    "swarm/extras/recorded": PURE
    | {"swarm.extras.recorded", "swarm.environments.sources.columns", "swarm.telemetry.samples"}
    | {"swarm.training.config", "swarm.training.imitation", "swarm.groups.credit"},
    "swarm/extras/give": {"swarm", "nodes.boot", "nodes.roles"},
    "swarm/extras/give/engine.py": PURE | {"swarm.extras.give"},
    "swarm/extras/give/giving.py": PURE | {"swarm.extras.give", "swarm.groups"} | LEDGER,
    "swarm/groups": PURE | {"swarm.groups"},
    "swarm/received": PURE | {"swarm.received", "swarm.groups"} | LEDGER,
    "swarm/sapo/mixing": PURE | {"swarm.sapo.mixing", "swarm.received.authors"},
    "swarm/sapo": PURE | {"swarm.sapo", "swarm.groups", "swarm.received"} | LEDGER,
    "swarm/following.py": {"swarm.settings"},
    "swarm/teaching.py": {"swarm.settings"},
    "swarm/extras/distill": PURE
    | {"swarm.extras.distill", "swarm.config", "swarm.teaching", "swarm.groups", "swarm.sapo.worth"}
    | {"swarm.environments.config", "swarm.environments.judge", "swarm.net.bandwidth"}
    | {f"swarm.net.records.{name}" for name in ("envelope", "identity")},
    # Its `roles/` are of the layer of `nodes/`; the folders below it know less than the whole.
    "swarm/extras/learner": {"swarm", "nodes.boot", "nodes.roles", "nodes.stop"},
    "swarm/extras/learner/capacity.py": PURE,
    "swarm/extras/learner/learner.py": LEARNER | LEDGER | {"swarm.sapo.watch"},
    "swarm/extras/learner/follower.py": LEARNER | LEDGER,
    "swarm/extras/learner/workforce.py": PURE | {"swarm.extras.learner"},
    "swarm/extras/learner/snapshots": NET
    | RECORDS
    | ADDRESSES
    | {"swarm.net.services", "swarm.extras.learner.snapshots"},
    "swarm/policy": PURE | {"swarm.policy", "swarm.environments.tiny"},
    "swarm/training": PURE
    | {"swarm.training", "swarm.policy", "swarm.algorithms", "swarm.sapo.mixing"}
    | {"swarm.groups.credit", "swarm.groups.expectation"}
    | {
        "swarm.received.corroboration",
        "swarm.received.pool",
        "swarm.sapo.curriculum",
        "swarm.sapo.watch",
        "swarm.teaching",
        "swarm.telemetry.records",
    },
    "swarm/engines": PURE | {"swarm.engines", "swarm.policy"},
    "swarm/extras/preflight": PURE
    | {"swarm.extras.preflight", "swarm.config", "swarm.policy", "swarm.preflight", "swarm.training.forward"},
    "swarm/preflight/duties.py": set(),
    "swarm/preflight": PURE
    | {
        "swarm.preflight",
        "swarm.config",
        "swarm.opponents",
        "swarm.policy",
        "swarm.engines",
        "swarm.training.config",
        "swarm.training.forward",
        "swarm.training.optimizers",
    },
    # What runs in vLLM's Python, which has nothing of this project's dependencies but msgspec.
    "swarm/extras/vllm": PURE | {"swarm.extras.vllm", "swarm.engines", "swarm.policy"},
    "swarm/extras/vllm/server.py": {
        "swarm.types",
        "swarm.extras.vllm.arguments",
        "swarm.extras.vllm.messages",
        "swarm.extras.vllm.reading",
        "swarm.extras.vllm.scheduler",
    },
    "swarm/extras/vllm/arguments.py": {"swarm.extras.vllm.messages", "swarm.extras.vllm.reading"},
    "swarm/extras/vllm/scheduler.py": {"swarm.types"},
    "swarm/extras/vllm/reading.py": {"swarm.extras.vllm.messages"},
    "swarm/extras/vllm/messages.py": {"swarm.types"},
    "swarm/net": PURE | {"swarm.net"},
    "swarm/net/records": PURE | RECORDS,
    "swarm/net/addresses": NET | RECORDS | ADDRESSES,
    "swarm/net/trust": NET | RECORDS | ADDRESSES | TRUST,
    "swarm/net/services": NET | RECORDS | ADDRESSES | SERVICES,
    "swarm/net/membership": NET | RECORDS | ADDRESSES | TRUST | SERVICES | MEMBERSHIP,
    "swarm/net/hivemind": BACKEND | {"swarm.net.hivemind"},
    "swarm/extras/libp2p": BACKEND | {"swarm.extras.libp2p"},
    "swarm/extras/page": PURE | {"swarm.extras.page", "swarm.documents", "swarm.telemetry", "swarm.net.roster"},
    "swarm/extras/direct": NET | RECORDS | ADDRESSES | {"swarm.extras.direct"},
    "nodes/commands": {"swarm", "nodes"},
    "nodes/boot/manifest.py": {"swarm"},
    "nodes/boot/directory.py": {"swarm", "nodes.boot.manifest"},
    "nodes/boot/resolve.py": {"swarm", "nodes.boot.directory", "nodes.boot.manifest", "nodes.roles.role"},
    "nodes/boot/assemble.py": {
        "swarm",
        "nodes.boot",
        "nodes.console",
        "nodes.page",
        "nodes.roles.role",
        "nodes.roles.runtime",
    },
    "nodes/boot": {
        "swarm",
        "nodes.boot",
        "nodes.console",
        "nodes.exits",
        "nodes.page",
        "nodes.roles.ranks",
        "nodes.roles.role",
        "nodes.roles.runtime",
        "nodes.stop",
    },
    "nodes/roles": {
        "swarm",
        "nodes.boot",
        "nodes.console",
        "nodes.exits",
        "nodes.page",
        "nodes.roles",
        "nodes.stop",
    },
    "nodes/simulation": {
        "swarm",
        "nodes.boot",
        "nodes.console",
        "nodes.exits",
        "nodes.roles",
        "nodes.simulation",
        "nodes.stop",
    },
}
FORBIDDEN = {
    "swarm/net": {"torch", "transformers"},
    "swarm/extras/direct": {"torch", "transformers"},
    "swarm/extras/learner/snapshots": {"torch", "transformers"},
    "swarm/extras/libp2p": {"torch", "transformers"},
    "swarm/engines": {"swarm.net", "swarm.training"},
    "swarm/policy": {"swarm.net", "swarm.training"},
    "swarm/training": {"swarm.net", "swarm.engines"},
    "swarm/extras/vllm/service.py": {"vllm"},
    "swarm/extras/vllm/messages.py": {"torch", "pydantic", "vllm"},
    "swarm/environments": {"torch"},
    "swarm/telemetry": {"torch"},
    "swarm/extras/page": {"torch"},
    "swarm/schedule.py": {"torch"},
    "swarm/extras/schedule": {"torch"},
    "swarm/extras/judging": {"torch", "transformers"},
    "swarm/extras/distill": {"torch", "transformers"},
    "swarm/extras/give": {"torch", "transformers"},
    "swarm": {"nodes", "tests", "benchmarks"},
}


ENTRY = ROOT / "swarm" / "__main__.py"
"""`python -m swarm`, which is nothing but the command of `nodes`."""

PUBLIC = ROOT / "swarm" / "__init__.py"
"""`import swarm`, which names what users import, `nodes.api` included, and loads nothing by itself."""

ROLES = {ROOT / "swarm" / "extras" / name / "roles" for name in ("give", "learner")}
"""The nodes of extras, which stand on `nodes/`."""


def _modules(part: str) -> list[Path]:
    path = ROOT / part
    return [path] if path.suffix == ".py" else [file for file in sorted(path.rglob("*.py")) if file != ENTRY]


BUILDERS = {"build", "source", "environments", "store", "scorer", "import_libraries", "library", "_games"}
"""Methods of settings that build what the settings are for, and import it when they are called."""


class _WithoutBuilders(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef | None:
        return None if node.name in BUILDERS else node


@cache
def _imports(path: Path, built: bool = True) -> frozenset[str]:
    """The modules that a file imports; without `built`, only those that no builder imports."""
    found: set[str] = set()
    parsed: ast.AST = ast.parse(path.read_text())
    for node in ast.walk(parsed if built else _WithoutBuilders().visit(parsed)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            submodules = {alias.name for alias in node.names if _is_module(f"{module}.{alias.name}")}
            found |= {f"{module}.{name}" for name in submodules}
            if len(submodules) < len(node.names):
                found.add(module)
    return frozenset(found)


@cache
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
    for path in [
        path for path in _modules(part) if path != PUBLIC and (part != "swarm" or not ROLES & {*path.parents})
    ]:
        bad = {module for module in _imports(path) if _under(module, FORBIDDEN[part])}
        assert not bad, f"{path.relative_to(ROOT)} must not import {sorted(bad)}"


def _graph() -> dict[str, frozenset[str]]:
    """What each module of this project imports of it, wherever in the file it does so but in builders."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for part in ("swarm", "nodes", "benchmarks")
        for path in _modules(part)
    }
    return {module: _imports(path, built=False) & paths.keys() - {module} for module, path in paths.items()}


EXTRAS = sorted(path.name for path in (ROOT / "swarm" / "extras").iterdir() if (path / "__init__.py").exists())


def test_the_core_finds_extras_by_name_only() -> None:
    for path in (path for part in ("swarm", "nodes") for path in _modules(part)):
        own = path.relative_to(ROOT).parts[:3]
        allowed = {".".join(own)} if own[:2] == ("swarm", "extras") and own[2] in EXTRAS else set()
        bad = {module for module in _imports(path) if _under(module, {"swarm.extras"}) and not _under(module, allowed)}
        assert not bad, f"{path.relative_to(ROOT)} must not import {sorted(bad)}"


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


LIGHT = [
    "import swarm; swarm.frame; swarm.NodeConfig; swarm.Task; swarm.MixPolicy",
    "import swarm.config",
    "import swarm.sapo.round",
    "import swarm.environments.judge, swarm.extras.judging.verifier, swarm.extras.judging.endpoint",
    "import swarm.net.hivemind.transport",
    "import swarm.net.hivemind.session, swarm.net.hivemind.daemon, swarm.net.hivemind.dht",
    "import swarm.extras.libp2p.transport, swarm.net.backends",
    "import nodes.cli",
    "import nodes.commands.demo, nodes.commands.sweep",
    "import nodes.commands.doctor",
    "import nodes.commands.give, nodes.roles.bootstrap, swarm.extras.give.roles.giver",
    "import nodes.commands.watching",
    "import swarm.extras.page.server, swarm.extras.page.report",
    "import nodes.cli, sys; sys.argv = ['swarm', '--help']; nodes.cli.app(standalone_mode=False)",
]


def test_light_imports_load_nothing_heavy() -> None:
    """One after another in one process: what the first of them loads is there after all."""
    probe = f"import sys\nfor each in {LIGHT}: exec(each); print(each, [m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    said = result.stdout.splitlines()
    assert [line for line in said if line.startswith(tuple(LIGHT))] == [f"{each} []" for each in LIGHT]
