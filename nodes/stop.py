"""Ctrl-C and SIGTERM as a request that is honoured where everything is consistent."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from nodes import exits

STDIN = 0


class StopRequest:
    """Set by the first signal; the second one ends the process at once."""

    def __init__(self, supervised: bool = False) -> None:
        """Catch SIGINT and SIGTERM from now on. Main thread only.

        `supervised`: the end of standard input is such a request too. Whoever started this process holds the other end
        of the pipe, and the kernel closes it however that process dies.
        """
        self._asked = False
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        if supervised:
            threading.Thread(target=_end_with_stdin, name="supervision", daemon=True).start()

    def __call__(self) -> bool:
        """Whether to stop."""
        return self._asked

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(exits.INTERRUPTED)
        self._asked = True


def _end_with_stdin() -> None:
    while os.read(STDIN, 1):  # not sys.stdin, whose lock would be held when the interpreter exits
        pass
    os.kill(os.getpid(), signal.SIGTERM)
