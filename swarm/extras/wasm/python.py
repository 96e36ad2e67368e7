"""Python as a tool: MicroPython in WebAssembly, a fresh interpreter for each call."""

from __future__ import annotations

from importlib.util import find_spec

from swarm.distribution import how_to_install
from swarm.environments.digests import digest
from swarm.environments.sources.lru import LruCache
from swarm.environments.tools.base import Tool
from swarm.environments.tools.schema import text_argument
from swarm.errors import TaskError

FUEL = 1_000_000_000
MEMORY_BYTES = 2**25
HEAP_BYTES = 2**23
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
        if find_spec("wasmtime") is None:
            raise TaskError(f"the Python tool is not installed: {how_to_install('tools')}")
        from swarm.extras.wasm.interpreter import Interpreter
        from swarm.extras.wasm.wasm import Limits

        self._interpreter = Interpreter("micropython")
        self._limits = Limits(FUEL, MEMORY_BYTES, OUTPUT_BYTES)
        about = (self._interpreter.compiler, FUEL, MEMORY_BYTES, "8m", OUTPUT_BYTES)
        self.version = digest("python", self._interpreter.sha256, *about)
        self._results: LruCache[str, str] = LruCache(NUM_RESULTS)

    @classmethod
    def import_libraries(cls) -> None:
        """See `Tool`."""
        import swarm.extras.wasm.interpreter  # noqa: F401

    def run(self, call: str) -> str:
        """What the program prints, and how it ended unless by itself."""
        result = self._results.get(call)
        if result is None:
            result = self._run(call)
            self._results.put(call, result)
        return result

    def _run(self, call: str) -> str:
        done = self._interpreter.run(call, HEAP_BYTES, self._limits)
        printed = done.output.decode("utf-8", "replace").rstrip()
        if len(done.output) == OUTPUT_BYTES:
            printed += "..."
        if done.ending != "exited":
            return f"{printed}\nstopped: {done.ending}".lstrip()
        return printed or "(nothing was printed)"
