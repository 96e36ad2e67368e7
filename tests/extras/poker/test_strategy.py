"""`swarm tasks strategy`: how a policy plays Kuhn poker, as an opponent for a later run."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.errors import ConfigError
from swarm.extras.poker.strategy import print_strategy, strategy
from swarm.extras.poker.tasks import SITUATIONS, KuhnTask
from swarm.types import Answers, Completion, Past, Sampling, as_text, observation_text
from tests.sapo.test_round import FakeEngine

CARDS = {"1": "J", "2": "Q", "3": "K"}
BETS = {"Q", "K", "Kc", "Kb", "Jcb"}
"""Where the policy bets or calls."""


class Player(FakeEngine):
    """Plays `BETS`; with the queen it forgets to answer once the opponent has bet."""

    def generate(self, prompts: object, num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        assert isinstance(prompts, list)
        return [(Completion(self._says(each), "stop"),) for each in prompts]

    def _says(self, prompt: object) -> str:
        past = isinstance(prompt, Past)
        shown = observation_text(prompt.steps[-1].observation) if isinstance(prompt, Past) else as_text(str(prompt))
        heard = "" if shown.startswith("hand") else shown[0]
        situation = CARDS[shown[-2]] + ("c" if past else "") + heard
        return "..." if situation == "Qb" else "2" if situation in BETS else "1"


def test_the_strategy_of_a_policy_is_that_of_the_hands_it_plays() -> None:
    task = KuhnTask(kind="kuhn_poker", style="compact")
    found = strategy(Player(), task, Sampling(), 200)
    assert found == {situation: float(situation in BETS) for situation in SITUATIONS}
    later = KuhnTask(kind="kuhn_poker", opponents=("earlier",), strategies={"earlier": found})
    assert later.chosen == {"earlier": found}


def test_a_configuration_without_the_game_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("tasks: [{kind: number_guessing}]")
    with pytest.raises(ConfigError, match="must have one task of the kind kuhn_poker, got 0"):
        print_strategy(file, [], 1, "earlier")
