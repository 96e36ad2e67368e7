"""Consoles, and standard streams to print to."""

from __future__ import annotations

import io
import os
import sys

from rich.console import Console

from swarm.foreign import clean_lines


def make_console() -> Console:
    """For standard output; lines are not wrapped without a terminal, and characters that it lacks are replaced."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return literal_console(width=None if sys.stdout.isatty() else 160)


def literal_console(*, stderr: bool = False, quiet: bool = False, width: int | None = None) -> Console:
    """A console that prints texts as they are: `[bold]` and `:smile:` in others' texts and names mean nothing."""
    return Console(stderr=stderr, quiet=quiet, width=width, markup=False, emoji=False)


def say(console: Console, text: str) -> None:
    """Print lines for people, which only the terminal wraps."""
    console.print(clean_lines(text), markup=False, highlight=False, soft_wrap=True)


def open_streams() -> None:
    """Open those of the three standard streams that this process was started without, as if to /dev/null.

    Otherwise the next file or socket that is opened would take the place of one, and get what is printed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
