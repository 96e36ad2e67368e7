"""`swarm losses`: the objectives an update can have."""

from __future__ import annotations

import inspect

from rich.console import Console
from rich.text import Text

from swarm.algorithms.losses import LOSSES


def list_losses(console: Console) -> None:
    """Print each objective with its equation, its denominator and its source."""
    for name, loss in LOSSES.items():
        explanation = inspect.getdoc(loss) or ""
        console.print(Text.assemble((name, "bold"), "\n", *(f"    {line}\n" for line in explanation.splitlines())))
    console.print("Chosen with update.objective, for example --update.objective gspo.")
