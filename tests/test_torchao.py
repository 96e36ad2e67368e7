"""torchao is imported only where somebody asks for it, and hidden only in the processes that swarm starts."""

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
COMMAND = """
import contextlib, sys
from nodes.cli import main
sys.argv = ["swarm", "--version"]
with contextlib.suppress(SystemExit):
    main()
import swarm.policy.loading, swarm.policy.adapters
"""


def _printed(code: str) -> list[str]:
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return asked.stdout.split()


@pytest.mark.skipif(not torchao.is_installed(), reason="needs the extra torchao")
@pytest.mark.parametrize("process", [COMMAND, "import nodes.simulation.warm", "import benchmarks.staleness.__main__"])
def test_a_process_of_swarm_that_does_not_need_torchao_does_not_load_it(process: str) -> None:
    assert _printed(f"{process}\n{LOADED}")[-1] == "0"


@pytest.mark.skipif(not torchao.is_installed(), reason="needs the extra torchao")
@pytest.mark.parametrize("name", ["Node", "NodeConfig"])
def test_a_user_s_process_can_import_torchao_after_swarm(name: str) -> None:
    assert _printed(f"import swarm; swarm.{name}; import torchao; print(torchao.__name__)")[-1] == "torchao"


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
    assert _printed(code) == ["True", "True", "False"]
