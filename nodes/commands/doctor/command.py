"""Runs the checks in order and prints what they find."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from rich.console import Console

from nodes import exits
from nodes.commands.doctor import probes
from nodes.commands.doctor.findings import Finding, line_of, summary, unchecked
from nodes.commands.doctor.machine import (
    check_daemon,
    check_disk,
    check_engine,
    check_gpu,
    check_identity,
    check_memory,
    check_packages,
    check_port,
    check_python,
    check_sandbox,
)
from nodes.commands.doctor.outside import NETWORK_CHECKS, look_from_outside
from swarm.config import NodeConfig, load_config
from swarm.engines.choice import look_for_vllm
from swarm.errors import SwarmError
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.policy.config import EMBEDDED

if TYPE_CHECKING:
    from swarm.preflight.need import RoleName


def doctor(
    file: Path | None, overrides: Sequence[tuple[str, str]], role: RoleName, as_json: bool, console: Console
) -> int:
    """Run every check for a node of this role and print the findings. Returns the exit code: 1 when a check fails."""
    config = load_config(file, None, os.environ, overrides).config
    Bootstraps(config.network.bootstrap)  # a wrong address is a usage error, not a finding
    findings = []
    for finding in diagnose(config, role):
        findings.append(finding)
        if not as_json:
            console.print(line_of(finding))
    if as_json:
        print(json.dumps([structs.asdict(finding) for finding in findings], indent=1))
    else:
        console.print(summary(findings))
    return exits.FAILED if any(finding.level == "fail" for finding in findings) else exits.DONE


def diagnose(config: NodeConfig, role: RoleName = "peer") -> Iterator[Finding]:
    """Run every check on this machine and its network, the quick ones first."""
    yield check_python(sys.version.split()[0], probes.required_python())
    yield check_packages(probes.packages())
    torch = probes.torch()
    gpu = check_gpu(torch, probes.nvidia_driver(), config.policy.device)
    yield gpu
    if gpu.level == "fail":
        yield from unchecked("the policy has no device", "fix the GPU or torch first", ("engine", "memory"))
    else:
        vllm = look_for_vllm(config.generation.vllm.python)
        device = torch.device(config.policy.device)
        yield check_engine(config.generation, config.policy.model, device, vllm, probes.supported_vllm())
        if config.policy.model not in EMBEDDED:
            yield _memory(config, role)
    yield check_sandbox(probes.sandbox())
    for disk in probes.disks(config):
        yield check_disk(disk)
    yield check_identity(probes.key(config))
    ports = [probes.try_port(address) for address in config.network.listen]
    for port in ports:
        yield check_port(port)
    trial = probes.try_daemon()
    yield check_daemon(trial)
    bootstraps = config.network.bootstrap
    if not bootstraps:
        yield from unchecked("no bootstrap was given", "specify one with --bootstrap MULTIADDR", NETWORK_CHECKS)
    elif not trial.executable or trial.problem:
        yield from unchecked("there is no working daemon", "fix the daemon first", ("bootstrap", *NETWORK_CHECKS))
    else:
        yield from look_from_outside(config.network, ports)


def _memory(config: NodeConfig, role: RoleName) -> Finding:
    from swarm.preflight.check import preflight  # imports torch

    try:
        found = preflight(config, role)
    except SwarmError as error:
        return Finding("memory", "warn", f"not checked: {error}", "see policy.model and generation.engine")
    return check_memory(found)
