"""The commands of the documents fit the GPUs that they name."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from swarm.config import load_config
from swarm.engines.choice import Vllm
from swarm.preflight.check import Memory, judge
from swarm.preflight.need import GIB
from swarm.preflight.page import GPUS, _size

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(
    r"^swarm join (?P<options>[^\n#]*--model[^\n#]*)# (?P<gpu>\d+ GB)(?P<alone>, without vLLM)?$", re.MULTILINE
)
TEXTS = [file.read_text().replace("\\\n", " ") for file in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))]
COMMANDS = [match for text in TEXTS for match in COMMAND.finditer(text)]


def test_there_are_such_commands() -> None:
    assert len(COMMANDS) >= 2


@pytest.mark.parametrize("command", COMMANDS, ids=[match["gpu"] for match in COMMANDS])
def test_a_command_fits_the_gpu_that_it_names(command: re.Match[str]) -> None:
    words = shlex.split(command["options"])[1:]  # without the address
    fields = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    model = fields.pop("model").removeprefix("Qwen/").removesuffix("-Instruct")
    fields |= {"policy.dtype": "bfloat16", "policy.model": f"Qwen/{model}"}
    config = load_config(environment={}, command_line=list(fields.items())).config
    memory = Memory("cuda", round(GPUS[command["gpu"]] * GIB), round(GPUS[command["gpu"]] * GIB))
    vllm = Vllm(Path("python"), problem="there is none" if command["alone"] else "")
    found = judge(partial(_size, model), config, "peer", memory, look=lambda: vllm)
    assert found.verdict == "fits", f"{found.seen}; {found.fix}"
