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
from swarm.policy.loading import Policy
from tests.gpu.models import half_a_billion

pytestmark = pytest.mark.gpu

GENERATION = Workload(num_prompts=32, num_completions=8, mean_tokens=10**6, max_new_tokens=200, static_rows=256)
"""All completions have the same length: hardly any stops earlier."""
TARGETS = {"transformers": 0.6, "vllm": 0.95, "vllm, by turns": 0.95}
"""Parts of vLLM's tokens per second by itself."""
ROOM = 20 * 2**30
"""Memory of a GPU that trains half a billion weights with TRL."""


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


def test_an_update_against_trl(device: torch.device, figures: Report, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="needs the extra dev")
    large = torch.cuda.get_device_properties(device).total_memory > ROOM
    workload = Updates("0.5 B" if large else "25 M", 32, 448, 448, (64, 64), str(device))
    plan = Plan(quick=True, repeats=1, threads=4, device=str(device), folder=tmp_path)
    folder, _ = plan.write(workload)
    seconds = {side.name: plan.run(side, folder).seconds for side in (OURS, trl(8, True), trl(8, False))}
    mine, tokens = seconds.pop(OURS.name), 32 * (448 + 64)
    what = f"an update of {workload.model} weights (against the faster of two settings of TRL)"
    figures.add([row(what, [tokens / mine], "tok/s", baseline=[tokens / min(seconds.values())])])
