"""Facts about this machine and its network for `swarm doctor`, which judges them."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from msgspec import Struct
from packaging.requirements import Requirement

from nodes.commands.identity import key_file
from swarm import distribution
from swarm.config import NodeConfig
from swarm.environments.config import VerificationSettings
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import IdentityError, TaskError, TransportError
from swarm.net.addresses.listening import bound
from swarm.net.records.identity import Identity, in_use
from swarm.policy.config import MADE_HERE

TORCH_TIMEOUT_S = 120.0
DRIVER_TIMEOUT_S = 20.0
DAEMON_NAME = "p2pd"


class Package(Struct, frozen=True):
    """A library this project needs."""

    requirement: str
    """The requirement as in pyproject.toml, e.g. `numpy<3,>=2.0`."""
    installed: str | None
    fits: bool


class Gpu(Struct, frozen=True):
    """A GPU that torch can use."""

    name: str
    free_bytes: int
    total_bytes: int


class Torch(Struct, frozen=True):
    """Facts about torch."""

    version: str = ""
    cuda_build: str | None = None
    """CUDA version of the build; None for a CPU build."""
    gpus: tuple[Gpu, ...] = ()
    mps: bool = False
    problem: str = ""
    """Why torch could not be queried."""

    def device(self, wanted: str) -> str:
        """The type of device that `policy.device` resolves to."""
        if wanted != "auto":
            return wanted.partition(":")[0]
        return "cuda" if self.gpus else "mps" if self.mps else "cpu"


class Sandbox(Struct, frozen=True):
    """Result of starting a sandboxed verification worker."""

    unprotected: dict[str, str] = {}
    """Protections that do not hold, with the reasons, as the worker tested them."""
    problem: str = ""
    """Why no worker started."""


class Disk(Struct, frozen=True):
    """A directory that a node writes to."""

    what: str
    path: str
    free_bytes: int
    problem: str = ""
    """Why it is not writable."""


class Port(Struct, frozen=True):
    """Result of binding a listen address."""

    address: str
    problem: str = ""
    """Empty when it could be bound."""
    taken: bool = False
    owner: str = ""
    """Name and pid of the process that uses it; empty when unknown."""

    @property
    def by_a_node(self) -> bool:
        """Whether a node's daemon uses it."""
        return self.owner.startswith(f"{DAEMON_NAME} ")


class DaemonTrial(Struct, frozen=True):
    """Result of starting the network daemon."""

    path: str
    """Empty when there is none."""
    executable: bool = True
    start_s: float = 0.0
    problem: str = ""
    unwatched: str = ""
    """Why a node could not watch whom it dials."""


class KeyFile(Struct, frozen=True):
    """A node's identity."""

    path: str
    peer_id: str = ""
    """Empty when there is no file yet."""
    mode: int = 0o600
    in_use: bool = False
    problem: str = ""


def sandbox() -> Sandbox:
    """Start a verification worker that tests its protections."""
    with contextlib.closing(VerificationPool(TINY_TASKS[:1], VerificationSettings())) as pool:
        try:
            pool.wait_until_ready()
        except TaskError as error:
            return Sandbox(problem=str(error))
        return Sandbox(pool.unprotected())


def required_python() -> str:
    """The range of Python versions this project supports, e.g. `>=3.11`."""
    return importlib.metadata.metadata(distribution.NAME)["Requires-Python"]


def packages() -> tuple[Package, ...]:
    """Every library that this project requires, without extras."""
    requirements = map(Requirement, importlib.metadata.requires(distribution.NAME) or ())
    return tuple(
        look_up(requirement) for requirement in requirements if not requirement.marker or requirement.marker.evaluate()
    )


def supported_vllm() -> str:
    """The range of supported vLLM versions, e.g. `==0.32.0`."""
    requirements = map(Requirement, importlib.metadata.requires(distribution.NAME) or ())
    return next(str(requirement.specifier) for requirement in requirements if requirement.name == "vllm")


def look_up(requirement: Requirement) -> Package:
    """Compare one library with its version range."""
    try:
        installed = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return Package(str(requirement), None, False)
    return Package(str(requirement), installed, requirement.specifier.contains(installed, prereleases=True))


ASK_TORCH = """
import json, torch
gpus = []
for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
    free, total = torch.cuda.mem_get_info(index)
    gpus.append([torch.cuda.get_device_name(index), free, total])
print(json.dumps([torch.__version__, torch.version.cuda, gpus, torch.backends.mps.is_available()]))
"""


