"""What a node will take of the network and of the socket."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import torch

from swarm.config import NodeConfig

BYTES_PER_TOKEN = 4
"""Of a completion's text, at most as a rule; records are compressed to less."""
RECORD_BYTES = 1_000
"""Of a group without its texts: names, sampling, signature."""
COPIES = 1.06
"""Bytes that a node receives for each byte of a record, and sends on average, with packet headers; see
benchmarks/results/scale.md, "Delivery and traffic"."""
TOLD_BYTES = 900
"""For each group of the swarm: its id in eight feeds, a request, and summaries for repair; from the same table."""
GROUPS_PER_HOUR = 10_000
HOURS_A_DAY = 24
GB = 1e9
SMI_TIMEOUT_S = 10.0
RAPL = Path("/sys/class/powercap")


def bandwidth(config: NodeConfig) -> str:
    """Bytes a day, for a rate of the whole swarm: it is the swarm's groups that a node forwards, not only its own."""
    generation = config.generation
    record = RECORD_BYTES + generation.group_size * generation.max_new_tokens * BYTES_PER_TOKEN
    a_day = HOURS_A_DAY * GROUPS_PER_HOUR * (COPIES * record + TOLD_BYTES)
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
    """The power limit of an NVIDIA GPU; None when it is not told."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    question = [tool, f"--id={index}", "--query-gpu=power.limit", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(question, capture_output=True, text=True, timeout=SMI_TIMEOUT_S)
        return float(asked.stdout.split()[0]) if asked.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None


def cpu_watts(folder: Path = RAPL) -> float | None:
    """The sustained power limit of all processors (Intel's RAPL, which AMD's have too); None when it is not told."""
    limits = []
    for package in folder.glob("intel-rapl:[0-9]*"):
        if package.name.count(":") > 1:
            continue  # a part of a processor
        try:
            limits.append(int((package / "constraint_0_power_limit_uw").read_text()) / 1e6)
        except (OSError, ValueError):
            return None
    return sum(limits) or None
