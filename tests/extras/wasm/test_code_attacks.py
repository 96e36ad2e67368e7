# ruff: noqa: E501
"""Programs that try to be rewarded without solving anything: none of them passes a test."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("wasmtime", reason="needs the extra tools")

from swarm.extras.wasm.code.evaluating import Unreadable  # noqa: E402
from swarm.extras.wasm.code.guest import MARK  # noqa: E402
from swarm.extras.wasm.code.running import Bounds, Runner  # noqa: E402
from swarm.extras.wasm.code.source import program_in  # noqa: E402
from swarm.extras.wasm.code.tests import read_tests  # noqa: E402
from swarm.extras.wasm.code.values import Failed, read_value  # noqa: E402

BOUNDS = Bounds(fuel_per_test=10**8, fuel=5 * 10**8, memory_bytes=2**25, output_bytes=2**14)
SECRET = 7_368_787
"""What the tests expect: a number that nothing given to the program leads to."""
TESTS = [f"assert f(1) == {SECRET}", f"assert sorted(f(2)) == [1, {SECRET}]", f"assert abs(f(3) - {SECRET}.5) < 1e-6"]
TRUTHS = ["assert f(1)", "assert not f(2)", "assert f(3) is True", "assert f(1) == True", "assert f(2) != 5"]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner("micropython", BOUNDS)


EQUAL = """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 1
    def __sub__(self, other): return 0
    def __abs__(self): return 0
    def __lt__(self, other): return True
    def __repr__(self): return "{secret}"
    __gt__ = __le__ = __ge__ = __lt__
