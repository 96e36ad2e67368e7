"""What is particular to generation with the weights that are trained: slots, swaps, memory, architectures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from msgspec.structs import replace
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    GPTNeoConfig,
    Phi3Config,
    PretrainedConfig,
    RobertaConfig,
)

from swarm.algorithms.advantages import grpo
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers import probe
from swarm.engines.transformers.engine import TransformersEngine
from swarm.engines.transformers.layout import Unread
from swarm.engines.transformers.probe import most_rows
from swarm.engines.transformers.slots import SlotCache
from swarm.errors import EngineError, OutOfMemory
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_tokenizer
from swarm.sapo.mixing import MixSettings
from swarm.training.rows import RowReader
from swarm.types import Completion, Rejection, Sampling
from tests.engines.models import ARCHITECTURES, make
from tests.engines.reference import teacher_forced
from tests.engines.test_contract import PROMPTS, tokens
from tests.example_groups import graded


def _engine(policy: Policy, cancelled: Callable[[], bool] = lambda: False, **settings: object) -> TransformersEngine:
    return TransformersEngine(policy, GenerationSettings(**settings), cancelled)


def _watch_passes(engine: TransformersEngine, before: Callable[[torch.Size], None]) -> None:
    """Call `before` with the shape of the ids of every pass, by the model's own code or in few operations."""
    engine._decoder.refresh()  # the model that generates may be a copy, which this makes
    model, fused = engine._decoder._generating.model, engine._decoder._fused
    forward = model.forward

    def watched(*args: object, **kwargs: object) -> object:
        before(kwargs["input_ids"].shape)
        return forward(*args, **kwargs)

    model.forward = watched
    if fused is not None:
        step = fused.step

        def watched_step(cache: SlotCache, rows: Sequence[Unread]) -> torch.Tensor:
            before(torch.Size((len(rows), 1)))
            return step(cache, rows)

        fused.step = watched_step


