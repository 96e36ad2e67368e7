"""Decode steps replayed as CUDA graphs: the numbers of the model's own code, in less time."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.common.report import Report, row
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.policy.loading import Policy
from swarm.types import Completion, Rejection, Sampling
from tests.engines.models import make
from tests.gpu.models import half_a_billion

pytestmark = pytest.mark.gpu

PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4", "a much longer prompt than the others, in single letters"]


def _engine(policy: Policy, recorded: bool) -> TransformersEngine:
    return TransformersEngine(policy, GenerationSettings(max_batch_sequences=9, cuda_graphs=recorded))


def _generated(engine: TransformersEngine) -> list[Completion]:
    answers = engine.generate(PROMPTS, 4, Sampling(max_new_tokens=100), 3)
    return [completion for group in answers if not isinstance(group, Rejection) for completion in group]


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2", "mistral", "gemma3"])
def test_replayed_steps_sample_what_the_model_would(device: torch.device, architecture: str) -> None:
    policy = make(architecture)
    policy.model.to(device)
    engine = _engine(policy, recorded=True)
    assert engine._decoder._recorded_step is not None
    found, expected = _generated(engine), _generated(_engine(policy, recorded=False))
    # Rounding may turn one draw in many thousands; what follows it is another text.
    same = [one for one, other in zip(found, expected, strict=True) if one.token_ids == other.token_ids]
    assert len(same) >= len(found) - 1
    for one, other in zip(found, expected, strict=True):
        if one.token_ids == other.token_ids:
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    assert engine._decoder._recorded_step._recorder is not None, "none could not be recorded"


def test_what_cannot_be_recorded_is_decoded_without_and_leaves_the_gpu_usable(device: torch.device) -> None:
    policy = make("qwen3_moe")
    policy.model.to(device)
    assert len(_generated(_engine(policy, recorded=True))) == 12
    assert float(torch.ones(3, device=device).sum()) == 3.0


def test_tokens_a_second_with_recordings(device: torch.device, figures: Report) -> None:
    policy = half_a_billion(device)
    questions = [f"Calculate {k} + 7." for k in range(4)]

    def rate(recorded: bool) -> float:
        engine = TransformersEngine(policy, GenerationSettings(cuda_graphs=recorded))
        engine.generate(questions, 8, Sampling(max_new_tokens=20), 1)  # warms up
        start = time.monotonic()
        groups = engine.generate(questions, 8, Sampling(max_new_tokens=200), 2)
        tokens = sum(len(completion.token_ids) for group in groups for completion in group)
        return tokens / (time.monotonic() - start)

    figures.add(
        [
            row(
                "transformers, 32 sequences of half a billion weights (against no CUDA graphs)",
                [rate(recorded=True)],
                "tok/s",
                baseline=[rate(recorded=False)],
            )
        ]
    )
