"""Chat templates are rendered in a process of little memory and time, one for all policies of a node.

It starts with the first template and again after one that ended it; `process.py` is what it runs.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from swarm.errors import PolicyError
from swarm.foreign import clean
from swarm.policy.templates import process

SCRIPT = Path(process.__file__)
KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "PYTHONHOME")
"""Without these some installations of Python do not start."""
PATIENCE_S = 120.0
"""By the clock, for a machine that is busy with other things."""


class TemplateRenderer:
    """Any thread may call it. A child of this process by fork starts a process of its own."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, template: str, values: Mapping[str, object]) -> str:
        """What a template makes of these values. Raises `PolicyError` for whatever it raises, and at the limits."""
        request = json.dumps({"template": template, "values": dict(values)}).encode()
        with self._lock:
            answer = self._ask(len(request).to_bytes(process.LENGTH_BYTES, "big") + request)
        if answer is None:
            raise PolicyError(
                f"the model's chat template takes over {process.LIMIT_S:.0f} s of processor time, or over "
                f"{process.MAX_MEMORY_BYTES} bytes of memory: choose another model, or repair its template"
            )
        found: dict[str, str] = json.loads(answer)
        if "text" not in found:
            raise PolicyError(f"the model's chat template cannot be used: {clean(found['error'])}")
        return found["text"]

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _ask(self, request: bytes) -> bytes | None:
        """None if the process ends before it answers."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.close()
            self._process, self._owner = _start(), os.getpid()
        assert self._process.stdin is not None and self._process.stdout is not None
        patience = threading.Timer(PATIENCE_S, self._process.kill)
        patience.daemon = True
        patience.start()
        try:
            with suppress(OSError):
                self._process.stdin.write(request)
                self._process.stdin.flush()
            length = int.from_bytes(self._process.stdout.read(process.LENGTH_BYTES), "big")
            answer = self._process.stdout.read(length)
        finally:
            patience.cancel()
        if answer and len(answer) == length:
            return answer
        self.close()
        return None


def _start() -> subprocess.Popen[bytes]:
    """Raises `PolicyError` when the system has no room for it."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUTF8": "1"},
            start_new_session=True,  # the terminal's Ctrl-C goes to the node
        )
    except OSError as error:
        raise PolicyError(f"the process for chat templates cannot be started: {error}") from error


RENDERER = TemplateRenderer()
"""Of this process."""
atexit.register(RENDERER.close)
