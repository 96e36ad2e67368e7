"""Detects whether torchrun started several processes for one policy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch.distributed as dist

from swarm.policy.distributed.ranks import Ranks


@contextlib.contextmanager
def open_ranks() -> Iterator[Ranks]:
    """The processes that torchrun started, or this one alone."""
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield Ranks()
        return
    # The import is slow.
    from swarm.policy.distributed.sharding import ShardedRanks

    yield ShardedRanks()
    dist.destroy_process_group()  # not after a failure: torchrun ends the others, which may be waiting for this one
