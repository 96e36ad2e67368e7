from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from swarm.errors import OutOfMemory
from swarm.policy.batching import Insert
from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.out_of_memory import TokenBudget, needing_memory
from swarm.policy.ranks import Ranks
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup
from tests.example_groups import rollout_group
from tests.policy.exact import exact

CPU_MESSAGE = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


class Pair(NamedTuple):
    prompt: list[int]
    completion: list[int]
    inserts: tuple[Insert, ...] = ()


ROWS = [Pair([1, 2], [3]), Pair([1, 2], [3, 4, 5])]


class Shortage:
    """A model's forward pass that finds no memory for more than `limit` tokens; counts how often."""

    def __init__(self, policy: Policy, limit: int, error: Exception) -> None:
        self.times = 0
        self._limit = limit
        self._error = error
        policy.model.register_forward_pre_hook(self._check, with_kwargs=True)

    def _check(self, module: torch.nn.Module, args: tuple[()], kwargs: dict[str, torch.Tensor]) -> None:
        if kwargs["input_ids"].numel() > self._limit:
            self.times += 1
            raise self._error


def _group(index: int) -> GradedGroup:
    texts = ("1", "a longer answer", "22", f"{index}" * 20)
    completions = tuple(Completion(text, "stop") for text in texts)
    return GradedGroup(rollout_group(completions=completions), f"Calculate {index}.", (1.0, 0.0, 0.0, 1.0))


def _updater(policy: Policy, **settings: object) -> PolicyUpdater:
    values = {"learning_rate": 1e-3, "micro_batch_tokens": 200, "minibatches": 1, **settings}
    return PolicyUpdater(policy, UpdateSettings.model_validate(values), MixSettings(), 1.0)


@pytest.mark.parametrize(
    ("batching", "epochs", "error"),
    [
        ("packed", 1, torch.OutOfMemoryError("CUDA out of memory")),
        ("packed", 2, RuntimeError(CPU_MESSAGE)),
        ("padded", 1, MemoryError()),
    ],
    ids=["cuda", "cpu", "python"],
)
def test_an_update_that_runs_out_of_memory_ends_as_one_that_does_not(
    policy: Policy, batching: str, epochs: int, error: Exception
) -> None:
    policy = exact(policy)
    short = copy.deepcopy(policy)
    groups = [_group(index) for index in range(3)]
    settings = {"batching": batching, "epochs": epochs, "behaviour_kl": 0.1}
    report = _updater(policy, **settings).update([], groups)
    shortage = Shortage(short, 60, error)
    updater = _updater(short, **settings)
    short_report = updater.update([], groups)
    assert shortage.times == 2, "200 > 100 > 50, and remembered from then on"
    assert short_report.figures["loss"] == pytest.approx(report.figures["loss"], abs=1e-12)
    for name in ("train/num_sequences", "train/num_tokens"):
        assert short_report.figures[name] == report.figures[name]
    assert short_report.figures["grad_norm"] == pytest.approx(report.figures["grad_norm"], abs=1e-12)
    for ours, theirs in zip(short.model.parameters(), policy.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)  # Adam divides by gradients that are almost zero
    updater.update([], groups)
    assert shortage.times == 2


def test_a_step_that_runs_out_in_its_last_micro_batch_counts_nothing_twice(policy: Policy) -> None:
    policy = exact(policy)
    groups = [_group(index) for index in range(3)]
    gradients = []
    for fails in (False, True):
        twin = copy.deepcopy(policy)
        updater = _updater(twin)
        calls = 0

        def fail_late(*_: object, fails: bool = fails) -> None:
            nonlocal calls
            calls += 1
            if fails and calls == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")

        twin.model.register_forward_pre_hook(fail_late)

        def keep_gradient(twin: Policy = twin) -> None:
            gradients.append([p.grad for p in twin.model.parameters()])

        updater.optimizer.step = keep_gradient  # type: ignore[method-assign]
        updater.update([], groups)
    for once, again in zip(*gradients, strict=True):
        torch.testing.assert_close(once, again, atol=1e-12, rtol=0)


def test_down_to_one_row_and_no_further(caplog: pytest.LogCaptureFixture) -> None:
    tried = []

    def work(max_tokens: int) -> None:
        tried.append(max_tokens)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with caplog.at_level(logging.WARNING), pytest.raises(OutOfMemory, match="gradient_checkpointing"):
        TokenBudget(20).attempt(work, ROWS)
    assert tried == [20, 10, 5, 2]
    assert len(caplog.records) == 3


def test_an_optimizer_without_room_says_so_and_leaves_no_half_of_its_states(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    updater = _updater(policy)
    zeros_like, before = torch.zeros_like, [weight.detach().clone() for weight in policy.trained]
    calls = iter(range(100))

    def short(*arguments: object, **options: object) -> torch.Tensor:
        if next(calls) == 3:  # between the two moments of a parameter
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 96.00 MiB")
        return zeros_like(*arguments, **options)

    def step() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(torch, "zeros_like", short)
            torch.optim.AdamW.step(updater.optimizer)

    monkeypatch.setattr(updater.optimizer, "step", step)
    with pytest.raises(OutOfMemory, match="optimizer's states.*swarm doctor.*96.00 MiB"):
        updater.update([], [_group(0)])
    assert not updater.optimizer.state
    assert all(torch.equal(old, new) for old, new in zip(before, policy.trained, strict=True))


def test_a_model_larger_than_the_device_is_a_clear_error(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.save(tmp_path)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Ranks, "place", full)
    with pytest.raises(OutOfMemory, match="does not fit in the memory of cpu; `swarm doctor.*2.00 GiB"):
        load_policy(PolicySettings(model=str(tmp_path), device="cpu"))


def test_other_errors_are_not_mistaken_for_a_lack_of_memory() -> None:
    def work(max_tokens: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    budget = TokenBudget(20)
    with pytest.raises(RuntimeError, match="shapes"), needing_memory("the model"):
        work(1)
    with pytest.raises(RuntimeError, match="shapes"):
        budget.attempt(work, ROWS)
    assert budget.tokens == 20