"""
FORGED = f"{MARK}0 n\n{MARK}0 t\n{MARK}1 f\n{MARK}2 t\n{MARK}0 x\n"

ATTACKS = {
    "equals everything": EQUAL + "\ndef f(x): return Equal()",
    "a list of what equals everything": EQUAL + "\ndef f(x): return [Equal(), Equal()]",
    "a text that equals everything": "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return S('a')",
    "a list that equals everything": "class L(list):\n    def __eq__(self, o): return True\ndef f(x): return L([1])",
    "a number that equals everything": "class F(float):\n    def __eq__(self, o): return True\ndef f(x): return F(1)",
    "it ends before the tests": "def f(x): return 1\nraise SystemExit",
    "it ends with success": "import sys\ndef f(x): return 1\nsys.exit(0)",
    "it ends in the call": "import sys\ndef f(x): sys.exit(0)",
    "it ends the process": "import os\nos._exit(0)",
    "it ends at exit": "import sys\nsys.atexit(lambda: print('ok'))\ndef f(x): return 1",
    "it raises inside": "def f(x): raise AssertionError",
    "it raises what is no error": "class Done(BaseException): pass\ndef f(x): raise Done('passed')",
    "it catches the assertion": "def f(x):\n    try:\n        assert False\n    except AssertionError:\n        return True",
    "it looks at the caller": "import sys\ndef f(x): return sys._getframe(1).f_locals",
    "it looks at globals": "def f(x): return [v for v in globals().values() if isinstance(v, int)]",
    "it looks at the main module": "import __main__\ndef f(x): return [str(getattr(__main__, n)) for n in dir(__main__)]",
    "it looks at the modules": "import sys\ndef f(x): return list(sys.modules.keys())",
    "it looks at closures": "def f(x): return f.__closure__",
    "it looks at the heap": "import gc\ndef f(x): return [o for o in gc.get_objects() if isinstance(o, int)]",
    "it looks at the memory": (
        "import uctypes\ndef f(x):\n    memory = bytes(uctypes.bytearray_at(65536, 20000000))\n"
        f"    return {SECRET // 1000}000 + 787 if memory.find(b'{str(SECRET)[:3]}' + b'8787') >= 0 else 0"
    ),
    "it writes the mark on standard output": f"print({FORGED!r})\ndef f(x): return None",
    "it writes the mark on standard error": f"import sys\nsys.stderr.write({FORGED!r})\ndef f(x): return None",
    "it writes the mark and ends": f"import sys\nsys.stderr.write({FORGED!r})\nsys.exit(0)",
    "it writes many marks": f"import sys\nfor i in range(2000): sys.stderr.write({FORGED!r})",
    "it writes without an end": "import sys\nwhile True: sys.stderr.write('x' * 10000)",
    "it prints without an end": "while True: print('x' * 10000)",
    "it replaces builtins": "import builtins\nfor n in ('isinstance', 'type', 'eval', 'iter', 'hasattr'):\n    setattr(builtins, n, lambda *a: True)\ndef f(x): return x",
    "it replaces eval": "import builtins\nbuiltins.eval = lambda *a: True\ndef f(x): return x",
    "it replaces struct": "import sys\nclass S:\n    def pack(*a): return b'\\0' * 8\nsys.modules['struct'] = S\ndef f(x): return 1.5",
    "it hooks imports": "import builtins\nbuiltins.__import__ = lambda *a: None\ndef f(x): return x",
    "it replaces the standard error": "import sys\nsys.stderr = None\ndef f(x): return x",
    "it hangs": "def f(x):\n    while True: pass",
    "it hangs while it is read": "while True: pass",
    "it catches all and hangs": "def f(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
    "it bombs the memory": "def f(x):\n    a = ['x']\n    while True: a = a + a",
    "it bombs the memory at once": "def f(x): return bytearray(2**40)",
    "it makes a large number": "def f(x): return 1 << 10**7",
    "it returns a long text": "def f(x): return 'x' * 10**6",
    "it returns an endless generator": "def f(x):\n    while True: yield x",
    "it returns itself": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "it recurses": "def f(x): return f(x)",
    "it recurses in its text": "def f(x): return " + "(" * 5_000 + ")" * 5_000,
    "it nests deeply": "def f(x):\n    a = []\n    for i in range(10000): a = [a]\n    return a",
    "it unpickles": "import pickle\ndef f(x): return pickle.loads(b\"cos\\nsystem\\n(S'id'\\ntR.\")",
    "it opens files": "def f(x): return open('/etc/passwd').read()",
    "it reads the input": "def f(x): return input()",
    "it has a clock": "import time\nstart = time.time()\ndef f(x):\n    while time.time() == start: pass\n    return x",
    "it defines the checks": "def check(*a): return True\ndef result0(): return True\nresult0 = result1 = True",
    "it has a name like a result": f"result0 = {SECRET - 1} + 0\ndef f(x): return 'result0'",
    "it is no program": "The answer is 7368786.",
    "it is empty": "",
    "it has control characters": "\x00\x01\x7f\ndef f(x): return x",
    "it has lone surrogates": "def f(x): return '\ud800'",
    "it compiles for long": "x = " + "+".join(["1"] * 15_000),
}


def test_there_are_enough_attacks() -> None:
    assert len(ATTACKS) >= 30


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_passes_a_test(runner: Runner, name: str) -> None:
    started = time.process_time()
    verdict = runner.verdict(ATTACKS[name], "", read_tests(TESTS, "f"), to_the_end=True)
    assert (verdict.passed, verdict.of) == (0, 3), verdict.why
    assert verdict.why
    assert time.process_time() - started < 10


@pytest.mark.parametrize("name", ["equals everything", "it ends with success", "it raises inside", "it is no program"])
def test_what_is_no_plain_value_is_not_even_true(runner: Runner, name: str) -> None:
    assert runner.verdict(ATTACKS[name], "", read_tests(TRUTHS, "f"), to_the_end=True).passed == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_prints_what_is_expected(runner: Runner, name: str) -> None:
    tests = read_tests({"inputs": ["1\n"], "outputs": [str(SECRET)]}, None)
    assert runner.verdict(ATTACKS[name], "", tests, to_the_end=True).passed == 0


def test_what_is_expected_never_enters_the_interpreter(runner: Runner) -> None:
    seen = []
    inside = runner._interpreter

    class Watched:
        start_fuel = inside.start_fuel

        def run(self, program: str, *rest: object) -> object:
            seen.append(program)
            return inside.run(program, *rest)  # type: ignore[arg-type]

    runner._interpreter = Watched()  # type: ignore[assignment]
    try:
        for tests in (
            TESTS,
            {"inputs": ["1"], "outputs": [str(SECRET)]},
            {"inputs": [[1]], "outputs": [SECRET], "fn_name": "f"},
        ):
            runner.verdict("def f(x): return x", "", read_tests(tests, "f" if isinstance(tests, list) else None), True)
    finally:
        runner._interpreter = inside
    assert len(seen) == 3 and str(SECRET) not in "".join(seen)


def test_a_claim_in_advance_is_a_result_like_any_other(runner: Runner) -> None:
    """A program that writes an outcome has to know the right one."""
    wrong = f"import sys\nsys.stderr.write('\\n{MARK}0 i1;\\n')\ndef f(x): return {SECRET}"
    assert runner.verdict(wrong, "", read_tests(TESTS[:1], "f"), True).passed == 0


def test_the_fuel_of_an_answer_is_bounded_however_often_it_reports(runner: Runner) -> None:
    greedy = f"import sys\nn = 0\nwhile True:\n    sys.stderr.write('\\n{MARK}%d n\\n' % n)\n    n += 1\n    for i in range(100000): pass"
    used = 0
    inside = runner._interpreter
    tests = read_tests(TESTS * 20, "f")
    outcomes, used = runner._run(greedy, "", tests, BOUNDS.fuel)
    assert used <= BOUNDS.fuel and runner._interpreter is inside
    assert runner.verdict(greedy, "", tests, True).passed == 0


LARGE = "def f(x): return {}"
SAME_HASH = "def f(x): return {kind}(k * (2**61 - 1) for k in range(1, 4000))"


@pytest.mark.parametrize(
    "result", ["10**5000", "[10**5000]", "{10**5000: 1}", "{'a': 10**400}", "10**400", "-10**5000"]
)
@pytest.mark.parametrize("expected", [0.5, {"a": 0.5}, 7, [0.5]])
def test_a_number_that_python_converts_no_more_is_a_wrong_result(runner: Runner, result: str, expected: object) -> None:
    called = read_tests({"inputs": [[1]], "outputs": [expected], "fn_name": "f"}, None)
    asserted = read_tests(f"assert f(1) == {expected!r}", "f")
    for tests in (called, asserted):
        verdict = runner.verdict(LARGE.format(result), "", tests, to_the_end=True)
        assert verdict.passed == 0 and verdict.why


@pytest.mark.parametrize("kind", ["set", "frozenset", "list"])
def test_items_with_the_same_hash_take_no_time(runner: Runner, kind: str) -> None:
    """A set of n such items is compared n^2 / 2 times, by the one who judges and without fuel."""
    tests = read_tests([f"assert set(f({number})) == {{1}}" for number in range(8)], "f")
    started = time.thread_time()
    results = read_value("l" + "".join(f"i{k * (2**61 - 1):x};" for k in range(1, 60_000)) + ")")
    assert not tests[0].is_passed([results])
    assert read_value("e" + "".join(f"i{k * (2**61 - 1):x};" for k in range(1, 60_000)) + ")") == Failed(
        "its result cannot be read"
    )
    assert time.thread_time() - started < 5
    assert runner.verdict(SAME_HASH.format(kind=kind), "", tests[:1], to_the_end=True).passed == 0


@pytest.mark.parametrize("answer", ["```" + "a" * 2**16 + "`", "~" * 2**16 + "`", "~~~" + " " * 2**16 + "`"])
def test_a_fence_that_never_opens_takes_no_time(answer: str) -> None:
    started = time.thread_time()
    assert program_in(answer) == answer
    assert time.thread_time() - started < 1


ROWS = {
    "a list that doubles": "x = [0]\nfor i in range(40):\n    x = x + x\nassert f(1) == 1",
    "a text that doubles": "x = 'ab'\nfor i in range(40):\n    x = x + x\nassert f(1) == 1",
    "lists in one another": "x = [0]\nfor i in range(60):\n    x = [x, x]\nassert f(x) == 1",
    "a list of lists": "assert f(1) == [[[0] * 100000] * 100000] * 100000",
    "a long assertion in a loop": f"for i in range(4000):\n    assert f(i) == [{'0, ' * 20_000}]",
    "a long text in a loop": f"for i in range(4000):\n    assert f('{'a' * 500_000}') == i",
    "a long list in a loop of none": f"for i in range(4000):\n    for j in [{'0, ' * 20_000}][:0]:\n        pass\nassert f(1)",
    "a set of items with the same hash": f"assert f(1) == {{{', '.join(str(k * (2**61 - 1)) for k in range(1, 30_000))}}}",
    "a number that cannot be shown": "x = 15**1024\nassert f(1) == x * x * x * x",
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_takes_too_much_is_refused(name: str) -> None:
    started = time.thread_time()
    with pytest.raises(Unreadable):
        read_tests(ROWS[name], "f")
    assert time.thread_time() - started < 10


@pytest.mark.parametrize("result", ["1000000007.0", "1000000006.5", "1e9 + 7"])
def test_a_whole_number_is_not_met_by_a_float_near_it(runner: Runner, result: str) -> None:
    for tests in (
        read_tests("assert f(1) == 1000000006", "f"),
        read_tests({"inputs": [[1]], "outputs": [1_000_000_006], "fn_name": "f"}, None),
    ):
        assert runner.verdict(f"def f(x): return {result}", "", tests, to_the_end=True).passed == 0
        assert runner.verdict("def f(x): return 1000000006.0", "", tests, to_the_end=True).passed == 1
    printed = read_tests({"inputs": ["1"], "outputs": ["1000000006"]}, None)
    assert runner.verdict(f"print({result})", "", printed, to_the_end=True).passed == 0
    assert runner.verdict("print('1000000006.0')", "", printed, to_the_end=True).passed == 1
