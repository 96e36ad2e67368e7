"""Verification workers that are not as they should be."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest


@pytest.fixture
def plain_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers started from now on need no library for their tasks."""
    monkeypatch.setattr("swarm.environments.verification.processes.WORKER", "tests.environments.plain_worker")


def alter_workers(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers started from now on run `code` before they do their work, in a module of this folder."""
    folder.mkdir(exist_ok=True)
    (folder / "altered_worker.py").write_text(
        f"{dedent(code)}\nfrom swarm.environments.verification.worker import main\nmain()\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("swarm.environments.verification.processes.WORKER", "altered_worker")


OBEYS = """
import swarm.environments.verification.worker as worker

def obey(mixture, request):
    "Run each completion of a group; its reward is 1 when that got somewhere it should not."
    if not isinstance(request, worker.GradeGroup):
        return answer(mixture, request)
    return worker.Graded(worker.Grade("?", tuple(run(text) for text in request.texts)), {})

def run(code):
    scope = {}
    try:
        exec(code, scope)
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        return 0.0
    return float(bool(scope["escaped"]))

answer, worker._answer = worker._answer, obey
"""
"""A worker without any guard: it does what completions say."""
