"""What a configuration needs of this machine and of the network, and which settings make it fit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import torch

from swarm.config import NodeConfig
from swarm.errors import ConfigError, PolicyError
from swarm.machine import num_cores
from swarm.preflight.check import Changes, Preflight, memory_of, preflight
from swarm.preflight.duties import PEER
from swarm.preflight.need import in_gib

BYTES_PER_TOKEN = 4
"""Bytes of a completion's text, at most as a rule; records are compressed to less."""
RECORD_BYTES = 1_000
"""Bytes of a group without its texts: names, sampling, signature."""
COPIES = 1.06
"""Bytes that a node receives for each byte of a record, and sends on average, with packet headers; see
benchmarks/results/scale.md, "Delivery and traffic"."""
FEED_BYTES = 900
"""For each group of the swarm: its id in eight feeds, a request, and summaries for repair; from the same table."""
GROUPS_PER_HOUR = 10_000
HOURS_A_DAY = 24
GB = 1e9
SMI_TIMEOUT_S = 10.0
RAPL = Path("/sys/class/powercap")


def fitting(config: NodeConfig) -> tuple[Preflight | None, Changes, str]:
    """What is needed, the settings to change, and why nothing is known. Raises `ConfigError` when nothing fits."""
    try:
        found = preflight(config, PEER)
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


def bandwidth(config: NodeConfig) -> str:
    """Bytes a day, for a rate of the whole swarm: it is the swarm's groups that a node forwards, not only its own."""
    generation = config.generation
    record = RECORD_BYTES + generation.group_size * generation.max_new_tokens * BYTES_PER_TOKEN
    a_day = HOURS_A_DAY * GROUPS_PER_HOUR * (COPIES * record + FEED_BYTES)
    return (
        f"at most about {a_day / GB:.1f} GB a day in each direction for every {GROUPS_PER_HOUR:,} groups an hour that "
        f"the whole swarm shares, with groups of {record / 1e3:.0f} kB as this node makes them"
    )


def power(device: torch.device) -> str:
    """The limit of the device that computes, and what that is in a day."""
    watts, source = (gpu_watts(device.index or 0), "GPU") if device.type == "cuda" else (cpu_watts(), "processor")
    if watts is None:
        return f"not known: this machine does not tell the limit of its {source}"
    return f"at most {watts:.0f} W for the {source} while it computes, {watts * HOURS_A_DAY / 1e3:.1f} kWh a day"


def gpu_watts(index: int) -> float | None:
    """The power limit of an NVIDIA GPU; None when it is not known."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    question = [tool, f"--id={index}", "--query-gpu=power.limit", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(question, capture_output=True, text=True, timeout=SMI_TIMEOUT_S)
        return float(asked.stdout.split()[0]) if asked.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None


def cpu_watts(folder: Path = RAPL) -> float | None:
    """The sustained power limit of all processors (Intel's RAPL, which AMD's have too); None when it is not known."""
    limits = []
    for package in folder.glob("intel-rapl:[0-9]*"):
        if package.name.count(":") > 1:
            continue  # a part of a processor
        try:
            limits.append(int((package / "constraint_0_power_limit_uw").read_text()) / 1e6)
        except (OSError, ValueError):
            return None
    return sum(limits) or None
