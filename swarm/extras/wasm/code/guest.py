"""What runs in the interpreter: it runs a program on the inputs of tests, and writes what came of each.

A test's outcome is a line on standard error: a mark, the number of the test, and a value as `values.py` reads it. The
program can write such lines, too; they are claims about its results, like any other result. All of this is Python that
MicroPython and CPython have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

MARK = "\x01"
"""Begins a line with an outcome."""
MAX_DEPTH = 64
"""Deepest nesting of a value."""
MAX_PARTS = 100_000
"""Most parts of a value, all lists in it counted."""
MAX_ERROR_CHARS = 200

_HARNESS = """
def _harness(program, setup, tests, max_chars):
    import sys, io, struct
    errors = sys.stderr

    class TooLarge(Exception):
        pass

    def pack(value, out, depth):
        out[0] -= 1
        if depth > MAX_DEPTH or out[0] < 0:
            raise TooLarge("the result is too large or nested too deeply")
        kind = type(value)
        if value is None:
            out.append("n")
        elif kind is bool:
            out.append("t" if value else "f")
        elif kind is int:
            out.append("i%x;" % value)
        elif kind is float:
            out.append("d" + hexed(struct.pack("<d", value)))
        elif kind is complex:
            out.append("c" + hexed(struct.pack("<dd", value.real, value.imag)))
        elif isinstance(value, str):
            out.append("s" + hexed(value.encode()))
        elif isinstance(value, (bytes, bytearray)):
            out.append("b" + hexed(bytes(value)))
        elif isinstance(value, int):
            out.append("i%x;" % int(value))
        elif isinstance(value, float):
            out.append("d" + hexed(struct.pack("<d", float(value))))
        elif isinstance(value, dict):
            out.append("m")
            for key in value:
                pack(key, out, depth + 1)
                pack(value[key], out, depth + 1)
            out.append(")")
        else:
            mark = None
            for base, letter in ((list, "l"), (tuple, "u"), (set, "e"), (frozenset, "z")):
                if isinstance(value, base):
                    mark = letter
            if mark is None:
                try:
                    items = iter(value)
                except TypeError:
                    out.append("o" + hexed(kind.__name__.encode()))
                    return
                mark = "g"
            else:
                items = iter(value)
            out.append(mark)
            for item in items:
                pack(item, out, depth + 1)
            out.append(")")

    def hexed(content):
        if len(content) > max_chars:
            raise TooLarge("the result is too long")
        return content.hex() + ";"

    def report(number, result):
        errors.write("\\n%s%d %s\\n" % (MARK, number, result))
        if hasattr(errors, "flush"):
            errors.flush()

    def failure(error):
        name = type(error).__name__
        try:
            text = str(error)
        except BaseException:
            text = ""
        if name == "SystemExit":
            text = "the program ended before the call" if text in ("", "None", "0") else text
        name = (name + (": " + text if text else ""))[:MAX_ERROR]
        return "x" + hexed(name.encode())

    broken = None
    space = None
    for number, stdin, call in tests:
        try:
            if stdin is None:
                if space is None and broken is None:
                    space = {"__name__": "solution", "print": lambda *values, **options: None}
                    try:
                        exec(compile(program, "program", "exec"), space)
                        if setup:
                            exec(compile(setup, "setup", "exec"), space)
                    except BaseException as error:
                        broken = failure(error)
                if broken is not None:
                    report(number, broken)
                    continue
                out = [MAX_PARTS]
                pack(eval(call, space), out, 0)
                result = "".join(out[1:])
            else:
                result = "s" + hexed(_printed(program, setup, stdin))
            report(number, result)
        except BaseException as error:
            report(number, failure(error))

"""

# This build of MicroPython keeps pointers where its collector does not look for them: what a collection frees may be in
# use. Without one, a program that has used up its memory fails instead of going on with what is left.
_PRINTED = {
    "micropython": """
import gc
gc.disable()

class _Output:
    def __init__(self):
        self._full = []
        self._room = bytearray(4096)
        self._used = 0
        self.buffer = self
    def write(self, text):
        content = text.encode() if isinstance(text, str) else text
        end = self._used + len(content)
        if end > 4096:
            self._full.append(bytes(self._room[:self._used]))
            self._used, end = 0, len(content)
        if end > 4096:
            self._full.append(bytes(content))
        else:
            self._room[self._used:end] = content
            self._used = end
        return len(text)
    def writelines(self, lines):
        for line in lines:
            self.write(line)
    def flush(self):
        pass
    def isatty(self):
        return False
    def getvalue(self):
        return b"".join(self._full + [bytes(self._room[:self._used])])

class _Input:
    def __init__(self, text):
        import io
        self._text = io.StringIO(text)
        self.buffer = self
    def read(self, size=-1):
        return self._text.read(size)
    def readline(self, size=-1):
        return self._text.readline()
    def readlines(self, hint=-1):
        return list(self)
    def __iter__(self):
        while True:
            line = self._text.readline()
            if not line:
                return
            yield line
    def isatty(self):
        return False

def _printed(program, setup, stdin):
    import sys
    output, given = _Output(), _Input(stdin)

    class System:
        stdin, stdout = given, output
        argv = ["program"]
        def __getattr__(self, name):
            return getattr(sys, name)
        def setrecursionlimit(self, limit):
            pass
        def getrecursionlimit(self):
            return 1000

    def write(*values, sep=" ", end="\\n", file=None, flush=False):
        texts = [str(each) for each in values]
        text = texts[0] if len(texts) == 1 else (" " if sep is None else sep).join(texts)
        (output if file is None else file).write(text + ("\\n" if end is None else end))

    def read(prompt=""):
        output.write(str(prompt))
        line = given.readline()
        if not line:
            raise EOFError("EOF when reading a line")
        return line[:-1] if line.endswith("\\n") else line

    sys.modules["sys"] = System()
    space = {"__name__": "__main__", "print": write, "input": read}
    try:
        _run(program, setup, space)
    finally:
        sys.modules["sys"] = sys
    return output.getvalue()
""",
    "cpython": """
def _printed(program, setup, stdin):
    import sys, io
    kept = (sys.stdin, sys.stdout)
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    sys.stdout = output
    sys.argv = ["program"]
    try:
        _run(program, setup, {"__name__": "__main__"})
    finally:
        sys.stdin, sys.stdout = kept
    output.flush()
    return output.buffer.getvalue()
""",
}

_RUN = """
def _run(program, setup, space):
    try:
        exec(compile((setup + "\\n" if setup else "") + program, "program", "exec"), space)
    except SystemExit as end:
        if end.args and end.args[0] not in (None, 0):
            raise ValueError("the program ended with status " + str(end.args[0]))

"""


def program_text(
    interpreter: str, program: str, setup: str, tests: Sequence[tuple[int, str | None, str]], max_chars: int
) -> str:
    """What an interpreter runs for a program and its tests, each (number, standard input or None, call).

    `setup` runs after the program where calls are tested, and before it where it reads standard input. A result longer
    than `max_chars` is an error.
    """
    constants = f"MARK, MAX_DEPTH, MAX_PARTS, MAX_ERROR = {MARK!r}, {MAX_DEPTH}, {MAX_PARTS}, {MAX_ERROR_CHARS}\n"
    start = f"_harness({program!r}, {setup!r}, {list(tests)!r}, {max_chars})\n"
    return f"{constants}{_RUN}{_PRINTED[interpreter]}{_HARNESS}{start}"
