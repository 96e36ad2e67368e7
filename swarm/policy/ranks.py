"""The processes that train one policy together: a single one, or several (`sharding.py`) if torchrun started them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

T = TypeVar("T")


class Ranks:
    """A single process with the whole policy.

    With several ranks, all must call these methods in the same order, because they move weights, gradients or objects
    between ranks.
    """

    rank = 0
    """Index of this process; 0 is the leader."""
    size = 1

    def in_turn(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 before the others, which then find its downloads and files."""
        return work()

    def for_another(self) -> Ranks:
        """The same processes for another model: each `Ranks` places one model."""
        return self

    def place(self, model: PreTrainedModel, device: torch.device) -> None:
        """Move this rank's shard of the weights to its device."""
        model.to(device)

    def forward(self, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, which runs a forward pass; a backward pass may follow."""
        return compute()

    def gathered(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, every rank has all weights: forward passes without gradient need no other rank."""
        return contextlib.nullcontext()

    def share(self, costs: Sequence[int]) -> list[int]:
        """Indices of this rank's items; the division balances costs."""
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
        """The complete parameter, gradient or optimizer state of which this rank holds a shard."""
        return tensor

    def cut(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """This rank's shard of a complete `tensor` that belongs to a parameter."""
        return tensor


@contextlib.contextmanager
def open_ranks() -> Iterator[Ranks]:
    """The processes that torchrun started, or this one alone."""
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield Ranks()
        return
    # The import is slow.
    from swarm.policy.sharding import ShardedRanks

    yield ShardedRanks()
    dist.destroy_process_group()  # not after a failure: torchrun ends the others, which may be waiting for this one
