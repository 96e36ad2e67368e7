"""Experts met at generation are met again in training, whatever the layout, and are nobody else's business."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import PolicyError
from swarm.net.records.wire import Limits, group_problems
from swarm.policy.batching import Batching, Insert, Packed, Padded
from swarm.policy.experts import Routing
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer
from swarm.policy.tiny import tiny_tokenizer
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup, Message, PolicyId, Sampling, UpdateReport
from tests import readers
from tests.engines.models import make
from tests.example_groups import rollout_group

PROMPTS = ["Calculate 12 + 7.", "a longer prompt than the other, in single letters"]
LAYERS, TOP_K = 2, 2
REWARDS = (1.0, 0.0, 0.0, 1.0)
MISMATCH = "sampling/sampling_logp_difference/mean"


@dataclass
class Sampled:
    """A row as the scorer takes it."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    routing: Routing | None
    inserts: tuple[Insert, ...] = ()


def experts(dtype: torch.dtype = torch.float32, normalised: bool = True, replayed: bool = True) -> Policy:
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        initializer_range=0.2,
        eos_token_id=1,
        pad_token_id=0,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        num_experts=16,
        num_experts_per_tok=TOP_K,
        moe_intermediate_size=32,
        norm_topk_prob=normalised,
    )
    return Policy("moe", Qwen3MoeForCausalLM(config), tokenizer, None, dtype, routing_replay=replayed)


def sampled(policy: Policy, num_tokens: int = 24, **settings: object) -> list[list[Completion]]:
    engine = TransformersEngine(policy, GenerationSettings(**settings))
    return [list(group) for group in engine.generate(PROMPTS, 4, Sampling(max_new_tokens=num_tokens), seed=1)]


def rows(
    policy: Policy, answers: list[list[Completion]], prompts: Sequence[str | tuple[Message, ...]] = PROMPTS
) -> list[Sampled]:
    found = []
    for prompt, group in zip(prompts, answers, strict=True):
        ids = policy.encode_prompt(prompt)
        for c in group:
            record = policy.routers.read(c.routing, len(ids) + len(c.token_ids) - 1)
            found.append(Sampled(ids, list(c.token_ids), list(c.logprobs), record))
    return found


def scores(policy: Policy, batch: list[Sampled], batching: Batching) -> torch.Tensor:
    with torch.no_grad(), policy.routers.replaying(), batching.attention(policy.model):
        return Scorer(policy, 1.0, batching)(batch).logprobs


def groups(policy: Policy, answers: list[list[Completion]]) -> list[GradedGroup]:
    return [
        GradedGroup(
            rollout_group(completions=tuple(group), rewards=REWARDS, policy=PolicyId("moe", policy.tokenizer_hash, 0)),
            prompt,
            REWARDS,
        )
        for prompt, group in zip(PROMPTS, answers, strict=True)
    ]


@pytest.mark.parametrize("settings", [{}, {"max_batch_sequences": 3}, {"max_batch_tokens": 256}])
def test_what_is_recorded_is_what_a_full_pass_chooses(settings: dict[str, object]) -> None:
    policy = experts()
    for row in rows(policy, sampled(policy, **settings)):
        with torch.no_grad(), policy.routers.recorded() as chosen:
            policy.model(input_ids=torch.tensor([[*row.prompt, *row.completion[:-1]]]))
        expected = torch.stack(chosen, dim=1).numpy()
        assert row.routing is not None and row.routing.shape == expected.shape == (len(expected), LAYERS, TOP_K)
        same = (np.sort(row.routing, axis=-1) == np.sort(expected, axis=-1)).mean()
        assert same > 0.99, "rounding may tip a choice or two"


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("batching", [Padded(), Packed()])
def test_a_replayed_pass_gives_what_the_engine_gave(batching: Batching, normalised: bool) -> None:
    policy = experts(normalised=normalised)
    batch = rows(policy, sampled(policy))
    replayed = scores(policy, batch, batching)
    for row, logprobs in zip(batch, replayed, strict=True):
        assert logprobs[: len(row.completion)].tolist() == pytest.approx(row.logprobs, abs=1e-4)


