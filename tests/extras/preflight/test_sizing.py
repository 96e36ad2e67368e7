"""The page of sizes, and the commands of the documents: they fit the GPUs that they name."""

from __future__ import annotations

import math
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import torch

from nodes.commands.init import recipes
from swarm.config import load_config
from swarm.engines.choice import Vllm
from swarm.extras.preflight.sizing import GPUS, HEADER, MODELS, MODES, RATES, Recipe, line, of_recipe, size_of
from swarm.policy.config import LoraSettings
from swarm.preflight.check import Memory, judge
from swarm.preflight.duties import PEER
from swarm.preflight.model import measure
from swarm.preflight.need import GIB

MIB = 2**20
ROOT = Path(__file__).parents[3]
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
    found = judge(partial(size_of, model), config, PEER, memory, look=lambda: vllm)
    assert found.verdict == "fits", f"{found.seen}; {found.fix}"


def test_the_page_of_sizes_is_current() -> None:
    """One model's lines: all of them would take long."""
    shipped = (ROOT / "docs" / "sizing.md").read_text()
    config = recipes()["gsm8k"]
    recipe = Recipe("gsm8k", config.command, load_config(config.file).config)
    for made in (line("Qwen2.5-0.5B", MODES[0], PEER), of_recipe(recipe, PEER)):
        assert made in shipped, "run: swarm config sizing > docs/sizing.md"
    assert shipped.startswith(HEADER) and shipped.endswith(RATES)


@pytest.mark.parametrize(
    ("name", "rank", "parameters", "measured"),
    [("Qwen2.5-0.5B", 0, 494_032_768, 1.53), ("Qwen3-1.7B", 0, 1_720_574_976, 3.58), ("Qwen2.5-7B", 16, None, 6.41)],
)
def test_known_models_have_the_activations_measured_on_them(
    name: str, rank: int, parameters: int | None, measured: float
) -> None:
    """MiB of saved tensors per token, measured with real weights in bfloat16 passes."""
    if rank:
        pytest.importorskip("peft", reason="needs the extra lora")
    size = measure(MODELS[name], LoraSettings(rank=rank), lambda _: torch.bfloat16)
    assert parameters is None or size.parameters == parameters
    assert size.passes is not None and size.passes.kept.per_token / MIB == pytest.approx(measured, rel=0.1)
    if rank:  # frozen weights are bfloat16 already
        assert size.passes.kept.fixed < 2**28 and math.isclose(size.frozen_bytes, 2 * size.parameters)
