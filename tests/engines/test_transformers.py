from __future__ import annotations

import pytest
import torch

from swarm.engines.transformers import TransformersEngine, sample
from swarm.errors import Interrupted
from swarm.policy.loading import Policy
from swarm.policy.logprobs import completion_logprobs
from swarm.types import Sampling

PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4", "a much longer prompt than the others, in single letters"]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_agree_with_a_teacher_forced_pass(policy: Policy, temperature: float) -> None:
    engine = TransformersEngine(policy, GenerationSettings(max_batch_sequences=64))
    sampling = Sampling(temperature=temperature, max_new_tokens=24)
    groups = engine.generate(PROMPTS, 5, sampling, seed=1)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert len(group) == 5
        ids = [list(completion.token_ids) for completion in group]
        with torch.no_grad():
            expected = completion_logprobs(policy, [policy.encode_prompt(prompt)] * 5, ids, temperature)
        for completion, row in zip(group, expected, strict=True):
            assert completion.logprobs == pytest.approx(row[: len(completion.logprobs)].tolist(), abs=1e-4)


def test_the_seed_decides(policy: Policy) -> None:
    engine = TransformersEngine(policy, GenerationSettings(max_batch_sequences=64))
    sampling = Sampling(max_new_tokens=8)
    first = engine.generate(PROMPTS, 4, sampling, seed=1)
    torch.rand(3)  # the global generator has no say
    assert engine.generate(PROMPTS, 4, sampling, seed=1) == first
    assert engine.generate(PROMPTS, 4, sampling, seed=2) != first


def test_finish_reasons_and_lengths(policy: Policy) -> None:
    engine = TransformersEngine(policy, GenerationSettings(max_batch_sequences=64))
    completions = [c for group in engine.generate(PROMPTS * 10, 4, Sampling(max_new_tokens=30), 3) for c in group]
    reasons = {completion.finish_reason for completion in completions}
    assert reasons == {"stop", "length"}, "both occur in 120 samples of a random policy"
    for completion in completions:
        ended = completion.token_ids[-1] in policy.stop_ids
        assert ended == (completion.finish_reason == "stop")
        assert not set(completion.token_ids[:-1]) & policy.stop_ids
        assert ended or len(completion.token_ids) == 30
        assert "<eos>" not in completion.text


def test_batches_are_bounded_and_order_is_kept(policy: Policy) -> None:
    widths = []
    engine = TransformersEngine(policy, GenerationSettings(max_batch_sequences=6))
    forward = policy.model.forward

    def spy(*args: object, **kwargs: object) -> object:
        widths.append(kwargs["input_ids"].shape[0])
        return forward(*args, **kwargs)

    policy.model.forward = spy
    groups = engine.generate([f"Calculate {k} + 1." for k in range(7)], 3, Sampling(max_new_tokens=4), 0)
    assert len(groups) == 7 and all(len(group) == 3 for group in groups)
    assert max(widths) <= 6


def test_a_prompt_without_room_gets_no_completions_and_the_others_go_on(policy: Policy) -> None:
    engine = TransformersEngine(policy, GenerationSettings(max_batch_sequences=64))
    groups = engine.generate(["x" * 600, PROMPTS[0]], 2, Sampling(max_new_tokens=4), 0)
    assert groups[0] == ()
    assert len(groups[1]) == 2


def test_cancelling_stops_between_two_tokens(policy: Policy) -> None:
    answers = iter([False, False, True])
    engine = TransformersEngine(policy, 64, cancelled=lambda: next(answers))
    with pytest.raises(Interrupted):
        engine.generate(PROMPTS, 2, Sampling(max_new_tokens=50), 0)


def test_sampling_follows_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).repeat(20_000, 1)
    generator = torch.Generator().manual_seed(0)
    tokens, logprobs = sample(logits, Sampling(), generator)
    frequencies = torch.bincount(tokens, minlength=3) / len(tokens)
    torch.testing.assert_close(frequencies, torch.tensor([0.6, 0.3, 0.1]), atol=0.015, rtol=0)
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.6, 0.3, 0.1])[tokens], atol=1e-6, rtol=0)


def test_top_p_keeps_the_smallest_sufficient_set_and_reports_its_logprobs() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(5_000, 1)
    tokens, logprobs = sample(logits, Sampling(top_p=0.75), torch.Generator().manual_seed(0))
    assert set(tokens.tolist()) == {0, 1}
    expected = torch.tensor([0.5, 0.3]) / 0.8
    torch.testing.assert_close(logprobs.exp(), expected[tokens], atol=1e-6, rtol=0)
