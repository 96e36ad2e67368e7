"""Updates on questions with pictures and sounds, against a loop over single rows in transformers' own way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from swarm.policy.adapters import Adapters
from swarm.policy.config import LoraSettings
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup, PolicyId
from tests import readers
from tests.example_groups import rollout_group
from tests.policy.completions import completion_logprobs

ANSWERS = ([30, 31, 32, 1], [40, 1], [33, 34, 35, 36, 37, 1])
REWARDS = (1.0, 0.0, 0.25)


@pytest.fixture(params=readers.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _group(policy: Policy, family: str, number: int) -> GradedGroup:
    completions = tuple(Completion(policy.decode(ids), "stop", tuple(ids), (-1.0,) * len(ids)) for ids in ANSWERS)
    group = rollout_group(completions=completions, rewards=REWARDS, policy=PolicyId("random", policy.tokenizer_hash, 0))
    return GradedGroup(group, readers.question(family, number), REWARDS)


def _loss(policy: Policy, family: str, numbers: Sequence[int], advantages: Sequence[float]) -> Tensor:
    terms = [
        advantage * readers.own_logprobs(policy, family, number, answer).mean()
        for number in numbers
        for answer, advantage in zip(ANSWERS, advantages, strict=True)
    ]
    return -torch.stack(terms).mean()


@pytest.mark.parametrize("encoder", ["frozen", "trained"])
@pytest.mark.parametrize("batching", ["padded", "packed"])
def test_the_gradient_is_that_of_a_loop_over_rows(
    family: str, batching: str, encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, twin = (readers.load(family, tmp_path, encoder=encoder) for _ in range(2))
    for each in (policy, twin):
        each.model.double()
    assert policy.media is not None and twin.media is not None
    policy.media.encoder.dtype = torch.float64
    settings = UpdateSettings(
        learning_rate=1e-3, max_grad_norm=1e9, batching=batching, micro_batch_tokens=4_000, minibatches=1
    )
    updater = PolicyUpdater(policy, settings, MixSettings(external_negative_weight=1.0), 1.0)
    steps: list[dict[str, Tensor]] = []
    updater.optimizer.register_step_pre_hook(
        lambda *_: steps.append({n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None})
    )
    encoded = readers.calls_of(monkeypatch, policy.media.encoder, "_computed")
    updater.update([], [_group(policy, family, number) for number in (0, 1)])
    assert len(encoded) == 2, "two questions, six rows"
    _loss(twin, family, (0, 1), updater.advantages(REWARDS)).backward()
    (found,) = steps
    wanted = {name: weight.grad for name, weight in twin.model.named_parameters() if weight.grad is not None}
    assert found.keys() == wanted.keys()
    assert any("vis" in name or "audio" in name for name in found) == (encoder == "trained")
    for name, gradient in wanted.items():
        assert gradient is not None
        assert (found[name] - gradient).abs().max() <= 1e-6 * max(1.0, float(gradient.abs().max())), name


def test_adapters_are_in_the_language_part_alone(family: str, tmp_path: Path) -> None:
    policy = readers.load(family, tmp_path)
    Adapters(policy.model, LoraSettings(rank=2))
    trained = [name for name, weight in policy.model.named_parameters() if weight.requires_grad]
    assert trained
    assert all("language_model" in name or "text_model" in name for name in trained)
    assert not any("vis" in name.split(".lora")[0] or "audio" in name for name in trained)


def test_an_update_changes_the_language_part_and_nothing_else(family: str, tmp_path: Path) -> None:
    policy = readers.load(family, tmp_path)
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    updater = PolicyUpdater(policy, UpdateSettings(learning_rate=1e-2), MixSettings(), 1.0)
    assert not updater.update([_group(policy, family, 0)], []).skipped
    changed = {name for name, weight in policy.model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed
    assert changed <= {name for name, weight in policy.model.named_parameters() if weight.requires_grad}


def test_a_saved_policy_reads_pictures_as_before(family: str, tmp_path: Path) -> None:
    policy = readers.load(family, tmp_path / "first")
    policy.save(tmp_path / "second")
    from swarm.policy.config import PolicySettings
    from swarm.policy.loading import load_policy

    again = load_policy(PolicySettings(model=str(tmp_path / "second"), dtype="float32", system_prompt=""))
    assert policy.media is not None and again.media is not None
    assert again.media.reader.digest == policy.media.reader.digest
    found = [readers.own_logprobs(each, family, 0, ANSWERS[0]) for each in (policy, again)]
    assert torch.equal(*found)


def test_features_of_a_trained_encoder_follow_its_weights(family: str, tmp_path: Path) -> None:
    policy = readers.load(family, tmp_path, encoder="trained")
    assert policy.media is not None
    prompt = policy.encode_prompt(readers.question(family, 0))
    before = completion_logprobs(policy, [prompt], [ANSWERS[0]], 1.0).detach()
    updater = PolicyUpdater(policy, UpdateSettings(learning_rate=1e-2), MixSettings(), 1.0)
    assert not updater.update([_group(policy, family, 0)], []).skipped
    with torch.no_grad():
        after = completion_logprobs(policy, [prompt], [ANSWERS[0]], 1.0)[0]
    assert not torch.equal(before[0], after)
    assert (after - readers.own_logprobs(policy, family, 0, ANSWERS[0])).abs().max() < 1e-4


@pytest.mark.parametrize("encoder", ["frozen", "trained"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_reference_reads_the_same_pictures(family: str, encoder: str, rank: int, tmp_path: Path) -> None:
    lora = LoraSettings(rank=rank)
    policy = readers.load(family, tmp_path, encoder=encoder, lora=lora)
    initial = readers.load(family, tmp_path, encoder=encoder) if rank == 0 else None
    settings = UpdateSettings(learning_rate=3e-2, reference_kl=0.1)
    updater = PolicyUpdater(policy, settings, MixSettings(), 1.0, initial)
    first, later = (updater.update([], [_group(policy, family, 0)]).figures["kl"] for _ in range(2))
    assert abs(first) < 1e-6, "both are the initial policy"
    assert later > 1e-5
