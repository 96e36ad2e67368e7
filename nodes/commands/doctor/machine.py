"""Judges this machine: Python, libraries, GPU, engine, memory, sandbox, disks, key, ports and daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from nodes.commands.doctor import probes
from nodes.commands.doctor.findings import Finding, Level
from swarm.engines.choice import GET_VLLM, Vllm, choose
from swarm.engines.config import GenerationSettings
from swarm.environments.sandbox.confinement import in_words

if TYPE_CHECKING:
    from swarm.preflight.check import Preflight

GIB = 2**30
ENOUGH_DISK_BYTES = 5 * GIB
LEAST_DISK_BYTES = GIB // 2
LEAST_GPU_BYTES = 2 * GIB


def check_python(found: str, required: str) -> Finding:
    """Whether this interpreter is one the project supports."""
    if SpecifierSet(required).contains(found, prereleases=True):
        return Finding("python", "ok", found)
    return Finding("python", "fail", f"{found}, but {required} is needed", "install a newer Python and run make again")


def check_packages(packages: Sequence[probes.Package]) -> Finding:
    """Whether every library is installed in a supported version."""
    missing = [package.requirement for package in packages if package.installed is None]
    present = [package for package in packages if package.installed is not None and not package.fits]
    other = [f"{package.requirement} (installed: {package.installed})" for package in present]
    if not missing and not other:
        return Finding("packages", "ok", f"all {len(packages)} are in their version ranges")
    seen = "; ".join([*(f"{name} is missing" for name in missing), *(f"out of range: {text}" for text in other)])
    return Finding(
        "packages", "fail" if missing else "warn", seen, "run make install, which installs the tested versions"
    )


def check_gpu(torch: probes.Torch, driver: str | None, wanted: str) -> Finding:
    """Whether torch works, and on which device."""
    if torch.problem:
        return Finding("gpu", "fail", f"torch cannot be used: {torch.problem}", "reinstall torch: run make install")
    wants_cuda, wants_mps = wanted.startswith("cuda"), wanted.startswith("mps")
    lacking: Level = "fail" if wants_cuda else "warn"
    if torch.gpus:
        described = ", ".join(
            f"{gpu.name} ({gpu.free_bytes / GIB:.0f} of {gpu.total_bytes / GIB:.0f} GiB free)" for gpu in torch.gpus
        )
        if max(gpu.free_bytes for gpu in torch.gpus) < LEAST_GPU_BYTES:
            return Finding("gpu", "warn", described, "free its memory, or set policy.device to cpu")
        return Finding("gpu", "ok", described)
    if driver and torch.cuda_build is None:
        return Finding(
            "gpu",
            lacking,
            f"there is an NVIDIA driver ({driver}), but torch {torch.version} is a build for CPUs",
            "remove .venv and run make install again, which selects torch's CUDA build if there is a GPU",
        )
    if driver:
        seen = f"torch {torch.version} is built for CUDA {torch.cuda_build}, but cannot use the driver {driver}"
        return Finding("gpu", lacking, seen, "update the NVIDIA driver, and check that nvidia-smi lists a GPU")
    if wants_cuda or (wants_mps and not torch.mps):
        return Finding("gpu", "fail", f"policy.device is {wanted}, but there is none", "set policy.device to auto")
    if torch.mps:
        return Finding("gpu", "ok", f"Apple's GPU; torch {torch.version}")
    return Finding("gpu", "ok", f"none; the CPU is used, with torch {torch.version}")


def check_engine(settings: GenerationSettings, model: str, device: str, vllm: Vllm, supported: str) -> Finding:
    """The engine that a node would use on this type of device, and whether vLLM is available where it would help."""
    if settings.engine == "vllm" and vllm.problem:
        return Finding("engine", "fail", f"generation.engine is vllm, but {vllm.problem}", GET_VLLM)
    choice = choose(settings, model, device, 1, lambda: vllm)
    seen = f"{choice.name}: {choice.reason}"
    if choice.fix:
        return Finding("engine", "warn", f"there is a GPU, but the engine is {seen}", choice.fix)
    if vllm.problem and settings.vllm.python:
        fix = "correct generation.vllm.python, or remove it"
        return Finding("engine", "warn", f"{seen}; {vllm.problem}", fix)
    if vllm.problem:
        return Finding("engine", "ok", seen)
    seen = f"{seen}; {vllm.python} has vLLM {vllm.version or 'of unknown version'}"
    if vllm.version and not SpecifierSet(supported).contains(vllm.version, prereleases=True):
        return Finding("engine", "warn", seen, f"install vllm{supported} there, the version that swarm supports")
    return Finding("engine", "ok", seen)


def check_memory(found: Preflight) -> Finding:
    """Whether the policy fits into the memory of its device, with the parts, and what would fit."""
    levels: dict[str, Level] = {"fits": "ok", "smaller": "warn", "too large": "fail"}
    return Finding("memory", levels[found.verdict], found.seen, found.fix)


def check_sandbox(sandbox: probes.Sandbox) -> Finding:
    """Whether the sandbox would contain a verification worker that a foreign answer took over."""
    if sandbox.problem:
        return Finding("sandbox", "fail", sandbox.problem, "run make install, which installs the tested versions")
    seen = f"verification workers have {in_words(sandbox.unprotected)}"
    if not sandbox.unprotected:
        return Finding("sandbox", "ok", seen)
    fix = "use Linux 6.12 or newer with Landlock, or run the node as a user without other files"
    return Finding("sandbox", "warn", seen, fix)


def check_disk(disk: probes.Disk) -> Finding:
    """Whether there is disk space and permission to write."""
    if disk.problem:
        elsewhere = "choose another directory with --out" if disk.what == "directory" else "set XDG_CACHE_HOME, HF_HOME"
        return Finding(disk.what, "fail", f"{disk.path} cannot be written: {disk.problem}", f"allow it, or {elsewhere}")
    seen = f"{disk.path}: {disk.free_bytes / GIB:.1f} GiB free"
    if disk.free_bytes >= ENOUGH_DISK_BYTES:
        return Finding(disk.what, "ok", seen)
    level: Level = "fail" if disk.free_bytes < LEAST_DISK_BYTES else "warn"
    return Finding(disk.what, level, seen, "free disk space: checkpoints of a model take several times its size")


def check_identity(key: probes.KeyFile) -> Finding:
    """Whether the key is usable, and only by its owner."""
    if key.problem:
        fix = "restore it with swarm identity import, or move it away to become a new peer"
        return Finding("identity", "fail", key.problem, fix)
    if not key.peer_id:
        return Finding("identity", "ok", f"{key.path} will be created at the first start")
    if key.mode & 0o077:
        return Finding("identity", "warn", f"{key.path} has mode {key.mode:04o}", f"chmod 600 {key.path}")
    return Finding("identity", "ok", f"{key.peer_id}, {'in use by a running node' if key.in_use else 'not in use'}")


def check_port(port: probes.Port) -> Finding:
    """Whether a node could listen there."""
    if not port.problem:
        return Finding("port", "ok", f"{port.address} can be listened on")
    if port.by_a_node:
        seen = f"{port.address} is taken by {port.owner}: a node is running here"
        return Finding("port", "warn", seen, "for a second node set network.listen to another port")
    if port.taken:
        seen = f"{port.address} is taken by {port.owner or 'another process'}"
        return Finding("port", "fail", seen, "end that process, or set network.listen to another port")
    fix = "set network.listen to an address of this machine and a port from 1024 on"
    return Finding("port", "fail", f"{port.address} cannot be listened on: {port.problem}", fix)


def check_daemon(trial: probes.DaemonTrial) -> Finding:
    """Whether the network daemon runs here."""
    if not trial.path:
        return Finding("daemon", "fail", trial.problem, "reinstall hivemind: run make install")
    if not trial.executable:
        return Finding("daemon", "fail", f"{trial.path} may not be executed", f"chmod +x {trial.path}")
    if trial.problem:
        fix = "check that /tmp is not mounted noexec and that this is a 64-bit Linux or macOS; reinstall hivemind"
        return Finding("daemon", "fail", trial.problem, fix)
    seen = f"started and answered in {trial.start_s:.1f} s"
    if trial.unwatched:
        seen += f"; strangers may have it dial addresses that they claim, as it cannot be watched: {trial.unwatched}"
        return Finding("daemon", "warn", seen, "use Linux 5.5 or newer, outside of containers that forbid it")
    return Finding("daemon", "ok", f"{seen}; dials only whom its node dials")
