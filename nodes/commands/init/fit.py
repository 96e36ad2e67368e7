"""What a configuration needs on this machine, and which settings make it fit."""

from __future__ import annotations

import torch

from swarm.config import NodeConfig
from swarm.errors import ConfigError, PolicyError
from swarm.machine import num_cores
from swarm.preflight.check import Changes, Preflight, memory_of, preflight
from swarm.preflight.need import in_gib


def fitting(config: NodeConfig) -> tuple[Preflight | None, Changes, str]:
    """What is needed, the settings to change, and why nothing is known. Raises `ConfigError` when nothing fits."""
    try:
        found = preflight(config, "peer")
    except PolicyError as error:
        return None, (), f"not known: {error}"
    if found.verdict == "fits":
        return found, (), ""
    if not found.ways:
        raise ConfigError(f"{found.seen}; {found.fix}")
    return found, found.ways[0].changes, ""


def memory_in_words(found: Preflight | None, changes: Changes) -> str:
    """What the node will need, part by part."""
    assert found is not None
    need = found.ways[0].need if changes else found.need
    changed = f"; without {', '.join(path for path, _ in changes)} it would be {in_gib(found.need.total)}"
    return (
        f"about {in_gib(need.total)} of {found.memory.device} memory, and {in_gib(found.memory.free)} are free: {need}"
        f"{changed if changes else ''}"
    )


def machine_in_words(device: torch.device) -> str:
    """This machine in a few words."""
    memory = memory_of(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{num_cores()} cores"
    return f"{name}, {in_gib(memory.free)} of {memory.device} memory free"
