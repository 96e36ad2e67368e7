"""Find a loss or an advantage by its name here, or by the import path of the user's own: `mypackage.mymodule:Name`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.losses import LOSSES, Loss
from swarm.settings import find_settings, imported

if TYPE_CHECKING:
    from torch import Tensor


def find_loss(name: str) -> type[Loss]:
    """The loss that `update.objective` names. Raises `ValueError`."""
    return find_settings(name, LOSSES, Loss, "swarm.algorithms.losses")  # type: ignore[type-abstract]


def find_advantage(name: str) -> Callable[[Tensor], Tensor]:
    """The function that `update.advantage` names: rewards [P, G] to advantages [P, G]. Raises `ValueError`."""
    if name in ADVANTAGES:
        return ADVANTAGES[name]
    found = imported(name, tuple(ADVANTAGES))
    if not callable(found):
        raise ValueError(f"{name} must be a function of rewards, got {found!r}")
    return found
