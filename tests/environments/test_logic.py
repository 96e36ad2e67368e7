"""Conclusions of propositional logic: what is rewarded follows from the premises, and is not said by them."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest
from reasoning_gym.logic.propositional_logic import Expression

from swarm.environments.scoring.logic import NOT_ENTAILED, propositional_logic
from swarm.environments.sources.reasoning_gym import ReasoningGymSource, ReasoningGymTask, make_dataset


def score(answer: str, *premises: str) -> float:
    names = sorted({letter for premise in premises for letter in premise if letter.isalpha()})
    return propositional_logic(answer, {"metadata": {"variables": names, "premises": premises}})


@pytest.mark.parametrize(
    ("premises", "answer"),
    [
        (("P", "P → Q"), "Q"),
        (("P → Q", "Q → R"), "P → R"),
        (("P → Q", "Q → R"), "¬P ∨ R"),
        (("P → Q", "¬Q"), "¬P"),
        (("P ∨ Q", "¬P ∨ Q"), "Q"),
        (("¬(P ∨ Q)",), "¬P"),
        (("P ↔ Q", "R"), "P → Q"),
        (("P → Q", "Q → R", "R → S", "S → P"), "P ↔ R"),
    ],
)
def test_what_follows_and_is_not_said_is_right(premises: tuple[str, ...], answer: str) -> None:
    assert score(answer, *premises) == 1.0


@pytest.mark.parametrize(
    ("premises", "answer"),
    [
        (("P → Q", "R"), "P → Q"),
        (("P → Q", "R"), "¬¬(P → Q)"),
        (("P → Q", "R"), "¬Q → ¬P"),
        (("P → Q", "R"), "(P → Q) ∧ R"),
        (("P → Q", "R"), "¬(¬R ∨ ¬(P → Q))"),
        (("P → Q", "R"), "R ∨ P"),
        (("P", "R"), "P ∨ R"),
        (("P", "R"), "P → R"),
        (("P", "R"), "P ↔ R"),
        (("P", "R"), "P"),
        (("P ∧ (Q → R)",), "Q → R"),
        (("P ∧ Q",), "P"),
        (("P", "R"), "P ∨ ¬P"),
        (("P", "¬P", "Q"), "¬Q"),
        (("P → Q", "P"), "Q ∧ P"),
    ],
)
def test_what_the_premises_say_or_what_is_weaker_is_worth_nothing(premises: tuple[str, ...], answer: str) -> None:
    assert score(answer, *premises) == 0.0


@pytest.mark.parametrize("answer", ["", "P Q", "(P", "P)", "p", "S", "P ∧", "∧", "¬", "()", "P" * 501, "¬" * 61 + "P"])
def test_what_is_no_formula_is_worth_nothing(answer: str) -> None:
    assert score(answer, "P", "P → Q") == 0.0


def test_no_question_rewards_a_premise_or_what_is_made_of_premises() -> None:
    source = ReasoningGymSource(ReasoningGymTask(name="propositional_logic"))
    for index in range(100):
        ref = source.question(2, index).ref
        premises = [f"({each})" for each in source._entry(ref.seed, ref.index)["metadata"]["premises"]]
        made = [f"{one} ∧ {other}" for one, other in combinations(premises, 2)]
        weaker = [f"{premise} ∨ {other}" for premise, other in product(premises, "PQ")]
        for answer in (*premises, *made, *weaker, *(f"¬¬{premise}" for premise in premises), " ∧ ".join(premises)):
            assert source.score(ref, f"<answer>{answer}</answer>") == 0.0, answer


def test_what_is_rewarded_is_entailed_by_the_library_s_tables() -> None:
    library = make_dataset("propositional_logic", 7, {"max_vars": 3})
    literals = [f"{sign}{name}" for name, sign in product("PQR", ("", "¬"))]
    candidates = [*literals, *(f"{a} {symbol} {b}" for a, b in combinations(literals, 2) for symbol in "∧∨→↔")]
    rewarded = 0
    for index in range(60):
        entry = library[index]
        known = entry["metadata"]["variables"]
        premises = [Expression.from_string(premise) for premise in entry["metadata"]["premises"]]
        for answer in candidates:
            if set(answer) & set("PQR") <= set(known):
                found = propositional_logic(answer, entry)
                is_valid = library._is_valid_conclusion(premises, Expression.from_string(answer))
                assert (found == NOT_ENTAILED) != is_valid, (answer, entry["metadata"]["premises"])
                rewarded += found == 1.0
    assert rewarded > 20


def _formula(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice("PQR")
    match rng.randrange(4):
        case 0:
            return f"¬{_formula(rng, depth - 1)}"
        case 1:
            return f"({_formula(rng, depth - 1)})"
    return f"{_formula(rng, depth - 1)} {rng.choice('∧∨→↔')} {_formula(rng, depth - 1)}"


def test_formulas_are_read_as_the_library_reads_them() -> None:
    rng = random.Random(3)
    for _ in range(500):
        formula = _formula(rng, 4)
        tree = Expression.from_string(formula)
        for values in product((False, True), repeat=3):
            stated = [name if value else f"¬{name}" for name, value in zip("PQR", values, strict=True)]
            entry = {"metadata": {"variables": ["P", "Q", "R"], "premises": stated}}
            is_true = tree.evaluate(dict(zip("PQR", values, strict=True)))
            assert (propositional_logic(formula, entry) != NOT_ENTAILED) == is_true, formula