@pytest.mark.parametrize("batching", [Padded(), Packed()])
def test_each_token_meets_the_experts_of_its_own_record(batching: Batching) -> None:
    policy = experts()
    batch = rows(policy, sampled(policy))
    own = scores(policy, batch, batching)
    changed = batch[1].routing.copy()
    place = len(batch[1].prompt) + 2  # fed after the second completion token: the fourth is the first that it decides
    changed[place] = (changed[place] + 1) % 16
    batch[1].routing = changed
    other = scores(policy, batch, batching)
    differs = (own - other).abs() > 1e-6
    assert differs[1, 3:].any() and not differs[1, :3].any()
    assert not differs[[i for i in range(len(batch)) if i != 1]].any()
    for row in batch:
        row.routing = None
    torch.testing.assert_close(scores(policy, batch, batching), own, atol=1e-4, rtol=0)


def test_activations_computed_again_meet_the_same_experts() -> None:
    answers = sampled(experts())
    shifted = [[replace(c, routing=_elsewhere(c.routing)) for c in group] for group in answers]
    weights = []
    for checkpointing in (False, True):
        policy = experts()
        settings = UpdateSettings(learning_rate=1e-3, gradient_checkpointing=checkpointing)
        PolicyUpdater(policy, settings, MixSettings(), 1.0).update(groups(policy, shifted), groups(policy, answers)[:1])
        weights.append(list(policy.model.parameters()))
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_replay_brings_engine_and_trainer_together() -> None:
    """In bfloat16 and batches of different shape; a processor may choose another expert only once in thousands."""

    def report(replayed: bool) -> UpdateReport:
        policy = experts(torch.bfloat16, replayed=replayed)
        return PolicyUpdater(policy, UpdateSettings(), MixSettings(), 1.0).update(groups(policy, answers), [])

    answers = sampled(experts(torch.bfloat16), num_tokens=400)
    without, with_replay = report(False), report(True)
    assert 0 < with_replay.figures[MISMATCH] < without.figures[MISMATCH]


def test_the_record_stays_at_home() -> None:
    policy = experts()
    group = groups(policy, sampled(policy))[0].group
    assert "expert ids" in " ".join(group_problems(group, Limits()))
    clean = replace(group, completions=tuple(replace(c, routing=b"") for c in group.completions))
    assert list(group_problems(clean, Limits())) == []


def test_a_model_without_experts_is_refused() -> None:
    dense = make("qwen2")
    with pytest.raises(PolicyError, match="no known routers"):
        Policy("dense", dense.model, dense.tokenizer, None, routing_replay=True)


def _elsewhere(stored: bytes) -> bytes:
    return ((np.frombuffer(stored, "<u2") + 1) % 16).astype("<u2").tobytes()


def test_a_replayed_pass_over_a_picture_gives_what_the_engine_gave(tmp_path: Path) -> None:
    policy = readers.load("qwen3_vl_moe", tmp_path, routing_replay=True)
    questions = [readers.question("qwen3_vl", number) for number in range(2)]
    engine = TransformersEngine(policy, GenerationSettings())
    answers = engine.generate(questions, 4, Sampling(max_new_tokens=24), seed=1)
    batch = rows(policy, [list(group) for group in answers], questions)
    assert all(row.routing is not None for row in batch)
    for batching in (Padded(policy.mrope_positions), Packed(policy.mrope_positions)):
        for row, logprobs in zip(batch, scores(policy, batch, batching), strict=True):
            assert logprobs[: len(row.completion)].tolist() == pytest.approx(row.logprobs, abs=1e-4)
    turned = [other_experts(row) for row in batch]
    assert (
        max(
            abs(logprob - recorded)
            for row, logprobs in zip(turned, scores(policy, turned, Padded(policy.mrope_positions)), strict=True)
            for logprob, recorded in zip(logprobs[: len(row.completion)].tolist(), row.logprobs, strict=True)
        )
        > 1e-2
    ), "other experts give other log-probabilities: the records are used"


def other_experts(row: Sampled) -> Sampled:
    """The same row with other experts on record."""
    assert row.routing is not None
    return dataclasses.replace(row, routing=(row.routing + 1) % 8)
