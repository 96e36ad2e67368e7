"""`swarm losses`: the objectives of an update and their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, ItemsView

from rich.console import Console
from rich.text import Text

from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.importance import TREATMENTS
from swarm.algorithms.losses import BEHAVIOUR_KL_ESTIMATORS, KL_ESTIMATORS, LOSSES, Loss

CHOICES: tuple[tuple[str, str, ItemsView[str, Callable[..., object]]], ...] = (
    ("update.objective", "the loss", LOSSES.items()),
    ("update.advantage", "from a group's rewards to advantages", ADVANTAGES.items()),
    ("update.importance", "weight of tokens that another policy or engine sampled", TREATMENTS.items()),
    (
        "update.behaviour_kl_estimator",
        "estimator of the divergence from the sampler in update.behaviour_kl",
        BEHAVIOUR_KL_ESTIMATORS.items(),
    ),
    (
        "update.kl_estimator",
        "estimator of the divergence in update.reference_kl",
        KL_ESTIMATORS.items(),
    ),
)
"""(field, its meaning, the implementations by name)"""


def list_losses(console: Console) -> None:
    """Print each choice with its equation, its denominator and its source."""
    for field, purpose, choices in CHOICES:
        console.print(Text.assemble((field, "bold underline"), f": {purpose}\n"))
        for name, function in choices:
            lines = [*(inspect.getdoc(function) or "").splitlines(), *_settings(function)]
            console.print(Text.assemble((name, "bold"), "\n", *(f"    {line}\n" for line in lines)))
    console.print("Choose with these fields, for example --update.objective gspo --update.importance token_truncate.")
    console.print(
        "Use your own loss or advantage by its place: --update.objective file.py:MyLoss, or package.module:MyLoss."
    )


def _settings(choice: Callable[..., object]) -> list[str]:
    """The settings of a loss, with defaults."""
    fields = choice.model_fields if isinstance(choice, type) and issubclass(choice, Loss) else {}
    return [f"Setting: update.loss.{name}, {field.default} by default." for name, field in fields.items()]
