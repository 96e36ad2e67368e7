"""Free memory of a device, and running out of it: the same work in smaller micro-batches, or what to change."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar
from weakref import WeakSet

import torch

from swarm.errors import OutOfMemory
from swarm.machine import available_bytes
from swarm.policy.batching import Tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")

ALLOCATOR_MESSAGES = ("can't allocate memory", "out of memory")
"""Messages of allocators that raise a plain `RuntimeError`."""


class TokenBudget:
    """Most tokens of a forward pass; permanently halved whenever memory runs out."""

    def __init__(self, tokens: int, alone: bool = True, save: Callable[[], bool] = lambda: False) -> None:
        """Start with `tokens`. Retries only if `alone`: other ranks would be waiting within a pass.

        `save` makes passes need less in another way, and says whether it could: that comes first.
        """
        self.tokens = tokens
        self._alone = alone
        self._save = save

    def attempt(self, work: Callable[[int], T], rows: Sequence[Tokens]) -> T:
        """Return `work(tokens)`; restarts it with half the tokens when memory runs out.

        Raises `OutOfMemory` when `rows` are already processed one at a time.
        """
        while True:
            try:
                return work(self.tokens)
            except (RuntimeError, MemoryError) as error:
                if not (self._alone and is_out_of_memory(error)):
                    raise
                saved = self._save()
                if not saved and self.tokens <= min(len(row.prompt) + len(row.completion) for row in rows):
                    raise OutOfMemory(
                        "one completion with its prompt does not fit in memory; set update.gradient_checkpointing, or "
                        f"lower generation.max_new_tokens: {str(error).splitlines()[0]}"
                    ) from error
            release_unused()  # outside the handler, whose traceback keeps tensors alive
            if not saved:
                self._halve()

    def _halve(self) -> None:
        self.tokens = max(1, self.tokens // 2)
        logger.warning(
            "out of memory; continuing with %d tokens per forward pass; set update.micro_batch_tokens to it",
            self.tokens,
        )


@contextmanager
def needing_memory(what: str) -> Iterator[None]:
    """Raises `OutOfMemory` where memory runs out within the block; `what` says what had no room, and what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{what}: {str(error).splitlines()[0] if str(error) else 'out of memory'}") from error


class Spare(Protocol):
    """Something that keeps memory which it can do without."""

    def release(self) -> None:
        """Let go of it. Any thread may call it."""


_SPARE: WeakSet[Spare] = WeakSet()


def keeps_spare(holder: Spare) -> None:
    """Let `release_unused` ask the holder for its memory, as long as it lives."""
    _SPARE.add(holder)


def release_unused() -> None:
    """Give memory that is kept for later back to the device, where other tensors or processes may need it: torch's, and
    what `keeps_spare` names."""
    for holder in list(_SPARE):
        holder.release()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error is an allocation failure."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(message in str(error) for message in ALLOCATOR_MESSAGES)


def free_bytes(device: torch.device) -> int:
    """Memory available for new tensors on `device`."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type == "mps":
        # What the allocator has cached counts as free, as with CUDA.
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return available_bytes()
