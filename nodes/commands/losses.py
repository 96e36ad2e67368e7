"""`swarm losses`: the objectives an update can have, and what goes with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, ItemsView

from rich.console import Console
from rich.text import Text

from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.importance import TREATMENTS
from swarm.algorithms.kl import KL_ESTIMATORS, cppo_kl
from swarm.algorithms.losses import LOSSES, Loss

CHOICES: tuple[tuple[str, str, ItemsView[str, Callable[..., object]]], ...] = (
    ("update.objective", "the loss", LOSSES.items()),
    ("update.advantage", "what a group's rewards become", ADVANTAGES.items()),
    ("update.importance", "the weight of tokens that another policy or engine sampled", TREATMENTS.items()),
    ("update.behaviour_kl", "coefficient of a divergence from the sampler", {"cppo_kl": cppo_kl}.items()),
    (
        "update.kl_estimator",
        "the divergence that update.reference_kl weighs",
        KL_ESTIMATORS.items(),
    ),
)
"""(field, what it decides, the implementations with their names)"""


def list_losses(console: Console) -> None:
    """Print each choice with its equation, its denominator and its source."""
    for field, purpose, choices in CHOICES:
        console.print(Text.assemble((field, "bold underline"), f": {purpose}\n"))
        for name, function in choices:
            lines = [*(inspect.getdoc(function) or "").splitlines(), *_settings(function)]
            console.print(Text.assemble((name, "bold"), "\n", *(f"    {line}\n" for line in lines)))
    console.print("Chosen by these fields, for example --update.objective gspo --update.importance token_truncate.")
    console.print(
        "A loss or an advantage of your own by its import path: --update.objective mypackage.mymodule:MyLoss."
    )


def _settings(choice: Callable[..., object]) -> list[str]:
    """What a loss can be given, with the defaults."""
    fields = choice.model_fields if isinstance(choice, type) and issubclass(choice, Loss) else {}
    return [f"Setting: update.loss.{name}, {field.default} by default." for name, field in fields.items()]
