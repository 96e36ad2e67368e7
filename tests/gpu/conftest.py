"""What the tests that need a GPU share, and the report of what they measured. See docs/gpu.md."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch

from benchmarks.common.report import Report, row
from swarm.engines.choice import look_for_vllm
from swarm.policy.out_of_memory import release_unused

FILE = Path("gpu-report.json")
FIGURES = Report("gpu", peer="expected")
VLLM_PYTHON = os.environ.get("SWARM_TEST_VLLM_PYTHON")
BEGAN = time.monotonic()
MOST_MINUTES = 15


@pytest.fixture
def device() -> torch.device:
    """The first GPU, with its memory free as far as this process can free it."""
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and a torch with CUDA")
    release_unused()
    torch.cuda.reset_peak_memory_stats()
    return torch.device("cuda")


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """A Python with vLLM."""
    found = look_for_vllm(Path(VLLM_PYTHON) if VLLM_PYTHON else None)
    if found.problem:
        pytest.skip(f"{found.problem}: install the extra gpu, or set SWARM_TEST_VLLM_PYTHON")
    return found.python


@pytest.fixture
def figures() -> Report:
    """Takes rows for the report."""
    return FIGURES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not FIGURES.rows:
        return
    minutes = (time.monotonic() - BEGAN) / 60
    FIGURES.add([row("all of these tests", [minutes], "min", target=MOST_MINUTES, better="lower")])
    FIGURES.versions |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda or ""}
    FILE.write_text(json.dumps({**json.loads(FIGURES.as_json()), "command": "make test-gpu"}, indent=1) + "\n")
    terminalreporter.write_sep("-", f"figures, also in {FILE}")
    terminalreporter.write_line(FIGURES.markdown())
