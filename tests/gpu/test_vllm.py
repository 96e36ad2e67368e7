"""A real vLLM on a GPU: the log-probabilities of the trainer, sleep and wake, weights in flight, a GPU of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.common.report import Report, row
from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.engines.vllm import delivery
from swarm.engines.vllm.engine import VllmEngine
from swarm.engines.vllm.service import VllmService
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, Sampling
from tests.engines.models import random_policy
from tests.example_groups import graded
from tests.policy.completions import completion_logprobs

pytestmark = [pytest.mark.gpu, pytest.mark.vllm]

PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4", "a much longer prompt than the others, in single letters"]


@pytest.fixture
def policy(device: torch.device) -> Policy:
    policy = random_policy(head_dim=64)
    policy.model.to(device)
    policy.dtype = torch.bfloat16
    return policy


@contextlib.contextmanager
def _vllm(policy: Policy, python: Path, **settings: object) -> Iterator[VllmEngine]:
    generation = GenerationSettings(vllm=VllmSettings(**{"python": python, "gpu_memory_fraction": 0.3, **settings}))
    with contextlib.closing(VllmService(policy, generation)) as opened:
        opened.running(lambda: False)
        yield VllmEngine(policy, generation, opened)


def _difference(policy: Policy, prompt: str, completion: Completion) -> float:
    with torch.no_grad():
        ids = list(completion.token_ids)
        ours = completion_logprobs(policy, [policy.encode_prompt(prompt)], [ids], 1.0)[0].cpu()
    return float((ours - torch.tensor(completion.logprobs)).abs().mean())


def _learn(policy: Policy) -> None:
    settings = UpdateSettings(learning_rate=1e-3)
    PolicyUpdater(policy, settings, MixSettings(), 1.0).update([], [graded("other", 0, (1.0, 0.0, 0.0))])


def _agree(policy: Policy, engine: VllmEngine) -> float:
    groups = engine.generate(PROMPTS, 4, Sampling(max_new_tokens=24), 3)
    differences = [
        _difference(policy, prompt, completion)
        for prompt, group in zip(PROMPTS, groups, strict=True)
        for completion in group
    ]
    return sum(differences) / len(differences)


def test_it_samples_from_the_trainers_policy_after_every_update(
    policy: Policy, vllm_python: Path, figures: Report
) -> None:
    with _vllm(policy, vllm_python) as engine:
        for _ in range(3):
            assert (nats := _agree(policy, engine)) < 0.05
            _learn(policy)
        figures.add([row("difference between vLLM and trainer", [nats], "nats a token", target=0.05, better="lower")])


def test_a_second_start_finds_what_the_first_has_compiled(
    policy: Policy, vllm_python: Path, figures: Report, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = []
    for _ in range(2):
        caplog.clear()
        began = time.monotonic()
        with _vllm(policy, vllm_python):
            seconds.append(time.monotonic() - began)
    assert "compiles" not in caplog.text
    figures.add([row("second start of vLLM", seconds[1:], "s", target=15, better="lower")])


def test_it_sleeps_and_wakes_many_times(policy: Policy, vllm_python: Path) -> None:
    with _vllm(policy, vllm_python, sleep=True) as engine:
        for _ in range(4):
            assert _agree(policy, engine) < 0.05
            _learn(policy)


@pytest.mark.parametrize("sleep", [False, True])
def test_weights_reach_it_through_memory_of_the_gpu(
    policy: Policy, vllm_python: Path, monkeypatch: pytest.MonkeyPatch, sleep: bool
) -> None:
    monkeypatch.setattr(delivery, "changed_files", None)  # no file is written
    monkeypatch.setattr(delivery, "BUFFER_BYTES", 2**16)  # several pieces
    with _vllm(policy, vllm_python, sleep=sleep, transfer="ipc") as engine:
        for _ in range(3):
            assert _agree(policy, engine) < 0.05
            _learn(policy)


def test_it_takes_another_gpu(policy: Policy, vllm_python: Path, device: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    before, _ = torch.cuda.mem_get_info(device)
    with _vllm(policy, vllm_python, gpus=(1,), gpu_memory_fraction=0.5) as engine:
        assert _agree(policy, engine) < 0.05
        after, _ = torch.cuda.mem_get_info(device)
        assert before - after < 2**30, "nothing of it is on the trainer's GPU"


def test_two_gpus_share_its_matrices(policy: Policy, vllm_python: Path, device: torch.device) -> None:
    if torch.cuda.device_count() < 3:
        pytest.skip("needs three GPUs")
    with _vllm(policy, vllm_python, gpus=(1, 2), gpu_memory_fraction=0.5) as engine:
        assert _agree(policy, engine) < 0.05
