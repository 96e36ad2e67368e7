"""Ctrl-C outside of commands: one line instead of a traceback. Imports next to nothing, to be there early."""

from __future__ import annotations

import os
import signal

from nodes import exits

STDERR = 2


def end(number: int = signal.SIGINT, frame: object = None) -> None:
    """End the process at once, in one line."""
    os.write(STDERR, b"interrupted\n")
    os._exit(exits.INTERRUPTED)


def end_by_the_first() -> bool:
    """From now on Ctrl-C ends the process; returns whether it does.

    It does not where the signal is ignored or handled already, and outside the main thread.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, end)
    except ValueError:  # another thread
        return False
    return True


class Ending:
    """The same within a block: a traceback out of imports means nothing to a user."""

    def __enter__(self) -> None:
        """Handle it."""
        self._handled = end_by_the_first()

    def __exit__(self, *raised: object) -> None:
        """Let it raise `KeyboardInterrupt` again."""
        if self._handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
