"""What holds for every rollout engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers import TransformersEngine
from swarm.errors import Interrupted, SamplingError
from swarm.policy.loading import Policy
from swarm.protocols import StreamingEngine
from swarm.types import Answers, Completion, Rejection, Sampling
from tests.engines.reference import teacher_forced

PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4", "a much longer prompt than the others, in single letters"]
MakeEngine = Callable[..., StreamingEngine]


@pytest.fixture(params=["transformers"])
def make_engine(policy: Policy) -> MakeEngine:
    """An engine of each kind for the same policy; keyword arguments are generation settings."""

    def make(cancelled: Callable[[], bool] = lambda: False, **settings: object) -> StreamingEngine:
        return TransformersEngine(policy, GenerationSettings(**settings), cancelled)

    return make


def tokens(answers: list[Answers]) -> list[list[tuple[int, ...]]]:
    """[P][G] what does not depend on rounding."""
    return [[completion.token_ids for completion in answer] for answer in answers if not isinstance(answer, Rejection)]


def _completions(answers: list[Answers]) -> list[Completion]:
    return [completion for answer in answers if not isinstance(answer, Rejection) for completion in answer]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=24),
        Sampling(max_new_tokens=24, temperature=0.6),
        Sampling(max_new_tokens=24, temperature=1.3, top_p=0.8),
        Sampling(max_new_tokens=24, temperature=0.9, top_k=20, min_p=0.05),
    ],
    ids=["plain", "cold", "hot and top-p", "top-k and min-p"],
)
def test_logprobs_agree_with_a_teacher_forced_pass(make_engine: MakeEngine, policy: Policy, sampling: Sampling) -> None:
    answers = make_engine(max_batch_sequences=7).generate(PROMPTS, 4, sampling, seed=1)
    for prompt, group in zip(PROMPTS, answers, strict=True):
        assert len(group) == 4
        for completion in group:
            expected = teacher_forced(policy, prompt, completion, sampling)
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_the_seed_decides(make_engine: MakeEngine) -> None:
    engine, sampling = make_engine(), Sampling(max_new_tokens=8)
    first = engine.generate(PROMPTS, 4, sampling, seed=1)
    torch.rand(3)  # the global generator has no say
    assert engine.generate(PROMPTS, 4, sampling, seed=1) == first
    assert engine.generate(PROMPTS, 4, sampling, seed=2) != first
    assert len({completion.token_ids for completion in _completions(first)}) > 9, "completions differ from each other"


def test_a_completion_does_not_depend_on_the_batch_around_it(make_engine: MakeEngine) -> None:
    sampling = Sampling(max_new_tokens=20)
    whole = make_engine().generate([*PROMPTS, "one more"], 6, sampling, seed=5)
    for settings, prompts, group in (({"max_batch_sequences": 5}, PROMPTS, 6), ({}, PROMPTS[:1], 2)):
        part = make_engine(**settings).generate(prompts, group, sampling, seed=5)
        assert tokens(part) == [group_tokens[:group] for group_tokens in tokens(whole)[: len(prompts)]]


def test_finish_reasons_and_lengths(make_engine: MakeEngine, policy: Policy) -> None:
    completions = _completions(make_engine().generate(PROMPTS * 10, 4, Sampling(max_new_tokens=30), 3))
    assert len(completions) == 120
    reasons = {completion.finish_reason for completion in completions}
    assert reasons == {"stop", "length"}, "both occur in 120 samples of a random policy"
    for completion in completions:
        ended = completion.token_ids[-1] in policy.stop_ids
        assert ended == (completion.finish_reason == "stop")
        assert not set(completion.token_ids[:-1]) & policy.stop_ids
        assert ended or len(completion.token_ids) == 30
        assert "<eos>" not in completion.text
        assert len(completion.logprobs) == len(completion.token_ids)


def test_stop_texts_and_tokens_end_a_completion_and_stay_in_it(make_engine: MakeEngine, policy: Policy) -> None:
    sampling = Sampling(max_new_tokens=60, stop=("7", "ab"), stop_tokens=("<think>",))
    completions = _completions(make_engine().generate(PROMPTS * 4, 8, sampling, 3))
    (think,) = policy.tokenizer.convert_tokens_to_ids(["<think>"])
    stopped = [completion for completion in completions if completion.finish_reason == "stop_sequence"]
    assert {c.text[-1] for c in stopped} >= {"7", ">"}
    for completion in completions:
        before = policy.decode(list(completion.token_ids[:-1]))
        assert not any(text in before for text in sampling.stop) and think not in completion.token_ids[:-1]
        found = any(text in completion.text for text in sampling.stop) or completion.token_ids[-1] == think
        assert found == (completion.finish_reason == "stop_sequence")


def test_an_unknown_stop_token_and_impossible_settings_are_named(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for sampling, named in ((Sampling(stop_tokens=("<|im_end|>",)), "im_end"), (Sampling(top_p=-1.0), "top_p")):
        with pytest.raises(SamplingError, match=named):
            engine.generate(PROMPTS, 2, sampling, 0)
        with pytest.raises(SamplingError, match=named):
            engine.check(sampling)


def test_a_prompt_without_room_is_refused_by_name_and_the_others_go_on(make_engine: MakeEngine) -> None:
    answers = make_engine().generate(["x" * 600, PROMPTS[0], ""], 2, Sampling(max_new_tokens=4), 0)
    assert isinstance(answers[0], Rejection) and answers[0].reason == "prompt_too_long"
    assert "prompt 0 has 600 tokens" in answers[0].detail and "512 positions" in answers[0].detail
    assert isinstance(answers[2], Rejection) and answers[2].reason == "prompt_empty"
    assert len(answers[1]) == 2


def test_finished_groups_come_before_the_others_are(make_engine: MakeEngine) -> None:
    steps = iter(range(10**6))
    engine = make_engine(cancelled=lambda: next(steps) < 0, max_batch_sequences=4)
    sampling = Sampling(max_new_tokens=12)
    arrived = {index: (next(steps), answers) for index, answers in engine.stream(PROMPTS * 3, 2, sampling, seed=4)}
    assert min(step for step, _ in arrived.values()) < max(step for step, _ in arrived.values()) / 2
    together = make_engine().generate(PROMPTS * 3, 2, sampling, seed=4)
    assert tokens([arrived[i][1] for i in range(9)]) == tokens(together)


def test_cancelling_stops_between_two_tokens(make_engine: MakeEngine) -> None:
    answers = iter([False, False, True])
    with pytest.raises(Interrupted):
        make_engine(cancelled=lambda: next(answers)).generate(PROMPTS, 2, Sampling(max_new_tokens=50), 0)


def test_a_closed_stream_leaves_the_engine_usable(make_engine: MakeEngine) -> None:
    engine, sampling = make_engine(max_batch_sequences=2), Sampling(max_new_tokens=6)
    stream = engine.stream(PROMPTS, 2, sampling, 0)
    index, first = next(stream)
    stream.close()
    assert engine.generate(PROMPTS, 2, sampling, 0)[index] == first
