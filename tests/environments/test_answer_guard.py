"""The answers and options that may reach the library's code."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest
from hypothesis import given, settings, strategies as st
from reasoning_gym.arithmetic.calendar_arithmetic import CalendarTask
from reasoning_gym.factory import DATASETS

from swarm.environments.scoring.answer_guard import (
    MAX_ANSWER,
    MAX_MOVES,
    REACH,
    Reach,
    admitted,
    is_safe_option,
    read_json,
)
from swarm.environments.sources.reasoning_gym import ReasoningGymSource, ReasoningGymTask, dataset_options, make_dataset
from tests.environments.test_scorers import EVALUATED

PAYLOADS = [
    "canary(1)",
    "[canary(1)]",
    "[[canary(1), 1]]",
    "(canary+1)",
    "canary",
    "x = canary(1)",
    "canary(1) 2 3",
    '{"a": canary(1)}',
    '"canary".upper()',
    "x.canary",
    "x . canary",
    "canary\n",
    "2*ｃanary",
]


class _Compiled:
    """Names of the data sets whose scorers compiled the payload; audit hooks cannot be removed, so it is switched."""

    def __init__(self) -> None:
        self.dataset = ""
        self.seen: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if event == "compile" and self.dataset and "anary" in str(args[0]):
            self.seen.add(self.dataset)


@pytest.fixture(scope="module")
def compiled() -> _Compiled:
    return _Compiled()


@pytest.mark.slow
def test_every_scorer_that_evaluates_answers_is_known(compiled: _Compiled) -> None:
    for name in sorted(REACH):
        dataset = make_dataset(name, 5, {})
        entry = dataset[0]
        compiled.dataset = name
        for payload in PAYLOADS:
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                dataset.score_answer(payload, entry)
        compiled.dataset = ""
    assert compiled.seen == EVALUATED


@pytest.mark.parametrize(
    ("dataset", "answer", "seen"),
    [
        ("gcd", "12", "12"),
        ("gcd", "1" * (MAX_ANSWER + 4), "1" * (MAX_ANSWER + 4)),  # twice the oracle's length comes on top
        ("gcd", "1" * (MAX_ANSWER + 5), None),
        ("power_function", "-4.51e-10", "-4.51e-10"),
        ("power_function", "1e-999999999", None),
        ("power_function", "1E+1_0_0", None),
        ("chain_sum", "1e9,9,9", None),
        ("complex_arithmetic", "4.0 - 7.0i", "4.0 - 7.0i"),
        ("complex_arithmetic", "n a n", None),
        ("complex_arithmetic", "1 - infj", None),
        ("number_sorting", "['-92.5', '30.0']", '["-92.5", "30.0"]'),
        ("number_sorting", "[1.5,2]", "[1.5, 2]"),
        ("number_sorting", "[NaN]", None),
        ("number_sorting", '["nan"]', None),
        ("number_sorting", "[1e999]", None),
        ("jugs", '["fill A"]', '["fill A"]'),
        ("jugs", '["fill A"] # comment', None),
        ("knight_swap", "No", "No"),
        ("knight_swap", "Now", None),
        ("boxnet", json.dumps(["a" * 201]), None),
        ("rubiks_cube", "R U2 F'", "R U2 F'"),
        ("rubiks_cube", "R22", None),
        ("rubiks_cube", "R٢٢", None),
        ("rubiks_cube", "R " * MAX_MOVES, None),
        ("rush_hour", "A+1 B-2", "A+1 B-2"),
        ("rush_hour", "A+10", None),
        ("calendar_arithmetic", "7", "7"),
    ],
)
def test_what_a_scorer_may_see(dataset: str, answer: str, seen: str | None) -> None:
    assert admitted(dataset, answer, "12") == seen


@pytest.mark.parametrize(
    ("dataset", "oracle", "right", "wrong"),
    [
        ("calendar_arithmetic", "-1", " -1", "30"),
        ("polynomial_equations", "", '""', "none"),
        ("polynomial_equations", "", "", "?"),
        (
            "knights_knaves",
            "Ed is a sage, and Al is a fool.",
            "(Al is a fool), Ed is a sage",
            "if Ed is a sage then Al is a fool",
        ),
    ],
)
def test_what_a_scorer_would_take_for_right_is_not_shown_to_it(
    dataset: str, oracle: str, right: str, wrong: str
) -> None:
    assert admitted(dataset, right, oracle) == right
    assert admitted(dataset, wrong, oracle) is None


def test_the_library_takes_it_for_right() -> None:
    calendar = make_dataset("calendar_arithmetic", 0, {})
    entry = {"answer": "-1", "metadata": {"task": CalendarTask.RECURRING_EVENT_CALCULATIONS.value}}
    assert calendar.score_answer("30", entry) > 1.0
    assert make_dataset("polynomial_equations", 0, {}).score_answer("none", {"answer": ""}) == 1.0
    assert make_dataset("complex_arithmetic", 0, {}).score_answer("nan", {"metadata": {"result": (1, 2)}}) == 1.0


@pytest.mark.parametrize("name", sorted(name for name, reach in REACH.items() if reach is Reach.JSON))
@given(st.text(max_size=60) | st.recursive(st.none() | st.floats() | st.text(max_size=5), st.lists).map(json.dumps))
@settings(max_examples=20)
def test_json_is_passed_on_as_it_was_read(name: str, answer: str) -> None:
    seen = admitted(name, answer, "")
    assert seen is None or seen == answer or json.loads(seen) == json.loads(answer) == read_json(answer)


@given(
    st.sampled_from(sorted(REACH)),
    st.text(st.sampled_from("0123456789.,-+*/^()[]{}\"' \nexnaifoPQ∧¬→:_RUF'movet"), max_size=200)
    | st.text(max_size=80),
)
@settings(max_examples=300)
def test_no_answer_raises(name: str, answer: str) -> None:
    assert admitted(name, answer, "1") is None or len(answer) <= MAX_ANSWER + 2


def test_every_default_option_of_the_library_is_safe() -> None:
    def plain(value: object) -> object:
        return [plain(element) for element in value] if isinstance(value, list | tuple) else value

    for name in set(DATASETS) - {"composite"}:
        for option, value in dataset_options(name).items():
            assert is_safe_option(plain(value)), (name, option, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    ["f(x)", "../secret", "/etc/passwd", "C:\\x", "a__b__", "a" * 65, "a\nb", ["a", "b'"], {"a": "`x`"}, {"f()": 1}]
    + [10**13, -1e300, float("nan"), float("inf"), [[[[1]]]], list(range(257)), {"a": {"b": {"c": {}}}}],
)
def test_options_are_small_and_carry_no_code_and_no_path(value: object) -> None:
    assert not is_safe_option(value)  # type: ignore[arg-type]


def test_options_that_take_for_ever_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(config: object) -> object:
        while True:
            pass

    monkeypatch.setitem(DATASETS, "gcd", (hang, DATASETS["gcd"][1]))
    monkeypatch.setattr("swarm.environments.sources.reasoning_gym.SETUP_LIMIT_S", 0.2)
    with pytest.raises(Exception, match=r"took more than 0\.2 s"):
        ReasoningGymSource(ReasoningGymTask(name="gcd"))
