"""The tokens of a training pass, from free memory; the GPU's allocator is a double."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import PreTrainedModel

from swarm.policy.batching import Padded
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer
from swarm.sapo.mixing import MixSettings
from swarm.training import forward
from swarm.training.config import UpdateSettings
from swarm.training.forward import (
    COMPILED_SHARE,
    USED_FRACTION,
    ForwardRunner,
    PassMemory,
    TrainingLayers,
    bytes_for_a_pass,
    is_checkpointed,
    measure,
)
from swarm.training.rows import Row
from swarm.training.sketches import Sketcher
from swarm.training.updater import PolicyUpdater
from tests.policy.exact import exact
from tests.policy.test_memory import _group

MEMORY = PassMemory(fixed_bytes=1_000, token_bytes=10, head_token_bytes=400, most_head_bytes=8_000)


def _needed(num_tokens: int) -> int:
    """What an allocator would be asked for."""
    head = min(MEMORY.head_token_bytes * num_tokens, MEMORY.most_head_bytes)
    return MEMORY.fixed_bytes + MEMORY.token_bytes * num_tokens + head


@pytest.mark.parametrize("free", [1_410, 3_000, 9_205, 9_210, 20_000, 10**6])
def test_the_largest_pass_that_fits_is_taken(free: int) -> None:
    tokens = MEMORY.tokens_within(free)
    assert _needed(tokens) <= free < _needed(tokens + 1)


def test_without_memory_it_is_one_token() -> None:
    assert MEMORY.tokens_within(0) == 1


def test_two_small_passes_foretell_a_large_one(policy: Policy) -> None:
    scorer = Scorer(policy, 1.0, Padded())
    plain, checkpointed = measure(policy, scorer)
    expected = forward._kept_bytes(policy, scorer, 400)
    assert plain.fixed_bytes + 400 * plain.token_bytes == pytest.approx(expected, rel=0.1)
    layers = policy.model.config.num_hidden_layers
    inputs = layers * policy.model.config.hidden_size * 4
    assert checkpointed.token_bytes == inputs + plain.token_bytes // layers
    assert measure(policy, scorer, compiled=True)[0].token_bytes == round(COMPILED_SHARE * plain.token_bytes)
    assert inputs + plain.token_bytes // layers < plain.token_bytes / 1.5


def test_gradients_and_optimizer_take_their_share_first(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = sum(parameter.numel() for parameter in policy.trained)
    monkeypatch.setattr(forward, "free_bytes", lambda device: 12 * weights + 1_000_000)
    assert bytes_for_a_pass(policy, "adamw") == USED_FRACTION * 1_000_000
    assert bytes_for_a_pass(policy, "adamw_offloaded") == int(USED_FRACTION * (8 * weights + 1_000_000))
    assert bytes_for_a_pass(policy, "adamw_8bit") == int(USED_FRACTION * (6 * weights + 1_000_000))
    for parameter in policy.trained:
        parameter.grad = torch.zeros_like(parameter)
    assert bytes_for_a_pass(policy, "adamw") == int(USED_FRACTION * (12 * weights + 1_000_000))


def test_an_update_within_the_free_memory_is_the_same_update(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = exact(policy)
    groups = [_group(index) for index in range(3)]
    settings = UpdateSettings(learning_rate=1e-3, batching="padded")
    twin, sizes = copy.deepcopy(policy), []
    expected = PolicyUpdater(policy, settings, MixSettings(), 1.0).update([], groups)
    monkeypatch.setattr(forward, "LIMITED", ("cpu",))
    monkeypatch.setattr(forward, "measure", lambda *args: (MEMORY, MEMORY))
    monkeypatch.setattr(forward, "bytes_for_a_pass", lambda policy, optimizer: _needed(80))
    updater = PolicyUpdater(twin, settings, MixSettings(), 1.0)
    twin.model.register_forward_pre_hook(lambda m, args, kw: sizes.append(kw["input_ids"].numel()), with_kwargs=True)
    report = updater.update([], groups)
    assert 40 < max(sizes) <= 80
    assert report.figures["loss"] == pytest.approx(expected.figures["loss"], abs=1e-12)
    for ours, theirs in zip(twin.model.parameters(), policy.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("device", "expected"), [("cuda", True), ("cpu", False), ("mps", False)])
def test_layers_are_checkpointed_on_cuda_by_default(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, device: str, expected: bool
) -> None:
    monkeypatch.setattr(PreTrainedModel, "device", torch.device(device))
    assert TrainingLayers(policy.model, False, UpdateSettings().gradient_checkpointing).checkpointed == expected
    assert not TrainingLayers(policy.model, False, False).checkpointed
    assert not is_checkpointed(None, device, possible=False)


@pytest.mark.parametrize(("room", "checkpointed"), [(_needed(4_096), False), (_needed(4_095), True)])
def test_layers_are_checkpointed_where_passes_would_be_short_without(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, room: int, checkpointed: bool
) -> None:
    chosen = _choosing(policy, monkeypatch, room)
    chosen.attempt(lambda tokens: tokens, [])
    assert chosen._layers.checkpointed == checkpointed
    assert chosen._budget.tokens == MEMORY.tokens_within(room)


def test_when_memory_runs_out_layers_are_checkpointed_before_passes_become_shorter(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, tried = _choosing(policy, monkeypatch, 10**6), []

    def work(tokens: int) -> None:
        tried.append((chosen._layers.checkpointed, tokens))
        if len(tried) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    chosen.attempt(work, [Row([1], [2], 0.0, None)])
    assert tried == [(False, 16_384), (True, 16_384), (True, 8_192)]


def _choosing(policy: Policy, monkeypatch: pytest.MonkeyPatch, room: int) -> ForwardRunner:
    """Passes that choose their layers and tokens, as with CUDA, for so many bytes."""
    monkeypatch.setattr(forward, "LIMITED", ("cpu",))
    monkeypatch.setattr(forward, "MICRO_BATCH_TOKENS", {"cpu": 16_384})
    monkeypatch.setattr(forward, "measure", lambda *args: (MEMORY, MEMORY))
    monkeypatch.setattr(forward, "bytes_for_a_pass", lambda policy, optimizer: room)
    monkeypatch.setattr(forward, "is_checkpointed", lambda chosen, device, possible: chosen is not False)
    settings = UpdateSettings()
    return ForwardRunner(policy, settings, 1.0, Sketcher(policy, settings))
