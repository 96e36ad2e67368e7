"""Turns Ctrl-C, SIGTERM and a closed terminal into a stop request, obeyed where the state is consistent."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from nodes import exits

STDIN = 0

Stop = Callable[[], bool]
"""Whether to stop."""


class StopRequest:
    """Set by the first signal; the second ends the process at once."""

    def __init__(self, supervised: bool = False) -> None:
        """Handle SIGINT, SIGTERM and, unless it is ignored as under `nohup`, SIGHUP from now on.

        Main thread only. `supervised`: the end of standard input is a stop request, too. The parent holds the other end
        of the pipe, and the kernel closes it however the parent dies.
        """
        self._asked = False
        self._at_once = False
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._on_signal)
        if supervised:
            threading.Thread(target=_end_with_stdin, name="supervision", daemon=True).start()

    def __call__(self) -> bool:
        """Whether to stop."""
        return self._asked

    def ask(self) -> None:
        """Stop, as a signal asks."""
        self._asked = True

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within the block, a signal raises `KeyboardInterrupt`: there is nothing yet that must be consistent."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(exits.INTERRUPTED)
        self._asked = True
        if self._at_once:
            raise KeyboardInterrupt


def _end_with_stdin() -> None:
    while os.read(STDIN, 1):  # not sys.stdin, because its lock would be held when the interpreter exits
        pass
    os.kill(os.getpid(), signal.SIGTERM)
