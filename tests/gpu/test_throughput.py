"""How fast generation is against vLLM alone, and an update against TRL."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from benchmarks.common.report import Report, row
from benchmarks.engine.generation import Contender, Vllm, VllmAlone, Workload, ours, timed
from benchmarks.updater.__main__ import OURS, Plan, trl
from benchmarks.updater.workload import Workload as Updates
from swarm.engines.config import SHARED_FRACTION
from swarm.policy.config import LoraSettings
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup
from tests.example_groups import rollout_group
from tests.gpu.models import half_a_billion, seven_billion

pytestmark = pytest.mark.gpu

GENERATION = Workload(num_prompts=32, num_completions=8, mean_tokens=10**6, max_new_tokens=200, static_rows=256)
"""All completions have the same length: hardly any stops earlier."""
TARGETS = {"transformers": 0.6, "vllm": 0.95, "vllm, by turns": 0.95}
"""Parts of vLLM's tokens per second by itself."""
ROOM, LARGE_ROOM = 20 * 2**30, 40 * 2**30
"""Memory of a GPU that trains half a billion weights with TRL, and adapters of seven billion."""


def _tokens_per_s(contender: Contender, policy: Policy) -> float:
    contender(policy, GENERATION, 0)  # warms up
    return timed(contender, policy, GENERATION, 1, time.monotonic).tokens_per_s


@pytest.mark.vllm
def test_generation_against_vllm_alone(
    device: torch.device, vllm_python: Path, figures: Report, tmp_path: Path
) -> None:
    policy = half_a_billion(device)
    speeds = {"transformers": _tokens_per_s(ours, policy)}
    with closing(Vllm(policy, vllm_python, 256, GENERATION.budget_tokens)) as theirs:
        speeds["vllm"] = _tokens_per_s(theirs, policy)
        speeds["vllm, by turns"] = _tokens_per_s(theirs.by_turns, policy)
    memory = {"gpu_memory_utilization": SHARED_FRACTION}
    with closing(VllmAlone(policy, vllm_python, GENERATION, tmp_path, memory)) as by_itself:
        alone = _tokens_per_s(by_itself, policy)
    what = "256 sequences of half a billion weights, engine"
    figures.add(row(f"{what} {name}", [speed], "tok/s", baseline=[alone]) for name, speed in speeds.items())
    figures.add(
        row(f"{what} {name}, against vLLM alone", [speed / alone], "x", target=TARGETS[name])
        for name, speed in speeds.items()
    )
    assert min(speeds["vllm"], speeds["vllm, by turns"]) > TARGETS["vllm"] * alone


@pytest.mark.parametrize(("model", "each"), [("0.5 B, all weights", 6), ("7 B, adapters of rank 16", 4)])
def test_an_update_uses_the_gpu(device: torch.device, figures: Report, model: str, each: int) -> None:
    """Operations of an update, `each` a weight and token, against a large product's in bfloat16; what is computed twice
    and attention do not count, and a prompt's once."""
    large = each == 4
    if torch.cuda.get_device_properties(device).total_memory < (LARGE_ROOM if large else ROOM):
        pytest.skip("needs a larger GPU")
    if large:
        pytest.importorskip("peft", reason="needs the extra lora")
    policy = seven_billion(device, LoraSettings(rank=16)) if large else half_a_billion(device, torch.float32)
    updater = PolicyUpdater(policy, UpdateSettings(minibatches=1), MixSettings(), 1.0)
    groups = [_group(index, 512 if large else 384) for index in range(4 if large else 32)]
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.monotonic()
        updater.update(groups, [])
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
    head = policy.model.get_output_embeddings().weight.numel()
    body = sum(weight.numel() for weight in policy.model.parameters()) - head * (2 if large else 1)
    completion = sum(len(each.token_ids) for group in groups for each in group.group.completions)
    prompts = sum(len(policy.encode_prompt(group.prompt)) for group in groups)
    operations = each * (body * (completion + prompts) + head * completion)
    used = [operations / each_s / _operations_per_s(device) for each_s in seconds[1:]]
    figures.add(
        [
            row(f"an update of {model}: share of the GPU's arithmetic", used, "", target=0.4),
            row(f"an update of {model}: completion tokens", [completion / each_s for each_s in seconds[1:]], "tok/s"),
            row(f"an update of {model}: the first, with compilation", seconds[:1], "s", better="lower"),
        ]
    )
    assert max(used) > 0.25


def _group(index: int, length: int) -> GradedGroup:
    ids = [tuple(5 + (7 * place + 8 * index + row) % 90 for place in range(length)) for row in range(8)]
    completions = tuple(Completion("x", "length", each, (-11.0,) * length) for each in ids)
    rewards = tuple(float(place % 2) for place in range(8))
    prompt = "calculate " + "abcdefgh" * 8 + f" {index}"
    return GradedGroup(rollout_group(completions=completions, rewards=rewards), prompt, rewards)


def _operations_per_s(device: torch.device) -> float:
    """Of a large product of matrices in bfloat16."""
    left = torch.randn(8_192, 8_192, device=device, dtype=torch.bfloat16)
    right = torch.randn_like(left)
    for count in (3, 20):
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(count):
            left @ right
        torch.cuda.synchronize()
    return count * 2 * 8_192**3 / (time.monotonic() - began)


def test_an_update_against_trl(device: torch.device, figures: Report, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="needs the extra dev")
    large = torch.cuda.get_device_properties(device).total_memory > ROOM
    workload = Updates("0.5 B" if large else "25 M", 32, 448, 448, (64, 64), str(device))
    plan = Plan(quick=True, repeats=1, threads=4, device=str(device), folder=tmp_path)
    folder, _ = plan.write(workload)
    seconds = {side.name: plan.run(side, folder).seconds for side in (OURS, trl(8, True), trl(32, False))}
    mine, tokens = seconds.pop(OURS.name), 32 * (448 + 64)
    what = f"an update of {workload.model} weights (against the faster of two settings of TRL)"
    figures.add([row(what, [tokens / mine], "tok/s", baseline=[tokens / min(seconds.values())])])