def _largest_difference(policy: Policy, prompt: str, completion: Completion, sampling: Sampling) -> float:
    expected = teacher_forced(policy, prompt, completion, sampling)
    return max(abs(ours - theirs) for ours, theirs in zip(completion.logprobs, expected, strict=True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_hold_for_every_architecture_with_rows_refilled_and_preempted(
    architecture: str, attention: str
) -> None:
    policy = make(architecture, attention)
    sampling = Sampling(max_new_tokens=40)
    answers = _engine(policy, max_batch_tokens=300, max_batch_sequences=6).generate(PROMPTS, 3, sampling, seed=1)
    for prompt, group in zip(PROMPTS, answers, strict=True):
        for completion in group:
            assert _largest_difference(policy, prompt, completion, sampling) < 1e-4


def test_prompts_are_read_once_and_every_row_of_every_step_gives_a_token(policy: Policy) -> None:
    engine, shapes = _engine(policy, max_batch_sequences=6), []
    _watch_passes(engine, shapes.append)
    prompts = [f"Calculate {k} + 1." for k in range(7)]
    answers = engine.generate(prompts, 3, Sampling(max_new_tokens=30), 0)
    lengths = [len(completion.token_ids) for group in answers for completion in group]
    steps = [shape[0] for shape in shapes if shape[1] == 1]
    assert sum(shape[0] for shape in shapes if shape[1] > 1) == 7
    assert sum(steps) == sum(lengths)
    assert max(steps) == 6
    assert len(steps) < sum(lengths) / 6 + 30, "a finished row's place is filled at once"


def test_the_token_budget_holds_and_changes_no_completion(policy: Policy) -> None:
    prompts, sampling = PROMPTS * 3, Sampling(max_new_tokens=150)
    free = _engine(policy).generate(prompts, 4, sampling, 2)
    engine, rows = _engine(policy, max_batch_tokens=800), []
    _watch_passes(engine, lambda shape: rows.append(shape[0]) if shape[1] == 1 else None)
    tight = engine.generate(prompts, 4, sampling, 2)
    assert max(rows) <= 800 // 64
    assert tokens(tight) == tokens(free)


def test_a_prompt_beyond_the_token_budget_is_refused(policy: Policy) -> None:
    answers = _engine(policy, max_batch_tokens=128).generate(["x" * 100, "1 + 1"], 2, Sampling(max_new_tokens=8), 0)
    assert isinstance(answers[0], Rejection) and "room for 64" in answers[0].detail
    assert len(answers[1]) == 2


def test_running_out_of_memory_halves_the_batch_and_changes_no_completion(policy: Policy) -> None:
    sampling = Sampling(max_new_tokens=30)
    expected = _engine(policy).generate(PROMPTS, 4, sampling, 2)
    engine, rows = _engine(policy), []

    def fail_above_five(shape: torch.Size) -> None:
        rows.append(shape[0])
        if shape[1] == 1 and shape[0] > 5:
            raise torch.OutOfMemoryError("injected")

    _watch_passes(engine, fail_above_five)
    answers = engine.generate(PROMPTS, 4, sampling, 2)
    assert 12 in rows and rows[-1] <= 5
    assert tokens(answers) == tokens(expected)


def test_no_memory_for_a_single_sequence_is_an_error_in_words(policy: Policy) -> None:
    engine = _engine(policy)

    def fail(shape: torch.Size) -> None:
        raise torch.OutOfMemoryError("injected")

    _watch_passes(engine, fail)
    with pytest.raises(OutOfMemory, match="not even one sequence"):
        engine.generate(PROMPTS, 4, Sampling(max_new_tokens=4), 0)


def test_broken_weights_are_an_error_in_words(policy: Policy) -> None:
    engine = _engine(policy)
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(math.nan)
    with pytest.raises(EngineError, match="not finite"):
        engine.generate(PROMPTS, 2, Sampling(max_new_tokens=4), 0)


def test_a_model_that_cannot_be_served_is_refused_by_name() -> None:
    tokenizer = tiny_tokenizer()
    model = BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(EngineError, match="bloom takes no position_ids"):
        _engine(Policy("bloom", model, tokenizer, system_prompt=None))


def _unusual(config: PretrainedConfig) -> Policy:
    torch.manual_seed(0)
    return Policy("unusual", AutoModelForCausalLM.from_config(config), tiny_tokenizer(), system_prompt=None)


def _common() -> dict[str, object]:
    return {"vocab_size": len(tiny_tokenizer()), "hidden_size": 32, "initializer_range": 0.3, "bos_token_id": 1}


def _gpt_neo() -> Policy:
    layers = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16}
    return _unusual(GPTNeoConfig(**_common(), **layers, max_position_embeddings=512))


def test_a_window_counted_from_the_widest_row_is_decoded_one_row_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    policy, sampling, rows = _gpt_neo(), Sampling(max_new_tokens=30), []
    engine = _engine(policy)
    assert "one sequence at a time" in caplog.text
    _watch_passes(engine, lambda shape: rows.append(shape[0]) if shape[1] == 1 else None)
    for prompt, group in zip(PROMPTS, engine.generate(PROMPTS, 2, sampling, seed=1), strict=True):
        for completion in group:
            assert _largest_difference(policy, prompt, completion, sampling) < 1e-4
    assert set(rows) == {1}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (RobertaConfig(**_common(), num_hidden_layers=2, num_attention_heads=4, is_decoder=True), "differ by up to"),
        (FalconConfig(**_common(), num_hidden_layers=2, num_attention_heads=4, alibi=True), "ValueError"),
    ],
    ids=["positions with an offset", "alibi"],
)
def test_code_that_decodes_otherwise_than_it_reads_is_refused_with_a_reason(config: PretrainedConfig, why: str) -> None:
    with pytest.raises(EngineError, match=f"unusual .* cannot be decoded with a cache .*{why}.* generation.engine"):
        _engine(_unusual(config))


def test_a_model_without_a_small_copy_is_probed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "small_copy", lambda model_class, config: None)
    assert most_rows(make("qwen2")) is None
    with pytest.raises(EngineError, match="differ by up to"):
        most_rows(_unusual(RobertaConfig(**_common(), num_hidden_layers=2, num_attention_heads=4, is_decoder=True)))


def test_no_sequence_grows_beyond_the_original_positions_of_long_rope() -> None:
    """Beyond them, one row would change all other rows of its batch, and a cache what it holds."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **factors}
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    shape |= {"pad_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 512}
    policy = _unusual(Phi3Config(**_common(), **shape, original_max_position_embeddings=64, rope_parameters=rope))
    sampling = Sampling(max_new_tokens=20)
    long = "q7" * 40
    short, refused = _engine(policy).generate(["1 + 1", long], 2, sampling, seed=0)
    assert isinstance(refused, Rejection) and "64 positions before those of LongRoPE" in refused.detail
    assert all(_largest_difference(policy, "1 + 1", each, sampling) < 1e-4 for each in short)
    group = graded("other", 0)
    assert RowReader(policy, MixSettings(), grpo).fits(group)
    assert not RowReader(policy, MixSettings(), grpo).fits(replace(group, prompt=long * 2))
