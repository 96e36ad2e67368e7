"""The processes that train one policy together. Here one that is alone; several share it in `sharding.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

T = TypeVar("T")


class Ranks:
    """One process that has the whole policy, and does all of every update.

    What is called on several ranks is called on all of them, in the same order: it moves weights, gradients or objects
    between them.
    """

    rank = 0
    """Which of the processes this is; 0 leads."""
    size = 1

    def in_turn(self, work: Callable[[], T]) -> T:
        """Have rank 0 do this before the others, for whom nothing has to be downloaded or made any more."""
        return work()

    def for_another(self) -> Ranks:
        """The same processes, to hold another model: each `Ranks` places one."""
        return self

    def place(self, model: PreTrainedModel, device: torch.device) -> None:
        """Bring this rank's share of the weights to its device."""
        model.to(device)

    def forward(self, compute: Callable[[], T]) -> T:
        """What `compute` returns after a forward pass of the model; a backward pass from its tensors may follow."""
        return compute()

    def gathered(self) -> contextlib.AbstractContextManager[None]:
        """Inside, every rank has all weights: forward passes without gradient need no other rank."""
        return contextlib.nullcontext()

    def share(self, costs: Sequence[int]) -> list[int]:
        """Which items are this rank's, so that every rank has about the same cost."""
        return list(range(len(costs)))

    def most(self, count: int) -> int:
        """The largest `count` that any rank has."""
        return count

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank."""
        return [value]

    def broadcast(self, value: T) -> T:
        """The leader's value."""
        return value

    def whole(self, tensor: Tensor) -> Tensor:
        """The whole of a parameter, gradient or optimizer state, of which this rank has a share."""
        return tensor

    def cut(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """This rank's share of a whole `tensor` that belongs to a parameter."""
        return tensor
