"""What is compiled for GPUs, as far as a machine without one can tell."""

from __future__ import annotations

import logging
from functools import cache

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from swarm.policy import attention
from swarm.policy.batching import Packed
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer
from swarm.policy.scoring.compiled import compiled
from swarm.policy.scoring.head import read_at_once, slope_at_once
from swarm.training import layers
from swarm.training.layers import TrainingLayers, is_compiled, pays
from swarm.training.rows import Row
from tests.engines.models import make
from tests.policy.ranges import in_ranges


def test_kernels_read_logits_and_their_gradient_as_torch_does() -> None:
    torch.manual_seed(0)
    logits, targets = 3 * torch.randn(5, 31).double(), torch.randint(31, (5,))
    logits.requires_grad_()
    upstream = torch.randn(5).double()
    distribution = torch.distributions.Categorical(logits=logits)
    expected = distribution.log_prob(targets)
    (slope,) = torch.autograd.grad((expected * upstream).sum(), logits)
    with torch.no_grad():
        logprobs, entropies = read_at_once(logits, targets)
        found = slope_at_once(logits, targets, logprobs, upstream, torch.float64)
    torch.testing.assert_close(logprobs, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(entropies, distribution.entropy(), atol=1e-12, rtol=0)
    torch.testing.assert_close(found, slope, atol=1e-12, rtol=0)


def test_what_cannot_be_compiled_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no C compiler")

    def doubled(values: Tensor) -> Tensor:
        return 2 * values

    monkeypatch.setattr(torch, "compile", lambda code, dynamic: torch._dynamo.optimize(fails, dynamic=dynamic)(code))
    with caplog.at_level(logging.WARNING):
        code = compiled(doubled)
        assert [code(torch.ones(1)).item() for _ in range(2)] == [2, 2]
    assert len(caplog.records) == 1 and "no C compiler" in caplog.text


def test_an_error_of_the_code_itself_is_no_failure_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(values: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda code, dynamic: code)
    code = compiled(short)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            code(torch.ones(1))


def test_layers_are_compiled_where_it_pays(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pays(policy.model, "cuda"), "smaller models are fast already"
    monkeypatch.setattr(layers, "COMPILED_PARAMETERS", 0)
    assert pays(policy.model, "cuda") and not pays(policy.model, "cpu")
    assert not pays(make("qwen3_moe").model, "cuda")
    assert is_compiled(True, policy) and not is_compiled(False, policy) and not is_compiled(None, policy)


def test_layers_are_compiled_once_for_passes_of_any_length(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each new length would take seconds, and torch gives up after a few."""
    monkeypatch.setattr(attention, "in_ranges", in_ranges)
    counter = CompileCounterWithBackend("aot_eager")
    chosen = cache(lambda code: torch.compile(code, dynamic=True, backend=counter))
    batching = Packed(in_ranges=True)
    scorer, training = Scorer(policy, 1.0, batching), TrainingLayers(policy.model, True, False, chosen)
    counts = []
    for lengths in ((50,), (90, 3, 17), (200, 200), (1, 30, 64, 7)):
        rows = [Row([3, 4, 5], [6] * length, 0.0, None) for length in lengths]
        with training.active(), batching.attention(policy.model):
            scorer(rows).logprobs.sum().backward()
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 4 and counts[0] > 0
