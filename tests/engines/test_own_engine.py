"""A user's engine, named by its location in the configuration."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError

from swarm.engines.choice import choose_engine, open_engine
from swarm.engines.config import GenerationSettings
from swarm.errors import ConfigError
from swarm.policy.config import PolicySettings
from swarm.types import Rejection, Sampling
from tests.engines.models import random_policy

MINE = """
from swarm.engines.transformers.engine import TransformersEngine

class Twice(TransformersEngine):
    def stream(self, prompts, num_completions, sampling, seed, turns=None):
        return super().stream(prompts, 2 * num_completions, sampling, seed, turns)

def make(policy, settings, trust_remote_code, device, cancelled):
    return Twice(policy, settings, cancelled)

def broken(policy, settings, trust_remote_code, device, cancelled):
    raise RuntimeError("no server answers")

nothing = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def test_it_generates_in_place_of_ours(mine: str) -> None:
    policy, settings = random_policy(), GenerationSettings(engine=f"{mine}:make")
    choice = choose_engine(settings, policy)
    assert (choice.name, choice.reason) == (f"{mine}:make", "asked for")
    with closing(open_engine(choice, policy, PolicySettings(), settings)) as engine:
        (group,) = engine.generate(["1 + 1"], 2, Sampling(max_new_tokens=4), 1)
    assert not isinstance(group, Rejection) and len(group) == 4


def test_its_own_failure_is_one_line_that_names_it(mine: str) -> None:
    policy, settings = random_policy(), GenerationSettings(engine=f"{mine}:broken")
    with pytest.raises(ConfigError, match=r"mine.py:broken failed: RuntimeError: no server answers \(.*line 12\)"):
        open_engine(choose_engine(settings, policy), policy, PolicySettings(), settings)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlm", "must be one of auto, transformers, vllm, or code such as .*did you mean vllm"),
        ("{mine}:nothing", "must be a function, got 3"),
        ("{mine}:mak", "did you mean make"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(name: str, message: str, mine: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GenerationSettings(engine=name.format(mine=mine))
