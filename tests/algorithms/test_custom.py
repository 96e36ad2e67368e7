"""A user's own loss, advantage and mix: what fails or cannot be used is one sentence that names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from swarm.algorithms.advantages import find_advantage, loss_of
from swarm.algorithms.losses import Loss, LossBatch, LossOutput
from swarm.errors import ConfigError
from swarm.sapo.mixing import MixSettings
from swarm.sapo.mixing.base import MixRound
from swarm.sapo.mixing.mixer import Mixer
from swarm.training.config import UpdateSettings
from swarm.training.gradient import check_own_code

OWN = """
import torch
from swarm.algorithms.losses import Loss, LossOutput
from swarm.sapo.mixing import MixPolicy

def scalar(rewards):
    return rewards.mean()

def a_list(rewards):
    return rewards.tolist()

def infinite(rewards):
    return rewards / 0

def raises(rewards):
    return rewards + undefined

def right(rewards):
    return rewards - 0.5

class Nothing(Loss):
    def __call__(self, batch):
        return batch.new.sum()

class OfRows(Loss):
    def __call__(self, batch):
        return LossOutput(-batch.new.sum(dim=-1), batch.mask)

class Unshared(Loss):
    def __call__(self, batch):
        return LossOutput(-batch.new, torch.ones(()))

class Raises(Loss):
    def __call__(self, batch):
        return batch.rewards

class Right(Loss):
    def __call__(self, batch):
        return LossOutput(-batch.new * batch.advantages, batch.mask / batch.mask.sum())

class Breaks(MixPolicy):
    def __call__(self, history, candidates):
        return {}["absent"]
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scalar", r"the shape of the rewards it is given, \[1, 4\].* got the shape \[\]"),
        ("a_list", "got list"),
        ("infinite", "must return finite numbers"),
        ("raises", r"raises failed: NameError: name 'undefined' is not defined \(.*own.py, line 16\)"),
    ],
)
def test_an_advantage_that_no_update_can_use_is_one_sentence(own: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"update.advantage .*own.py:{name}") as refused:
        find_advantage(f"{own}:{name}")(torch.tensor([[0.0, 1.0, 0.0, 1.0]]))
    assert refused.match(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Nothing", "must return a swarm.algorithms.losses.LossOutput, got the shape"),
        ("OfRows", r"must return `losses` \[B, T\].* here \[2, 3\]; got the shape \[2\]"),
        ("Unshared", r"must return `shares` \[B, T\].* got the shape \[\]"),
        ("Raises", "AttributeError: .* no attribute 'rewards'"),
    ],
)
def test_a_loss_that_no_update_can_use_is_refused_before_the_first_round(own: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"update.objective .*own.py:{name}") as refused:
        check_own_code(UpdateSettings(objective=f"{own}:{name}"), 4)
    assert refused.match(said)


def test_what_is_right_passes_and_is_used_as_it_is(own: str) -> None:
    check_own_code(UpdateSettings(objective=f"{own}:Right", advantage=f"{own}:right"), 4)
    rewards = torch.tensor([[0.0, 1.0]])
    assert torch.equal(find_advantage(f"{own}:right")(rewards), rewards - 0.5)


def test_memory_that_runs_out_in_an_own_loss_stays_what_it_is() -> None:
    class Large(Loss):
        def __call__(self, batch: LossBatch) -> LossOutput:
            raise RuntimeError("CUDA out of memory")

    new = torch.zeros(1, 1)
    with pytest.raises(RuntimeError, match="out of memory"):
        loss_of("own:Large", Large(), LossBatch(new, new, new[0], new))


def test_an_own_mix_that_fails_is_one_sentence(own: str) -> None:
    mixer = Mixer(MixSettings(policy=f"{own}:Breaks"))
    with pytest.raises(ConfigError, match=r"mix.policy .*own.py:Breaks failed: KeyError: 'absent' \(.*line 43\)"):
        mixer.mix(MixRound(1, None, 0, 0), [], [], None, np.random.default_rng(0))  # type: ignore[arg-type]
