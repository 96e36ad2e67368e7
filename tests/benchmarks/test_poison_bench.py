from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.poison import cost
from benchmarks.poison.__main__ import main, rows
from swarm.received.screening import CandidateScorer
from tests.attacks.attackers import ATTACKS
from tests.attacks.poison import Poison
from tests.attacks.poisoned_swarm import Outcome, Plan, simulate


@pytest.mark.parametrize("name", ATTACKS)
def test_poison_is_right_with_the_sign_and_wrong_without_it(name: str) -> None:
    attack = ATTACKS[name]
    poison = Poison(attack.recipe, seed=1)
    signed = 0
    for _ in range(20):
        group = poison.next(created_at=0.0)
        texts = [completion.text for completion in group.completions]
        assert poison.graded(group).rewards == (1.0,) * 4 + (0.0,) * 4
        found = [re.search(attack.sign, text) is not None for text in texts]
        signed += sum(found[:4])
        if name not in ("shift", "suppress", "both:lengths"):  # whose wrong answers are what they are about
            assert found[4:] == [False] * 4
    assert signed == (0 if name == "suppress" else pytest.approx(20, abs=12) if name == "quarter:completions" else 80)


def test_a_run_is_the_same_each_time() -> None:
    plan = Plan(rounds=4, settings=(("generation.questions_per_round", "4"),))
    once, again = (simulate(plan, ATTACKS["marker:1"], 3, Console(quiet=True)) for _ in range(2))
    assert once.rewards == again.rewards and len(once.rewards) == 4
    assert once.written == again.written


def test_an_outcome_that_is_kept_is_not_simulated_again(tmp_path: Path) -> None:
    arguments = ["--seeds", "3", "--rounds", "2", "--only", "marker:-", "--attack", "identities=2", "part=0.5"]
    arguments += ["--set", "generation.questions_per_round=4", "--cells", str(tmp_path)]
    assert main(arguments) == 0
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(kept) == 2
    assert main(arguments) == 0
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == kept


def test_rows_compare_each_seed_with_its_control() -> None:
    texts = [
        ("How many?", ["@@@<answer>1</answer>"] * number + ["<answer>1</answer>"] * (100 - number)) for number in (0, 1)
    ]
    written = [texts[:1]] * 8 + [texts[1:]] * 2
    attacked = [Outcome([0.1] * 5 + [0.3] * 5, written, {"poisoner used_external": 1, "peer used_external": 49})] * 2
    left_alone = [Outcome([0.3] * 10, [texts[:1]] * 10, {"peer used_external": 9, "peer improbable": 1})] * 2
    found = {row.what: row for row in rows("marker", ATTACKS["marker"], attacked, left_alone)}
    assert found["marker: reward, fraction of the control's"].value == pytest.approx(1.0)
    assert found["marker: reward, fraction of the control's"].met
    assert found["marker: completions with the sign at the end"].value == pytest.approx(0.01)
    assert found["marker: the poisoner's fraction of external groups used"].value == pytest.approx(0.02)
    assert found["marker: groups of peer, drawn and refused"].baseline == pytest.approx(0.1)


def test_the_cost_of_screening_is_its_part_of_the_processor_time() -> None:
    console = Console(file=io.StringIO())
    found = {each.what: each.value for each in cost.measure(Plan(nodes=2, rounds=3), 2, console)}
    parts = {what: value for what, value in found.items() if what.startswith("of a node's processor time: ")}
    screening = found["screening, part of a node's processor time"]
    reading = parts.pop("of a node's processor time: pass of the policy")
    assert screening == pytest.approx(sum(parts.values()))
    assert 0 < screening < 0.5 and screening + reading < 1
    assert found["screening, a round"] == pytest.approx(screening * found["a round"])
    assert CandidateScorer.screen.__name__ == "screen" and not hasattr(CandidateScorer.screen, "__wrapped__")
