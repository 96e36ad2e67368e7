"""torchao is imported by nobody who did not ask for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from swarm import torchao

LOADED = """
from transformers import AutoModelForCausalLM, PreTrainedModel
import peft, sys
print(sum(name.split(".")[0] == "torchao" and module is not None for name, module in sys.modules.items()))
"""


@pytest.mark.skipif(not torchao.is_installed(), reason="needs the extra torchao")
@pytest.mark.parametrize(
    "modules",
    [
        "swarm.policy.loading, swarm.policy.adapters",
        "nodes.commands.reference.families",
        "benchmarks.staleness.__main__",
    ],
)
def test_a_process_that_does_not_need_torchao_does_not_load_it(modules: str) -> None:
    code = f"import {modules}\n{LOADED}"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["0"]


@pytest.mark.skipif(not torchao.is_installed(), reason="needs the extra torchao")
def test_hidden_it_is_still_known_to_be_there_and_can_be_shown() -> None:
    code = (
        "import importlib.util\n"
        "from swarm import torchao\n"
        "torchao.hide()\n"
        "print(importlib.util.find_spec('torchao') is None, torchao.is_installed())\n"
        "torchao.show()\n"
        "print(importlib.util.find_spec('torchao') is None)\n"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["True", "True", "False"]
