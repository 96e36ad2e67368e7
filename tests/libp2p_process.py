"""A pytest plugin: tests marked `libp2p` run in one pytest process of their own, without hivemind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

REPORT = "SWARM_TEST_LIBP2P_REPORT"
"""Set in the child: where it writes one line of JSON for each phase of each test."""
CHILD_TIMEOUT_S = 900
NOT_INSTALLED = (
    "py-libp2p is not installed: pip install libp2p==0.8.1, which needs a C compiler and GMP headers "
    "(on Debian: apt-get install gcc libgmp-dev)"
)


class Child:
    """Runs all the marked tests that were selected, once, when the first of them comes up."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._outcomes: dict[str, tuple[str, str]] | None = None
        self.node_ids: list[str] = []

    def run(self, node_id: str) -> None:
        """Pass, fail or skip as the test did in the child."""
        if self._outcomes is None:
            with TemporaryDirectory() as folder:
                self._outcomes = self._run_all(Path(folder) / "report.jsonl")
        outcome, text = self._outcomes.get(node_id, ("failed", "the child never ran it"))
        if outcome == "skipped":
            pytest.skip(text)
        if outcome == "failed":
            pytest.fail(text, pytrace=False)

    def _run_all(self, report: Path) -> dict[str, tuple[str, str]]:
        report.touch()
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self.node_ids],
            cwd=self._root,
            env={**os.environ, REPORT: str(report)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = child.communicate(timeout=CHILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
        never = ("failed", f"the child never finished it:\n{output}")
        outcomes = dict.fromkeys(self.node_ids, never)
        for line in report.read_text().splitlines():
            phase = json.loads(line)
            before = outcomes.get(phase["node_id"], never)
            # The first phase that did not pass is what counts; `call` passing overrides "never finished".
            if before is never or before[0] == "passed":
                if phase["when"] == "setup" and phase["outcome"] == "passed":
                    continue
                outcomes[phase["node_id"]] = (phase["outcome"], phase["text"])
        return outcomes


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("libp2p") and isinstance(item, pytest.Function)]
    if find_spec("libp2p") is None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=NOT_INSTALLED))
        return
    if REPORT in os.environ or not marked:
        return
    child = Child(config.rootpath)
    for item in marked:
        assert isinstance(item, pytest.Function)
        file, _, name = item.location
        node_id = f"{file}::{name}"  # without what several processes add to it
        child.node_ids.append(node_id)
        # Neither its fixtures nor the test itself may run here.
        item.setup = lambda: None  # type: ignore[method-assign]
        item.runtest = lambda node_id=node_id: child.run(node_id)  # type: ignore[method-assign,misc]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if path := os.environ.get(REPORT):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        line = {"node_id": report.nodeid, "when": report.when, "outcome": report.outcome, "text": text}
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
