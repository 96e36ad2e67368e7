"""How much may be held at once."""

from __future__ import annotations

import psutil
import torch

from swarm.errors import EngineError

LOGIT_COPIES = 6
"""Vocabulary-wide float32 rows that sampling has at the same time, at most."""


def token_budget(
    device: torch.device, fraction: float, max_rows: int, bytes_per_token: int, vocabulary: int, wanted: int | None
) -> int:
    """Tokens whose keys and values may be held: `wanted`, or fewer when memory is short.

    Raises `EngineError` when there is no memory for any.
    """
    free = free_bytes(device)
    for_logits = max_rows * vocabulary * LOGIT_COPIES * torch.float32.itemsize
    affordable = int((fraction * free - for_logits) // bytes_per_token)
    if affordable < 1:
        raise EngineError(
            f"{fraction:g} of the {free / 2**20:.0f} MiB free on {device} is too little for {max_rows} sequences; "
            "lower generation.max_batch_sequences, or raise generation.memory_fraction"
        )
    return affordable if wanted is None else min(wanted, affordable)


def free_bytes(device: torch.device) -> int:
    """Memory that new tensors on `device` can have now."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return int(psutil.virtual_memory().available)
