"""Derives the capacity of the cache from free memory."""

from __future__ import annotations

import torch

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.scheduler import Room
from swarm.errors import OutOfMemory
from swarm.policy.out_of_memory import free_bytes

LOGIT_COPIES = 6
"""Those that sampling holds."""
RECORDED_COPIES = LOGIT_COPIES
"""Those of recorded steps, whose memory is theirs alone."""


def logit_copies(settings: GenerationSettings, device: str) -> int:
    """Most vocabulary-wide float32 rows at a time on this type of torch device."""
    return LOGIT_COPIES + (RECORDED_COPIES if settings.records(device) else 0)


def find_room(settings: GenerationSettings, decoder: Decoder, device: torch.device, num_sequences: int) -> Room:
    """The capacity by the settings, reduced when memory is short. Raises `OutOfMemory` when there is none."""
    free, fraction = free_bytes(device) + decoder.kept_bytes, settings.memory_fraction
    max_rows = min(settings.max_batch_sequences, max(1, num_sequences))
    for_logits = max_rows * decoder.vocabulary * logit_copies(settings, device.type) * torch.float32.itemsize
    affordable = int((fraction * free - for_logits) // decoder.bytes_per_token)
    if affordable < 1:
        raise OutOfMemory(
            f"{fraction:g} of the {free / 2**20:.0f} MiB free on {device} is too little for {max_rows} sequences; "
            "lower generation.max_batch_sequences, or raise generation.memory_fraction"
        )
    return Room(max_rows, min(affordable, settings.max_batch_tokens or affordable))
