"""The type of forward passes, and that it never costs precision of the weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from swarm.errors import PolicyError
from swarm.policy import devices
from swarm.policy.config import LoraSettings, PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.reading import outline
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from tests.policy.test_updater import _group


@pytest.mark.parametrize(
    ("has_instructions", "least", "expected"),
    [(True, 1, torch.bfloat16), (True, 10**9, torch.float32), (False, 1, torch.float32)],
    ids=["large enough", "too small", "no instructions"],
)
def test_a_cpu_computes_in_bfloat16_where_that_is_faster(
    policy: Policy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_instructions: bool,
    least: int,
    expected: torch.dtype,
) -> None:
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: has_instructions)
    monkeypatch.setattr(devices, "BFLOAT16_PARAMETERS", least)
    policy.save(tmp_path)
    loaded = load_policy(PolicySettings(model=str(tmp_path), device="cpu"))
    assert loaded.dtype == expected
    assert {parameter.dtype for parameter in loaded.trained} == {torch.float32}
    assert load_policy(PolicySettings(model=str(tmp_path), device="cpu", dtype="float32")).dtype == torch.float32


@pytest.mark.parametrize("instruction", ["avx512_bf16", "amx_bf16", "avx512_f"])
def test_the_instructions_are_those_that_torch_finds(monkeypatch: pytest.MonkeyPatch, instruction: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", instruction: True})
    assert devices.multiplies_bfloat16() == (instruction != "avx512_f")


def test_a_models_outline_has_its_size_and_no_weights(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    found = outline(str(tmp_path), None, False)
    assert found.num_parameters() == policy.model.num_parameters()
    assert {parameter.device.type for parameter in found.parameters()} == {"meta"}
    with pytest.raises(PolicyError, match="cannot read the configuration of model"):
        outline(str(tmp_path / "nowhere"), None, False)


def test_weights_that_are_only_handed_over_are_kept_rounded_and_off_the_device(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    settings = PolicySettings(model=str(tmp_path), device="meta", dtype="bfloat16")
    loaded = load_policy(settings, only_handed_over=True)
    assert {(weight.device.type, weight.dtype) for weight in loaded.trained} == {("cpu", torch.bfloat16)}
    assert loaded.compute_dtype == torch.bfloat16


def test_steps_too_small_for_bfloat16_still_move_the_weights(policy: Policy) -> None:
    """At a learning rate of 1e-5 a step is far below the spacing of bfloat16 near most weights."""
    before = copy.deepcopy(policy.model)
    policy.dtype = torch.bfloat16
    updater = PolicyUpdater(policy, UpdateSettings(learning_rate=1e-5), MixSettings(), temperature=1.0)
    assert not updater.update([_group(policy)], []).skipped
    moved = lost = total = 0
    for old, new in zip(before.parameters(), policy.model.parameters(), strict=True):
        moved += int((old != new).sum())
        lost += int(((old != new) & (old.bfloat16() == new.bfloat16())).sum())
        total += old.numel()
    assert moved > 0.5 * total and lost > 0.8 * moved


def test_frozen_weights_take_the_type_that_was_chosen(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="needs the extra lora")
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(devices, "BFLOAT16_PARAMETERS", 1)
    policy.save(tmp_path)
    loaded = load_policy(PolicySettings(model=str(tmp_path), device="cpu", lora=LoraSettings(rank=2)))
    assert {(p.requires_grad, p.dtype) for p in loaded.model.parameters()} == {
        (True, torch.float32),
        (False, torch.bfloat16),
    }
