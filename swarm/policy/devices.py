"""Where a policy computes, and in which type."""

from __future__ import annotations

from collections.abc import Callable

import torch

from swarm.errors import PolicyError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BFLOAT16_ON_CPU = ("avx512_bf16", "amx_bf16")
"""Instructions for matrix products in bfloat16; without them a CPU computes these more slowly than in float32."""
BFLOAT16_PARAMETERS = 20_000_000
"""Least parameters for bfloat16 on such a CPU. A round in float32 took 1.8 times as long with 25 M parameters, 1.6
times with 135 M, and 0.7 times with 0.13 M. `swarm bench engine --only dtypes` measures it."""


def find_device(name: str) -> torch.device:
    """The device that `policy.device` names. Raises `PolicyError`."""
    if name != "auto":
        try:
            return torch.zeros(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            reason = _lacking(name.partition(":")[0]) or str(error).splitlines()[0]
            raise PolicyError(f"policy.device is {name!r}, but {reason}; `auto` takes what there is") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _lacking(kind: str) -> str | None:
    """Why devices of this type cannot be used, or only others of them; None where torch says it better."""
    if kind == "mps":
        return None if torch.backends.mps.is_available() else "this machine has none of Apple's GPUs that torch can use"
    if kind != "cuda":
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"the torch that is installed is a build without CUDA ({torch.__version__}): install one for GPUs where "
            "`nvidia-smi` shows one, with `rm -rf .venv && make install`"
        )
    if not torch.cuda.is_available():
        return "torch finds no GPU: `nvidia-smi` must show one, and its driver must suit torch's CUDA"
    return f"this machine has {torch.cuda.device_count()} GPUs, from cuda:0 on"


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for matrix products in bfloat16."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in BFLOAT16_ON_CPU)


def find_dtype(name: str, device: torch.device, num_parameters: Callable[[], int]) -> torch.dtype:
    """The type of forward passes; `num_parameters` is asked only where it matters."""
    if name != "auto":
        return DTYPES[name]
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device.type == "cpu" and multiplies_bfloat16() and num_parameters() >= BFLOAT16_PARAMETERS
    return torch.bfloat16 if fast else torch.float32
