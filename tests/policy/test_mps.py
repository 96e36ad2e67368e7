"""An update on Apple's GPUs, which have no float64: with a stand-in that refuses it as they do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import free_bytes, release_unused
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from tests.policy.test_updater import _group


class WithoutFloat64(TorchFunctionMode):
    """Tensors are on a device without float64, except those that `cpu` has fetched and those made as float64."""

    def __init__(self) -> None:
        super().__init__()
        self._fetched: dict[int, Tensor] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        inputs = [value for value in args if isinstance(value, Tensor)]
        if not isinstance(result, Tensor) or not inputs:
            return result
        elsewhere = any(id(value) in self._fetched or value.dtype == torch.float64 for value in inputs)
        if function is Tensor.cpu or elsewhere:
            self._fetched[id(result)] = result
        elif result.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        return result


def test_the_stand_in_refuses_what_the_device_does() -> None:
    with WithoutFloat64():
        assert torch.ones(2).cpu().double().sum() == 2
        with pytest.raises(TypeError, match="float64"):
            torch.ones(2).double()


@pytest.mark.parametrize(
    "settings", [{}, {"objective": "gepo"}, {"importance": "token_truncate"}, {"reference_kl": 0.1}]
)
def test_an_update_needs_no_float64_on_the_device(policy: Policy, settings: dict[str, object]) -> None:
    reference = copy.deepcopy(policy) if "reference_kl" in settings else None
    updater = PolicyUpdater(policy, UpdateSettings(**settings), MixSettings(), 1.0, reference)
    with WithoutFloat64():
        report = updater.update([_group(policy)], [])
    assert not report.skipped and 0 < report.figures["sampling/ess"] <= 1


def test_out_of_memory_its_unused_memory_is_released_too(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: released.append("mps"))
    release_unused()
    assert released == ["mps"]


def test_what_its_allocator_has_cached_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    for name, held in (
        ("recommended_max_memory", 10),
        ("driver_allocated_memory", 12),
        ("current_allocated_memory", 8),
    ):
        monkeypatch.setattr(torch.mps, name, lambda held=held: held * gib)
    assert free_bytes(torch.device("mps")) == 2 * gib
