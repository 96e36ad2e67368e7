"""The answers and options that may reach code which evaluates them."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest
from reasoning_gym.factory import DATASETS

from swarm.tasks.answer_guard import EVALUATED_LITERALS, EVALUATED_MATHEMATICS, is_safe_answer, is_safe_option
from swarm.tasks.config import ReasoningGymTask
from swarm.tasks.reasoning_gym import ReasoningGymSource, dataset_options, make_dataset

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
def test_the_guard_knows_every_scorer_that_evaluates_answers(compiled: _Compiled) -> None:
    for name in sorted(set(DATASETS) - {"composite"}):
        dataset = make_dataset(name, 5, {})
        entry = dataset[0]
        compiled.dataset = name
        for payload in PAYLOADS:
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                dataset.score_answer(payload, entry)
        compiled.dataset = ""
    assert compiled.seen == EVALUATED_LITERALS | EVALUATED_MATHEMATICS


@pytest.mark.parametrize("name", sorted(EVALUATED_LITERALS | EVALUATED_MATHEMATICS))
def test_no_call_reaches_a_scorer_and_its_own_answers_do(name: str, tmp_path: object) -> None:
    marker = f"{tmp_path}/ran"
    source = ReasoningGymSource(ReasoningGymTask(name=name))
    ref = source.question(1, 0).ref
    for code in (f"open('{marker}', 'w')", f"[open('{marker}', 'w')]", f"exec(\"open('{marker}', 'w')\")"):
        assert source.score(ref, f"<answer>{code}</answer>") == 0.0
        assert not is_safe_answer(name, code)
    with pytest.raises(FileNotFoundError):
        open(marker).close()
    for index in range(40):
        oracle = source.oracle(1, index)
        assert oracle is not None and is_safe_answer(name, oracle), oracle


@pytest.mark.parametrize("answer", ["__import__", "eval", "x.real", "2*foo", "x[0]", "'a'", "lambda: 1", "ｅval"])
def test_mathematics_is_numbers_letters_and_known_functions(answer: str) -> None:
    assert not is_safe_answer("countdown", answer)


@pytest.mark.parametrize("answer", ["(1 + 2)*3/4", "x**3/3 - 2*sin(x) + C", "3.5*exp(2*X)", "log(x + 1)"])
def test_mathematics_may_be_written(answer: str) -> None:
    assert is_safe_answer("simple_integration", answer)


def test_every_default_option_of_the_library_is_safe() -> None:
    def plain(value: object) -> object:
        return [plain(element) for element in value] if isinstance(value, list | tuple) else value

    for name in set(DATASETS) - {"composite"}:
        for option, value in dataset_options(name).items():
            assert is_safe_option(plain(value)), (name, option, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["f(x)", "../secret", "/etc/passwd", ["a", "b'"], {"a": "`x`"}, {"f()": 1}])
def test_options_carry_no_code_and_no_path(value: object) -> None:
    assert not is_safe_option(value)  # type: ignore[arg-type]
