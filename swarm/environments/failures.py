"""Failures of a run's tasks: counted, and the first of each kind kept for the user."""

from __future__ import annotations

from collections import Counter

MAX_SHOWN = 4
"""Malformed rows of a task that are shown; further ones are counted."""
MAX_FAILURE_CHARS = 400


class Failures(Counter[str]):
    """Counts by kind, and texts about the first failures, each with a key of its own."""

    def __init__(self) -> None:
        """Without any."""
        super().__init__()
        self._texts: dict[str, str] = {}
        self._told: dict[tuple[str, str], set[int]] = {}

    def note(self, kind: str, task: str, text: str, row: int | None = None) -> None:
        """Count a failure of a task, and keep its text: the first of a kind, or of each of the first rows."""
        self[kind] += 1
        told = self._told.setdefault((kind, task), set())
        if len(told) < (1 if row is None else MAX_SHOWN) and (row or 0) not in told:
            told.add(row or 0)
            self._texts[f"{kind} {task} {row}"] = f"task {task!r}: {text}"[:MAX_FAILURE_CHARS]

    def take_texts(self) -> dict[str, str]:
        """The texts since the last call, by key."""
        taken, self._texts = self._texts, {}
        return taken
