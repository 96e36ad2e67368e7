"""The end of a thought that an engine inserts: when, and that all else stays exact."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import SamplingError
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.types import Completion, Context, NextTurn, Past, Sampling, Step
from swarm.types.thoughts import parts_of
from tests.engines.play import SHOWN, Play
from tests.thinking_models import FAMILIES, policy_of

LIMITED = Sampling(max_new_tokens=24, max_thinking_tokens=7)
PROMPTS = ["3 + 4?", "a longer question than the other: 12 + 12?"]


def exact_logprobs(policy: Policy, context: Context, completion: Completion) -> list[float]:
    """Of the sampled tokens, in one pass over all that the model read."""
    past = policy.encode(context)
    read = policy.with_end_of_thought(completion.token_ids, completion.forced)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*past, *read]]), use_cache=False).logits[0, len(past) - 1 : -1]
    values = torch.log_softmax(logits.float(), dim=-1).gather(1, torch.tensor(read)[:, None])[:, 0].tolist()
    if completion.forced is None:
        return values
    return values[: completion.forced] + values[completion.forced + len(policy.end_of_thought) :]


def generate(policy: Policy, sampling: Sampling = LIMITED, seed: int = 1, **settings: object) -> list[Completion]:
    engine = TransformersEngine(policy, GenerationSettings(**settings))
    return [each for answers in engine.generate(PROMPTS, 6, sampling, seed) for each in answers]


@pytest.mark.parametrize("name", ["qwen3 opened", "deepseek-r1"])
def test_a_long_thought_ends_at_its_limit_and_an_answer_follows(name: str) -> None:
    policy = policy_of(FAMILIES[name])
    completions = generate(policy)
    forced = [each for each in completions if each.forced is not None]
    assert forced and all(each.forced == 7 for each in forced)
    for index, each in enumerate(completions):
        context = PROMPTS[index // 6]
        assert len(each.logprobs) == len(each.token_ids) == sum(span.num_tokens for span in each.versions)
        assert each.logprobs == pytest.approx(exact_logprobs(policy, context, each), abs=1e-4)
        assert each.text == policy.said(each.token_ids, each.forced)
    for each in forced:
        assert parts_of(each.text).answer is not None
        assert len(each.token_ids) + len(policy.end_of_thought) <= LIMITED.max_new_tokens
    assert any(each.finish_reason == "length" for each in forced)


def test_up_to_the_limit_the_samples_are_those_without_it() -> None:
    policy = policy_of(FAMILIES["qwen3 opened"])
    free = generate(policy, replace(LIMITED, max_thinking_tokens=0))
    for limited, each in zip(generate(policy), free, strict=True):
        assert each.forced is None
        assert limited.token_ids[:7] == each.token_ids[:7]
        if limited.forced is None:
            assert limited == each


@pytest.mark.parametrize("settings", [{"max_batch_sequences": 2}, {"max_batch_tokens": 256}, {"max_batch_tokens": 320}])
def test_waiting_and_evicted_sequences_say_the_same(settings: dict[str, int]) -> None:
    policy = policy_of(FAMILIES["qwen3 opened"])
    sampling = Sampling(max_new_tokens=70, max_thinking_tokens=30)
    assert [(each.token_ids, each.forced) for each in generate(policy, sampling, **settings)] == [
        (each.token_ids, each.forced) for each in generate(policy, sampling)
    ]


def test_versions_count_sampled_tokens_alone() -> None:
    """New weights at every step: each token has the version that sampled it."""
    policy = policy_of(FAMILIES["qwen3 opened"])
    engine = TransformersEngine(policy, GenerationSettings(kv="recompute"))
    version = 0

    def step() -> bool:
        nonlocal version
        version += 1
        swap_weights(policy, {name: value.clone() for name, value in policy.weights.items()}, version)
        return False

    engine._cancelled = step
    completions = [each for answers in engine.generate(PROMPTS, 2, LIMITED, 1) for each in answers]
    assert any(each.forced is not None for each in completions)
    for index, each in enumerate(completions):
        assert [span.num_tokens for span in each.versions] == [1] * len(each.token_ids)
        assert each.logprobs == pytest.approx(exact_logprobs(policy, PROMPTS[index // 2], each), abs=1e-4)


class Thinking(Play):
    """Its episodes continue with what was inserted."""

    def run(self, engine: TransformersEngine) -> list[tuple[NextTurn, Completion]]:
        for episode, (said,) in engine.stream((), 1, LIMITED, 3, self):
            turn = self._asked[episode]
            self.answered.append((turn, said))
            if turn.number < self._num_turns:
                past = turn.context if isinstance(turn.context, Past) else Past(turn.context, ())
                step = Step(said.token_ids, SHOWN, said.forced)
                self._ready.append(NextTurn(episode, turn.number + 1, Past(past.prompt, (*past.steps, step))))
        return self.answered


def test_later_turns_read_what_was_inserted() -> None:
    policy = policy_of(FAMILIES["qwen3 opened"])
    played = Thinking(3).run(TransformersEngine(policy, GenerationSettings()))
    assert sum(said.forced is not None for _, said in played) >= 3
    for turn, said in played:
        assert said.logprobs == pytest.approx(exact_logprobs(policy, turn.context, said), abs=1e-4)


def test_no_end_is_inserted_where_no_thought_is_open() -> None:
    """Qwen3 without a thought, and with thinking off."""
    assert all(each.forced is None for each in generate(policy_of(FAMILIES["qwen3"])))
    assert all(each.forced is None for each in generate(policy_of(FAMILIES["qwen3 off"])))


@pytest.mark.parametrize(
    ("name", "sampling", "message"),
    [
        ("llama3", LIMITED, "max_thinking_tokens is 7, but thinker has no tokens that mark a thought"),
        ("qwen3", replace(LIMITED, max_new_tokens=9), "must leave room for an answer within max_new_tokens 9, got 7"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(name: str, sampling: Sampling, message: str) -> None:
    engine = TransformersEngine(policy_of(FAMILIES[name]), GenerationSettings())
    with pytest.raises(SamplingError, match=message):
        engine.check(sampling)
