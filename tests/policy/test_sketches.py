"""Sketches against gradients computed apart, and the update that they must not change."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.training import sketches
from swarm.training.config import UpdateSettings
from swarm.training.sketches import Sketcher
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup
from tests.engines.models import make
from tests.example_groups import rollout_group
from tests.policy.exact import exact

TEXTS = ("<answer>19</answer>", "19", "3", "a rather long completion that is wrong")
NO_CLIP = 1e9


def _group(index: int, rewards: tuple[float, ...], texts: Sequence[str] = TEXTS) -> GradedGroup:
    group = rollout_group(index=index, completions=tuple(Completion(text, "stop") for text in texts))
    return GradedGroup(group, f"Calculate {index} + 7.", rewards)


GROUPS = [_group(0, (1.0, 0.0, 0.0, 0.0)), _group(1, (0.0, 1.0, 0.0, 1.0)), _group(2, (0.0, 0.0, 1.0, 0.0))]


def _updater(policy: Policy, **settings: object) -> PolicyUpdater:
    values = {"learning_rate": 1e-3, "max_grad_norm": NO_CLIP, "minibatches": 1, **settings}
    return PolicyUpdater(policy, UpdateSettings.model_validate(values), MixSettings(), 1.0)


def _sketched(policy: Policy, groups: Sequence[GradedGroup] = GROUPS, **settings: object) -> np.ndarray:
    updater = _updater(policy, **settings)
    updater.sketcher.begin_sketches()
    updater.update([], groups)
    found = updater.sketcher.take_sketches()
    assert found is not None
    return found


def _gradient(policy: Policy, groups: Sequence[GradedGroup], monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The gradient of an update on these groups alone, in the order of the model's linear layers."""
    twin = copy.deepcopy(policy)
    updater = _updater(twin)
    found = []
    head = twin.model.get_output_embeddings()
    layers = [m for m in twin.model.modules() if isinstance(m, nn.Linear) and m is not head]

    def step() -> None:
        found.append(torch.cat([m.weight.grad.flatten() for m in layers if m.weight.grad is not None]).numpy())

    with monkeypatch.context() as patch:
        patch.setattr(updater.optimizer, "step", step)
        updater.update([], groups)
    return found[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"batching": "packed"},
        {"batching": "packed", "micro_batch_tokens": 60},
        {"batching": "padded"},
        {"batching": "padded", "micro_batch_tokens": 60},
        {"gradient_checkpointing": True},
        {"epochs": 2},
    ],
    ids=str,
)
def test_sketches_are_the_gradients_of_each_group_alone(
    policy: Policy, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketches, "MAX_WIDTH", 10_000)
    policy = exact(policy)
    found = _sketched(copy.deepcopy(policy), **settings)
    assert len(found) == len(GROUPS)
    for sketch, group in zip(found, GROUPS, strict=True):
        expected = _gradient(policy, [group], monkeypatch)
        np.testing.assert_allclose(sketch, expected, atol=1e-5 * np.abs(expected).max())
    whole = _gradient(policy, GROUPS, monkeypatch)
    np.testing.assert_allclose(found.mean(axis=0), whole, atol=1e-5 * np.abs(whole).max())


