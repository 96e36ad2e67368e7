"""Running out of memory costs time, not the batch: the same work is done again in smaller pieces."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from swarm.errors import OutOfMemory
from swarm.policy.batching import Tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")

ALLOCATOR_MESSAGES = ("can't allocate memory", "out of memory")
"""How allocators say it that raise a plain `RuntimeError`."""


class TokenBudget:
    """Tokens a forward pass may have; halved whenever memory runs out, and for good."""

    def __init__(self, tokens: int, alone: bool = True) -> None:
        """Begin with `tokens`. Unless `alone` nothing is tried again: other ranks wait in the middle of a pass."""
        self.tokens = tokens
        self._alone = alone

    def attempt(self, work: Callable[[int], T], rows: Sequence[Tokens]) -> T:
        """What `work(tokens)` returns; it is called again from its start with half as many after running out.

        Raises `OutOfMemory` when `rows`, which it works on, are taken one at a time already.
        """
        while True:
            try:
                return work(self.tokens)
            except (RuntimeError, MemoryError) as error:
                if not (self._alone and is_out_of_memory(error)):
                    raise
                if self.tokens <= min(len(row.prompt) + len(row.completion) for row in rows):
                    raise OutOfMemory(
                        "one completion with its prompt does not fit in memory; set update.gradient_checkpointing, or "
                        f"lower generation.max_new_tokens: {str(error).splitlines()[0]}"
                    ) from error
            self._halve()  # outside of the handler, whose traceback holds on to tensors

    def _halve(self) -> None:
        self.tokens = max(1, self.tokens // 2)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        logger.warning(
            "out of memory; going on with %d tokens a forward pass, set update.micro_batch_tokens to it", self.tokens
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(message in str(error) for message in ALLOCATOR_MESSAGES)
