"""The choice of questions and of others' groups by progress a second, in planted economies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from swarm.sapo.mixing import Candidate, Decision, History, MixRound
from swarm.sapo.mixing.policies import Auto, Costs
from tests.sapo.mixes import Opinion, candidate

USUAL = 8
FIRST = 40
"""Rounds until it knows its prices."""
STEPS = 8
"""Most optimizer steps of an update."""


class Economy:
    """A node that asks `Auto` what to do; each action has its price in seconds."""

    def __init__(
        self,
        question: float = 1.0,
        mixed: float = 0.2,
        trained: float = 0.5,
        signal: float = 0.25,
        supply: float = 0.0,
        worth: float = 1.0,
        slots: tuple[int, int] = (8, 24),
        part: float = 1.0,
    ) -> None:
        self.part = part
        self.question, self.mixed, self.trained = question, mixed, trained
        self.signal, self.supply, self.worth, self.slots = signal, supply, worth, slots
        self.decisions: list[Decision] = []
        self.seconds = self.progress = 0.0
        self.rounds: list[MixRound] = []
        self._asked, self._state = USUAL, {}
        self._rng = np.random.default_rng(0)

    def play(self, count: int, auto: Auto | None = None) -> Economy:
        """So many more rounds; without `auto`, as configured and alone."""
        asked, state, rng = self._asked, self._state, self._rng
        for number in range(len(self.rounds) + 1, len(self.rounds) + count + 1):
            own = int(rng.binomial(asked, self.signal))
            others = _candidates(int(rng.poisson(self.supply)), self.worth)
            this = MixRound(number, 0.5, own, asked - own, num_questions=asked)
            told = History(*self.slots, (*self.rounds[-255:], this), state, USUAL, STEPS)
            decision = auto(told, others) if auto else Decision(sum(self.slots), 0)
            external = min(decision.external, len(others))
            local = min(decision.local, own)
            spent = {
                "asking": asked * self.question,
                "receiving": 0.1,
                "mix": 0.1 + external * self.mixed,
                "update": (local + self.part * external) * self.trained,
            }
            self.seconds += sum(spent.values())
            groups = local + external
            self.progress += (local + self.worth * external) * math.sqrt(min(1, STEPS / max(1, groups)))
            self.rounds.append(
                MixRound(
                    number, 0.5, own, asked - own, num_local=local, num_external=external, num_questions=asked,
                    external_part=self.part, num_candidates=len(others), seconds=spent,
                )
            )  # fmt: skip
            self.decisions.append(decision)
            asked, state = decision.num_questions or asked, dict(decision.state)
        self._asked, self._state = asked, state
        return self

    def rate_after(self, count: int, auto: Auto | None = None) -> float:
        """Progress a second after the first rounds."""
        self.play(FIRST, auto)
        seconds, progress = self.seconds, self.progress
        self.play(count, auto)
        return (self.progress - progress) / (self.seconds - seconds)


def _candidates(count: int, worth: float) -> list[Candidate]:
    advantages = Opinion().advantages((1.0, 0.0))
    return [candidate(str(k), f"peer-{k}", worth=worth, advantages=advantages) for k in range(count)]


def test_others_groups_are_used_as_far_as_they_pay() -> None:
    cheap = Economy(supply=10).play(60, Auto())
    assert min(each.external for each in cheap.decisions[20:]) >= 3
    dear = Economy(supply=10, mixed=30.0).play(60, Auto())
    assert sum(each.external for each in dear.decisions[20:]) <= 4, "but for a try now and then"
    worthless = Economy(supply=10, worth=0.02, signal=0.6).play(60, Auto())
    assert sum(each.external for each in worthless.decisions[20:]) <= 12


@pytest.mark.parametrize("mixed", [0.0, 0.5, 2.0, 30.0])
@pytest.mark.parametrize("worth", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("signal", [0.05, 0.5])
def test_it_is_not_slower_than_alone(mixed: float, worth: float, signal: float) -> None:
    economy = {"mixed": mixed, "worth": worth, "signal": signal}
    assert Economy(supply=6, **economy).rate_after(300, Auto()) >= 0.95 * Economy(**economy).rate_after(300)


def test_a_node_asks_less_where_others_supply_what_it_would_have_given() -> None:
    rich = Economy(signal=0.9, supply=24, slots=(4, 12)).play(80, Auto())
    last = rich.decisions[-1]
    assert last.num_questions is not None and last.num_questions < USUAL
    assert f"asks {last.num_questions} instead of 8: others give the groups that the rest would" in last.reason
    assert all((each.num_questions or USUAL) >= USUAL // 4 for each in rich.decisions), "all would wait for each other"


def test_the_number_of_questions_changes_step_by_step_and_stays_in_its_range() -> None:
    economy = Economy(signal=0.02, supply=0.2).play(100, Auto())
    asked: Sequence[int] = [each.num_questions or USUAL for each in economy.decisions]
    assert all(abs(b - a) <= max(1, a // 4) for a, b in zip(asked, asked[1:], strict=False))
    assert all(USUAL // 4 <= each <= 2 * USUAL for each in asked)


def test_what_is_fixed_in_asking_is_not_the_price_of_a_question() -> None:
    rounds = []
    for each in Economy(signal=0.9, supply=24, slots=(4, 12), question=0.5).play(40, Auto()).rounds:
        rounds.append(replace(each, seconds={**each.seconds, "asking": 3.0 + each.seconds["asking"]}))
    found = Costs.of(rounds)
    assert found is not None and found.question == pytest.approx(0.5)
    assert found.rest == pytest.approx(3.2)


def test_rounds_without_a_measurable_time_stop_nothing() -> None:
    seconds = dict.fromkeys(("asking", "receiving", "mix", "update"), 0.0)
    rounds = [MixRound(k, 0.5, 2, 2, num_local=2, num_questions=USUAL, seconds=seconds) for k in range(1, 20)]
    decision = Auto()(History(8, 8, tuple(rounds), {}, USUAL, STEPS), _candidates(2, 1.0))
    assert decision.num_questions is not None and decision.local + decision.external == 16


def test_after_a_restart_with_fewer_questions_their_range_is_the_new_one() -> None:
    rounds = Economy().play(30).rounds
    before = [replace(each, num_questions=10 * USUAL) for each in rounds]
    decision = Auto()(History(8, 8, tuple(before), {}, USUAL, STEPS), [])
    assert decision.num_questions is not None and decision.num_questions <= 2 * USUAL


def test_what_a_group_costs_is_the_slope_over_the_rounds() -> None:
    rounds = Economy(supply=6, question=1.5, mixed=0.25, trained=0.75).play(30, Auto()).rounds
    found = Costs.of(rounds)
    assert found is not None
    assert (found.question, found.mixed, found.trained) == pytest.approx((1.5, 0.25, 0.75))
    assert found.rest == pytest.approx(0.2)
    assert Costs.of(rounds[:1]) is None, "too few"


def test_the_first_round_in_which_something_is_compiled_counts_for_nothing() -> None:
    rounds = Economy(supply=6).play(30, Auto()).rounds
    slow = replace(rounds[0], seconds={**rounds[0].seconds, "update": 100.0})
    assert Costs.of([slow, *rounds[1:]]) == Costs.of(rounds)
    assert Costs.of([slow]) is None


def test_a_group_of_others_costs_the_part_that_an_update_computes() -> None:
    cheap = Economy(supply=6, trained=0.75, part=0.25).play(30, Auto()).rounds
    found = Costs.of(cheap)
    assert found is not None and (found.trained, found.part) == pytest.approx((0.75, 0.25))
    spent = found.seconds(8, own=2, external=4)
    assert spent == pytest.approx(0.2 + 8 * found.question + 4 * found.mixed + (2 + 0.25 * 4) * 0.75)
    whole = Economy(supply=24, trained=2.0, signal=0.5, worth=0.4).play(80, Auto())
    part = Economy(supply=24, trained=2.0, signal=0.5, worth=0.4, part=0.25).play(80, Auto())
    used = [sum(each.num_external for each in economy.rounds[40:]) for economy in (whole, part)]
    assert 10 * used[0] < used[1], "what costs less is used more"


def test_of_groups_with_equal_signal_those_that_cost_less_are_rather_drawn() -> None:
    rounds = Economy(supply=6, mixed=0.25, trained=0.75).play(30, Auto()).rounds
    known = Costs.of(rounds)
    assert known is not None
    told = History(8, 24, tuple(rounds), {}, USUAL, STEPS)
    cheap, dear = (replace(each, part=part) for each, part in zip(_candidates(2, 1.0), (0.125, 0.75), strict=True))
    weights = Auto()(told, [cheap, dear]).weights
    assert weights is not None and weights[0] / weights[1] == pytest.approx(
        (0.25 + 0.75 * 0.75) / (0.25 + 0.125 * 0.75)
    )


def test_own_groups_with_equal_completions_cost_less() -> None:
    rounds = [replace(each, local_part=0.5) for each in Economy(supply=6).play(30, Auto()).rounds]
    found = Costs.of(rounds)
    assert found is not None and found.own == 0.5
    assert found.seconds(0, own=3, external=0) == pytest.approx(found.rest + 1.5 * found.trained)


def test_questions_stay_as_configured_where_a_policy_cannot_change_them() -> None:
    told = History(4, 4, (MixRound(1, 0.5, 2, 6, num_questions=8),))
    assert Auto()(told, []).num_questions is None
