"""Optimizers that take less of a GPU's memory: their steps against AdamW's, and their checkpoints."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from swarm import torchao
from swarm.errors import CheckpointError, PolicyError
from swarm.policy.loading import Policy
from swarm.policy.ranks import Ranks
from swarm.sapo.mixing import MixSettings
from swarm.training.checkpoint import CheckpointStore, restore
from swarm.training.config import OptimizerName, UpdateSettings
from swarm.training.optimizers import OffloadedAdamW
from swarm.training.updater import PolicyUpdater
from tests.policy.test_adapters import _state
from tests.policy.test_updater import _group


def _updater(policy: Policy, optimizer: OptimizerName) -> PolicyUpdater:
    settings = UpdateSettings(learning_rate=1e-3, weight_decay=0.1, optimizer=optimizer)
    return PolicyUpdater(policy, settings, MixSettings(), 1.0)


def _learn(updater: PolicyUpdater, policy: Policy) -> None:
    assert not updater.update([_group(policy)], []).skipped


def test_steps_are_those_of_adamw_and_go_on_from_its_checkpoint(policy: Policy, tmp_path: Path) -> None:
    twin = copy.deepcopy(policy)
    plain, offloaded = _updater(policy, "adamw"), _updater(twin, "adamw_offloaded")
    for _ in range(2):
        _learn(plain, policy)
        _learn(offloaded, twin)
    path = CheckpointStore(tmp_path).save(policy, plain, _state(), "{}")
    third = copy.deepcopy(policy)
    resumed = _updater(third, "adamw_offloaded")
    restore(path, resumed)
    for updater, each in ((plain, policy), (offloaded, twin), (resumed, third)):
        _learn(updater, each)
    for one, *others in zip(*(each.model.parameters() for each in (policy, twin, third)), strict=True):
        for other in others:
            torch.testing.assert_close(one, other, atol=0, rtol=0)


def test_a_weight_without_a_gradient_stays(policy: Policy) -> None:
    optimizer = OffloadedAdamW(policy.trained, lr=1.0)
    before = [parameter.clone() for parameter in policy.trained]
    optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(before, policy.trained, strict=True))
    assert not optimizer.state


def test_several_processes_are_refused(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "size", 2)
    with pytest.raises(PolicyError, match="must not be adamw_offloaded"):
        _updater(policy, "adamw_offloaded")


@pytest.fixture
def eagerly() -> Iterator[None]:
    """Compiling torchao's step for a CPU needs a C++ compiler."""
    if not torchao.is_installed():
        pytest.skip("needs the extra torchao")
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


def test_moments_of_8_bits_move_the_weights_nearly_alike_and_are_kept(
    policy: Policy, tmp_path: Path, eagerly: None
) -> None:
    twin, before = copy.deepcopy(policy), copy.deepcopy(policy)
    plain, small = _updater(policy, "adamw"), _updater(twin, "adamw_8bit")
    for _ in range(3):
        _learn(plain, policy)
        _learn(small, twin)

    def moved(one: Policy, other: Policy) -> float:
        pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
        return float(torch.cat([(a - b).flatten() for a, b in pairs]).detach().norm())

    assert moved(twin, policy) < 0.1 * moved(policy, before)
    path = CheckpointStore(tmp_path).save(twin, small, _state(), "{}")
    third = copy.deepcopy(twin)
    resumed = _updater(third, "adamw_8bit")
    restore(path, resumed)
    _learn(small, twin)
    _learn(resumed, third)
    assert moved(third, twin) == 0
    with pytest.raises(CheckpointError, match="update.optimizer"):
        restore(path, _updater(policy, "adamw"))


def test_without_torchao_there_is_a_command(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(PolicyError, match="make install-torchao"):
        _updater(policy, "adamw_8bit")
