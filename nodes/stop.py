"""Ctrl-C and SIGTERM as a request that is honoured where everything is consistent."""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130


class StopRequest:
    """Set by the first signal; the second one ends the process at once."""

    def __init__(self) -> None:
        """Catch SIGINT and SIGTERM from now on. Main thread only."""
        self._asked = False
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def __call__(self) -> bool:
        """Whether to stop."""
        return self._asked

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(EXIT_INTERRUPTED)
        self._asked = True