def torch() -> Torch:
    """Query torch in a separate process, because a broken driver can crash it."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, timeout=TORCH_TIMEOUT_S
        )
        version, cuda_build, gpus, mps = json.loads(asked.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Torch(problem=f"it did not answer within {TORCH_TIMEOUT_S:g} s")
    except (ValueError, IndexError):
        last_words = asked.stderr.strip().splitlines()[-1:]
        return Torch(problem=last_words[0] if last_words else f"it ended with code {asked.returncode}")
    return Torch(version, cuda_build, tuple(Gpu(*gpu) for gpu in gpus), mps)


def nvidia_driver() -> str | None:
    """The NVIDIA driver's version; None when there is no driver."""
    with_tool = shutil.which("nvidia-smi")
    if with_tool:
        question = [with_tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            asked = subprocess.run(question, capture_output=True, text=True, timeout=DRIVER_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        lines = asked.stdout.split()
        return lines[0] if asked.returncode == 0 and lines else None
    loaded = Path("/proc/driver/nvidia/version")
    if not loaded.exists():
        return None
    found = re.search(r"\b(\d+\.\d[\d.]*)\b", loaded.read_text(errors="replace"))
    return found.group(1) if found else "of unknown version"


def disks(config: NodeConfig) -> tuple[Disk, ...]:
    """The directories that a node with this configuration writes to."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    models = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    places = [("directory", config.out), ("cache", cache / "swarm")]
    if config.policy.model not in MADE_HERE and not Path(config.policy.model).is_dir():
        places.append(("model cache", models))
    return tuple(look_at_disk(what, path) for what, path in places)


def look_at_disk(what: str, path: Path) -> Disk:
    """Free space and permission at `path` or its future location; leaves no files."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    try:
        free_bytes = shutil.disk_usage(there).free
        if not there.is_dir():
            return Disk(what, str(path), free_bytes, f"{there} is not a directory")
        with tempfile.NamedTemporaryFile(dir=there, prefix=".swarm-doctor-"):
            pass
    except OSError as error:
        return Disk(what, str(path), 0, f"{there}: {error.strerror or error}")
    return Disk(what, str(path), free_bytes)


def key(config: NodeConfig) -> KeyFile:
    """The identity of a node with this configuration."""
    path = config.network.identity or key_file(config.out)
    if not path.exists():
        return KeyFile(str(path))
    try:
        return KeyFile(str(path), Identity.read(path).peer_id, path.stat().st_mode & 0o7777, in_use(path))
    except IdentityError as error:
        return KeyFile(str(path), problem=str(error))


def try_port(address: str) -> Port:
    """Bind a listen address and release it."""
    parts = address.split("/")
    if len(parts) < 5 or parts[1] not in ("ip4", "ip6") or parts[3] not in ("tcp", "udp"):
        return Port(address, "it is not /ip4 or /ip6 with /tcp or /udp")
    try:
        bound(parts).close()
    except (ValueError, OverflowError) as error:
        return Port(address, str(error))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Port(address, "it is taken", taken=True, owner=_owner(int(parts[4])))
        return Port(address, (error.strerror or str(error)).lower())
    return Port(address)


def _owner(port: int) -> str:
    try:
        connections = psutil.net_connections("inet")
        pids = {
            connection.pid
            for connection in connections
            if connection.pid and connection.laddr and connection.laddr.port == port and not connection.raddr
        }
        return ", ".join(f"{psutil.Process(pid).name()} (pid {pid})" for pid in sorted(pids))
    except psutil.Error:
        # Some systems reveal this only to administrators.
        return ""


def try_daemon() -> DaemonTrial:
    """Find the network daemon and start it once."""
    try:
        from swarm.net.hivemind.daemon import binary_path, trial_start

        path = binary_path()
    except ImportError as error:
        return DaemonTrial("", problem=f"hivemind cannot be imported: {error}")
    except TransportError as error:
        return DaemonTrial("", problem=str(error))
    if not os.access(path, os.X_OK):
        return DaemonTrial(str(path), executable=False)
    try:
        start_s, unwatched = trial_start()
        return DaemonTrial(str(path), start_s=start_s, unwatched=unwatched)
    except TransportError as error:
        return DaemonTrial(str(path), problem=str(error))


def local_ips() -> frozenset[str]:
    """The addresses of this machine's network interfaces."""
    families = (socket.AF_INET, socket.AF_INET6)
    interfaces = psutil.net_if_addrs().values()
    return frozenset(
        address.address.partition("%")[0]
        for interface in interfaces
        for address in interface
        if address.family in families
    )
