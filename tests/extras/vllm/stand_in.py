"""A Python that has a stand-in for vLLM, of version 0.0, and the directory in which it looks for what to do wrong."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from swarm.extras.vllm import service

FAKE = Path(__file__).parent / "fake_vllm"


def python_with_vllm(directory: Path) -> Path:
    path = directory / "python"
    path.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{FAKE}"\nexec "{sys.executable}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def script_for_vllm(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for files that name faults; after one vLLM is started again at once."""
    path = directory / "script"
    path.mkdir()
    monkeypatch.setenv("VLLM_FAKE", str(path))
    monkeypatch.setattr(service, "BACKOFF_S", 0.0)
    return path
