"""What holds for every rollout engine."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
import torch

from swarm.engines.choice import EngineChoice, open_engine
from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import Interrupted, SamplingError, WeightsRefused
from swarm.extras.vllm.engine import VllmEngine
from swarm.extras.vllm.service import VllmService
from swarm.policy.adapters import Adapters
from swarm.policy.config import LoraSettings, PolicySettings
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.protocols import StreamingEngine
from swarm.types import Answers, Completion, Past, Rejection, Sampling, Step, Text
from tests.engines.flow import Flowing, Results, answered, tokens as flow_tokens
from tests.engines.models import random_policy
from tests.engines.play import SAMPLING, Play
from tests.engines.reference import teacher_forced

PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4", "a much longer prompt than the others, in single letters"]
MakeEngine = Callable[..., StreamingEngine]


VLLM_PYTHON = os.environ.get("SWARM_TEST_VLLM_PYTHON")
VLLM = pytest.param(
    "vllm",
    marks=[
        pytest.mark.vllm,
        pytest.mark.skipif(not VLLM_PYTHON, reason="SWARM_TEST_VLLM_PYTHON names no Python with vLLM: make test-vllm"),
    ],
)
PATIENT = VllmSettings(
    python=Path(VLLM_PYTHON) if VLLM_PYTHON else None,
    cpu_cache_bytes=2**28,
    start_timeout_s=3600,
    silence_timeout_s=3600,
)
VLLM_HEAD = 64
"""Size of an attention head for which vLLM has kernels everywhere."""


@pytest.fixture(params=["transformers", VLLM])
def engine_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def place() -> torch.device:
    """Of the policies; `tests/gpu/test_contract.py` has another."""
    return torch.device("cpu")


@pytest.fixture
def nats(engine_name: str) -> float:
    """The largest difference between two computations of a log-probability."""
    return 1e-4


def _policy(place: torch.device, head_dim: int) -> Policy:
    policy = random_policy(head_dim)
    policy.model.to(place)
    return policy


@pytest.fixture(scope="module")
def vllm(place: torch.device) -> Iterator[tuple[Policy, VllmService]]:
    """One process for all tests: it takes a while to start."""
    policy = _policy(place, VLLM_HEAD)
    service = VllmService(policy, GenerationSettings(vllm=PATIENT))
    yield policy, service
    service.close()


@pytest.fixture
def policy(request: pytest.FixtureRequest, engine_name: str, place: torch.device) -> Policy:
    """The same weights for every test."""
    if engine_name == "transformers":
        return _policy(place, 16)
    shared, _ = request.getfixturevalue("vllm")
    fresh = _policy(place, VLLM_HEAD)
    swap_weights(shared, fresh.weights, version=0)
    return shared


@pytest.fixture
def make_engine(request: pytest.FixtureRequest, engine_name: str, policy: Policy) -> MakeEngine:
    """An engine of each kind for the same policy; keyword arguments are generation settings."""

    def make(cancelled: Callable[[], bool] = lambda: False, **settings: object) -> StreamingEngine:
        if engine_name == "transformers":
            return TransformersEngine(policy, GenerationSettings(**settings), cancelled)
        _, service = request.getfixturevalue("vllm")
        return VllmEngine(policy, GenerationSettings(**settings), service, cancelled)

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
def test_logprobs_agree_with_a_teacher_forced_pass(
    make_engine: MakeEngine, policy: Policy, nats: float, sampling: Sampling
) -> None:
    answers = make_engine(max_batch_sequences=7).generate(PROMPTS, 4, sampling, seed=1)
    for prompt, group in zip(PROMPTS, answers, strict=True):
        assert len(group) == 4
        for completion in group:
            expected = teacher_forced(policy, prompt, completion, sampling)
            assert completion.logprobs == pytest.approx(expected, abs=nats)


def test_an_episode_goes_on_from_the_tokens_of_its_past(make_engine: MakeEngine, policy: Policy, nats: float) -> None:
    engine, sampling = make_engine(), Sampling(max_new_tokens=8)
    (first,) = engine.generate(PROMPTS[:1], 3, sampling, seed=1)
    contexts = [Past(PROMPTS[0], (Step(each.token_ids, (Text("lower"),)),)) for each in first]
    answers = engine.generate([*contexts, PROMPTS[0]], 2, sampling, seed=2)
    for context, group in zip([*contexts, PROMPTS[0]], answers, strict=True):
        for completion in group:
            assert completion.logprobs == pytest.approx(teacher_forced(policy, context, completion, sampling), abs=nats)
    assert len({tuple(policy.encode(context)) for context in contexts}) == 3


def test_turns_are_answered_as_they_become_ready(make_engine: MakeEngine, policy: Policy, nats: float) -> None:
    answered = Play(3).run(make_engine(max_batch_sequences=3))
    assert [(turn.episode, turn.number) for turn, _ in answered] == [(e, n) for e in range(4) for n in (1, 2, 3)]
    for turn, said in answered:
        assert said.logprobs == pytest.approx(teacher_forced(policy, turn.context, said, SAMPLING), abs=nats)
    again = Play(3).run(make_engine())
    assert [said.token_ids for _, said in again] == [said.token_ids for _, said in answered]


def test_an_episode_that_waits_for_its_environment_holds_up_no_other(make_engine: MakeEngine) -> None:
    def late(play: Play, episode: int) -> bool:
        others = [turn for turn, _ in play.answered if turn.episode != 0 and turn.number == 3]
        return episode == 0 and len(others) < 3 and bool(play.answered)

    play = Play(3, late)
    in_order = play.run(make_engine())
    assert [turn.number for turn, _ in play.answered if turn.episode == 0] == [1, 2, 3]
    assert [turn.episode for turn, _ in play.answered[-2:]] == [0, 0]
    undisturbed = Play(3).run(make_engine())
    assert [said.token_ids for _, said in in_order] == [said.token_ids for _, said in undisturbed]


def test_questions_that_enter_an_open_call_are_answered_as_if_all_were_asked_at_once(
    make_engine: MakeEngine, policy: Policy, nats: float
) -> None:
    sampling, prompts = Sampling(max_new_tokens=24), PROMPTS * 4
    together = Flowing(make_engine(), prompts, 2, sampling, slots=len(prompts) * 2).results()
    flowing = Flowing(make_engine(max_batch_sequences=4), prompts, 2, sampling, slots=4)
    assert flow_tokens(flowing.results()) == flow_tokens(together)
    for prompt, group in zip(prompts, (together[number] for number in range(len(prompts))), strict=True):
        for completion in group:
            assert completion.logprobs == pytest.approx(teacher_forced(policy, prompt, completion, sampling), abs=nats)
    assert len({completion.token_ids for group in together.values() for completion in group}) > len(prompts)


def test_a_call_that_is_closed_in_the_middle_is_gone_on_with_by_the_next(make_engine: MakeEngine) -> None:
    sampling, prompts = Sampling(max_new_tokens=24), PROMPTS * 4
    together = Flowing(make_engine(), prompts, 2, sampling, slots=len(prompts) * 2).results()
    flowing = Flowing(make_engine(max_batch_sequences=4), prompts, 2, sampling, slots=4)
    flowing.allowed = 6
    results: Results = {}
    with closing(flowing.flow.play()) as games:
        results |= [answered(*next(games))]
        assert flowing.asked <= 4, "those that fill the slots, and a few that wait"
    flowing.allowed = len(prompts)
    assert flow_tokens(results | flowing.results()) == flow_tokens(together)


def test_an_episode_without_room_is_refused_and_the_others_go_on(make_engine: MakeEngine) -> None:
    play = Play(40)
    answered = play.run(make_engine())
    assert play.refused == set(range(4)), "512 positions do not hold 40 turns"
    assert {turn.episode for turn, _ in answered} == play.refused


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


def _other_weights(policy: Policy) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {name: value + 0.05 * torch.randn_like(value) for name, value in policy.model.state_dict().items()}


def _swapping_engine(make_engine: MakeEngine, policy: Policy, turn: int, **settings: object) -> StreamingEngine:
    """An engine that gets other weights, version 1, while it generates."""
    new, count = _other_weights(policy), iter(range(10**6))

    def between_steps() -> bool:
        if next(count) == turn:
            engine.swap(new, version=1)
        return False

    engine = make_engine(between_steps, **settings)
    return engine


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_new_weights_enter_in_the_middle_and_every_token_says_whose_it_is(
    make_engine: MakeEngine, policy: Policy, nats: float, kv: Literal["keep", "recompute"]
) -> None:
    old, sampling = copy.deepcopy(policy), Sampling(max_new_tokens=160)
    engine = make_engine(kv=kv, max_batch_sequences=5)
    answers: list[tuple[str, Answers]] = []
    # More than enough for weights that are handed to another process, which waits for nobody, on a busy machine.
    prompts = PROMPTS * 100
    with closing(engine.stream(prompts, 4, sampling, seed=3)) as stream:
        for index, group in stream:
            if not answers:
                engine.swap(_other_weights(policy), version=1)
            answers.append((prompts[index], group))
            assert isinstance(group, tuple)
            if any(len(completion.versions) == 2 for completion in group):
                break
    mixed, worst = 0, 0.0
    for prompt, completions in (answers[0], answers[-1]):
        assert isinstance(completions, tuple)
        for completion in completions:
            spans = completion.versions
            assert [span.version for span in spans] == sorted({span.version for span in spans})
            assert sum(span.num_tokens for span in spans) == len(completion.token_ids)
            mixed += len(spans) == 2
            num_old = spans[0].num_tokens if spans[0].version == 0 else 0
            before = teacher_forced(old, prompt, completion, sampling)[:num_old]
            after = teacher_forced(policy, prompt, completion, sampling)[num_old:]
            assert completion.logprobs[:num_old] == pytest.approx(before, abs=nats)
            worst = max([worst, *(abs(a - b) for a, b in zip(completion.logprobs[num_old:], after, strict=True))])
    assert mixed > 0 and policy.version == 1
    if kv == "recompute":
        assert worst < nats
    else:
        assert worst > 1e-3, "kept keys and values are those of the old weights"


def test_after_a_swap_everything_is_of_the_new_weights(make_engine: MakeEngine, policy: Policy, nats: float) -> None:
    engine, sampling = make_engine(), Sampling(max_new_tokens=12)
    for version in (1, 2):
        engine.swap(_other_weights(policy), version)
        for prompt, group in zip(PROMPTS, engine.generate(PROMPTS, 3, sampling, seed=3), strict=True):
            for completion in group:
                assert completion.logprobs == pytest.approx(
                    teacher_forced(policy, prompt, completion, sampling), abs=nats
                )
                assert [span.version for span in completion.versions] == [version]


@pytest.mark.parametrize("wrong", ["shape", "missing", "unknown", "not finite"])
def test_refused_weights_leave_the_old_ones_in_use(make_engine: MakeEngine, policy: Policy, wrong: str) -> None:
    engine, sampling = make_engine(), Sampling(max_new_tokens=6)
    expected = engine.generate(PROMPTS, 2, sampling, 0)
    weights = _other_weights(policy)
    name = "model.layers.1.mlp.up_proj.weight"  # the last checked would be the last changed
    if wrong == "shape":
        weights[name] = weights[name][:-1]
    elif wrong == "missing":
        del weights[name]
    elif wrong == "unknown":
        name = "model.layers.2.mlp.up_proj.weight"
        weights[name] = torch.zeros(3)
    else:
        weights[name][0, 0] = math.nan
    with pytest.raises(WeightsRefused, match=name):
        engine.swap(weights, version=1)
    assert engine.generate(PROMPTS, 2, sampling, 0) == expected
    assert policy.version == 0


def test_adapters_are_sampled_from_and_replaced_in_place(engine_name: str, place: torch.device, nats: float) -> None:
    policy = _policy(place, VLLM_HEAD)
    policy.adapters = Adapters(policy.model, LoraSettings(rank=4))
    settings, sampling = GenerationSettings(engine=engine_name, vllm=PATIENT), Sampling(max_new_tokens=12)
    engine = open_engine(EngineChoice(engine_name, ""), policy, PolicySettings(), settings)
    for version in (1, 2):
        with policy.gate.change(), torch.no_grad():
            for parameter in policy.trained:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            policy.version = version
        for prompt, group in zip(PROMPTS, engine.generate(PROMPTS, 2, sampling, seed=1), strict=True):
            for completion in group:
                expected = teacher_forced(policy, prompt, completion, sampling)
                assert completion.logprobs == pytest.approx(expected, abs=nats)
                assert [span.version for span in completion.versions] == [version]
    engine.close()