@pytest.mark.parametrize("how", [{"minibatches": 2}, {"minibatches": 9}, {"minibatches": 2, "epochs": 2}], ids=str)
def test_the_groups_of_every_step_are_sketched_once(
    policy: Policy, how: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With steps too small to change the gradients of later ones."""
    monkeypatch.setattr(sketches, "MAX_WIDTH", 10_000)
    policy = exact(policy)
    expected = _sketched(copy.deepcopy(policy))
    found = _sketched(copy.deepcopy(policy), **how, learning_rate=1e-12)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_projections_keep_the_angles_between_gradients(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "MAX_WIDTH", 10_000)
    exactly = _sketched(copy.deepcopy(policy))
    monkeypatch.setattr(sketches, "MAX_WIDTH", 32)
    projected = _sketched(copy.deepcopy(policy))
    assert projected.shape[1] < exactly.shape[1] / 3
    for found in (exactly, projected):
        found /= np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(projected @ projected.T, exactly @ exactly.T, atol=0.1)


def test_half_precision_is_sketched_in_single_precision(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "MAX_WIDTH", 32)
    half = copy.deepcopy(policy)
    half.dtype = torch.bfloat16
    ours, expected = _sketched(half), _sketched(policy)
    assert ours.dtype == np.float32
    for sketch, wanted in zip(ours, expected, strict=True):
        assert sketch @ wanted > 0.99 * np.linalg.norm(sketch) * np.linalg.norm(wanted)


def test_the_update_is_the_same_to_the_last_digit(policy: Policy) -> None:
    twin = copy.deepcopy(policy)
    measured, plain = _updater(policy, max_grad_norm=0.1), _updater(twin, max_grad_norm=0.1)
    for _ in range(2):
        measured.sketcher.begin_sketches()
        assert measured.update(GROUPS[:1], GROUPS[1:]) == plain.update(GROUPS[:1], GROUPS[1:])
        assert measured.sketcher.take_sketches() is not None
    for ours, theirs in zip(policy.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_groups_with_the_same_completions_have_their_own_sketches(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketches, "MAX_WIDTH", 10_000)
    policy = exact(policy)
    first, second = GROUPS[:2]
    doubled = replace(
        first,
        group=replace(first.group, completions=first.group.completions * 2, rewards=first.group.rewards * 2),
        rewards=first.rewards * 2,
    )
    groups = [doubled, first, second]
    updater = _updater(copy.deepcopy(policy), batching="padded")  # packed rows share a prompt, and so its gradient
    updater.sketcher.begin_sketches()
    updater.update([], groups)
    found = updater.sketcher.take_sketches()
    assert found is not None
    for sketch, group in zip(found, groups, strict=True):
        expected = _gradient(policy, [group], monkeypatch)
        np.testing.assert_allclose(sketch / np.linalg.norm(sketch), expected / np.linalg.norm(expected), atol=1e-5)


def test_only_a_wanted_update_is_read_and_no_hook_stays(policy: Policy) -> None:
    updater = _updater(policy)
    updater.update([], GROUPS)
    assert updater.sketcher.take_sketches() is None and updater.sketcher.seconds == 0
    updater.sketcher.begin_sketches()
    updater.update([], [])
    assert updater.sketcher.take_sketches() is None
    updater.sketcher.begin_sketches()
    updater.update([], GROUPS)
    assert updater.sketcher.take_sketches() is not None and updater.sketcher.seconds > 0
    assert not any(module._forward_hooks for module in policy.model.modules())


def test_a_gradient_computed_anew_after_memory_ran_out_counts_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = exact(policy)
    expected = _sketched(copy.deepcopy(policy))
    updater = _updater(policy, micro_batch_tokens=20)
    score, calls = updater._runner._score, []

    def scarce(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("out of memory")
        return score(*arguments)

    monkeypatch.setattr(updater._runner, "_score", scarce)
    updater.sketcher.begin_sketches()
    updater.update([], GROUPS)
    found = updater.sketcher.take_sketches()
    assert found is not None and len(calls) > 3
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_a_large_model_is_sketched_in_bounded_memory(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "MAX_LAYERS", 3)
    monkeypatch.setattr(sketches, "MAX_WIDTH", 8)
    assert _sketched(policy).shape == (len(GROUPS), 3 * 8 * 8)


def test_what_cannot_be_sketched_is_said() -> None:
    llama = make("llama")
    assert Sketcher(llama, UpdateSettings()).refusal is None
    assert Sketcher(llama, UpdateSettings(compile=True)).refusal == "update.compile is set"
    assert "no linear layers" in (Sketcher(make("gpt2"), UpdateSettings()).refusal or "")
    llama.dtype = torch.float16
    assert Sketcher(llama, UpdateSettings()).refusal == "float16 scales the loss"
    llama.ranks.size = 2
    assert Sketcher(llama, UpdateSettings()).refusal == "several processes share the policy"
