"""Questions with tests: their settings. `source.py` runs the answers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

from pydantic import Field, JsonValue

from swarm.distribution import how_to_install
from swarm.environments.answering import Template
from swarm.environments.config import Context
from swarm.environments.sources.dataset import RowsTask
from swarm.errors import TaskError
from swarm.extras.wasm.interpreter import InterpreterName
from swarm.protocols import TaskSource

VERSION = 1
"""Version of how tests are read, run and compared, in digests: to be raised with every change of a verdict."""
DEFAULT_REQUEST = "Reply with a Python program in a block that begins with ```python and ends with ```."
_RULES = {
    *("tests", "function", "setup", "before", "partial", "interpreter", "max_tests", "fuel_per_test", "fuel"),
    *("memory_bytes", "output_bytes"),
}


class CodeTask(RowsTask):
    """A data set of questions with tests, each answered by a Python program that is run on them. Its program is the
    last block of code in an answer; without a block, the whole answer."""

    reads_whole = True

    kind: Literal["code"]
    prompt: Template = "{prompt}"
    """The same as for data sets."""
    tests: Template | None = None
    """Column, or path in it, with the tests, in one of the layouts of docs/extras/code.md. Default: the first of
    `test_list`, `test`, `reward_model.ground_truth`, `verification_info`, `input_output`, `test_cases`,
    `public_test_cases` and `tests` that the data set has."""
    function: Template | None = None
    """Column, or path in it, with the name of the function under test. Default: `entry_point` or `fn_name` if the data
    set has it, else the function that the tests name."""
    setup: Template | None = None
    """Column, or path in it, with code that runs after the program and before its function is called. Default:
    `test_setup_code` or `test_imports` if the data set has it."""
    before: Template | None = None
    """Column, or path in it, with code that stands before every program. Default: `prompt` where tests are in the
    column `test` and the function in `entry_point`, as in HumanEval."""
    partial: bool = False
    """Reward the share of tests that are passed; by default 1 if all are, else 0."""
    interpreter: InterpreterName = "micropython"
    """What runs programs: `micropython` starts in milliseconds and lacks much of the library; `cpython` is complete,
    needs the extra `cpython`, half a minute for each worker's start and half a second a program."""
    max_tests: int = Field(16, ge=1, le=256)
    """Tests of a question that are run: its first ones."""
    fuel_per_test: int = Field(10**9, ge=10**6, le=10**12)
    """Instructions of one test; 10^9 take MicroPython about 0.3 s."""
    fuel: int = Field(4 * 10**9, ge=10**6, le=10**13)
    """Instructions of all tests of an answer, with the starts of the interpreter."""
    memory_bytes: int = Field(2**27, ge=2**24, le=2**31)
    """Memory of a program, half of it for its objects. MicroPython never frees an object."""
    output_bytes: int = Field(2**16, ge=2**8, le=2**22)
    """Bytes of a result, and of what is printed for a test; more is wrong."""

    def _request(self) -> str:
        return super()._request() or (DEFAULT_REQUEST if self.ask is None and self.find is None else "")

    def source(self, context: Context) -> TaskSource:
        """See `QuestionSettings`."""
        if find_spec("wasmtime") is None:
            raise TaskError(f"tasks of the kind code need what is not installed: {how_to_install('tools')}")
        from swarm.extras.wasm.code.source import CodeSource

        return CodeSource(self, counts=context.counts, stored=context.stored)

    def import_libraries(self) -> None:
        """See `TaskSettings`."""
        super().import_libraries()
        import swarm.extras.wasm.code.source  # noqa: F401

    @property
    def grades_as(self) -> tuple[Mapping[str, JsonValue], ...]:
        """See `QuestionSettings`."""
        return ({"code": VERSION, **self.model_dump(mode="json", include=_RULES)},)
