"""The policy a node trains."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Literal

from pydantic import Field

from swarm.errors import ConfigError
from swarm.settings import Settings

TINY = "tiny"
TINY_SPARSE = "tiny-sparse"
"""As `TINY`, but it answers in the right form so rarely that most of its groups have no signal at first."""
EMBEDDED = (TINY, TINY_SPARSE)

BatchingName = Literal["auto", "packed", "padded"]


class LoraSettings(Settings):
    """Train small adapters beside frozen weights: optimizer, gradients and checkpoints shrink to their size.

    They want a larger learning rate than all weights do, often three to ten times. There is no dropout: the
    probabilities of sampling and of training have to agree. Needs the extra `lora` (peft). Source: arXiv:2106.09685.
    """

    rank: int = Field(0, ge=0)
    """Rank of the adapters, e.g. 16; 0 trains all weights instead."""
    alpha: int = Field(32, ge=1)
    """What an adapter adds is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names that the layers to adapt end in, such as `q_proj`; default: every linear layer but the output head."""
    frozen_dtype: Literal["compute", "float32"] = "compute"
    """What the frozen weights are kept in: `compute` is what `policy.dtype` says, half the memory with bfloat16."""


class PolicySettings(Settings):
    """Model, tokenizer and where they run."""

    model: str = TINY
    """A hub id, a local directory in Hugging Face format, or an embedded policy: `tiny`, or `tiny-sparse`, which starts
    with hardly any reward."""
    revision: str | None = None
    """Hub revision of the model."""
    device: str = "auto"
    """`auto` (CUDA, then Apple's MPS, then CPU), or any torch device."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What forward passes compute in; what is trained stays float32, or small steps would be rounded away.
    `auto`: bfloat16 on GPUs that have it, else float32. `float16`: with a scaled loss, lest gradients vanish."""
    system_prompt: str | None = None
    """Put before every question. Default: none for an embedded policy, a request for `<answer>` tags for others."""
    trust_remote_code: bool = False
    """Run Python code that a model repository brings along."""
    threads: int | None = Field(None, ge=1)
    """CPU threads for torch; default: torch's own choice."""
    routing_replay: bool = False
    """For mixture-of-experts models: train every token with the experts that it met when it was generated. Brings
    engine and trainer closer together (`mismatch` in the update's figures). Source: arXiv:2510.11370."""
    lora: LoraSettings = LoraSettings()


def public_name(model: str) -> str:
    """What others may know a model by: its hub id, but of a local one a digest of its description, never its path."""
    if model in EMBEDDED or not (model.startswith(("/", ".", "~")) or Path(model).exists()):
        return model
    description = Path(model) / "config.json"
    content = description.read_bytes() if description.is_file() else b""
    return f"local:{hashlib.blake2b(content, digest_size=4).hexdigest()}"


def check_model_path(settings: PolicySettings) -> None:
    """Raises `ConfigError` when `model` is written like a path and no directory is there."""
    if settings.model.startswith(("/", ".", "~")) and not Path(settings.model).is_dir():
        raise ConfigError(f"policy.model: there is no directory {settings.model}")


def check_peft(settings: LoraSettings) -> None:
    """Raises `ConfigError` when LoRA is asked for and peft is not installed."""
    if settings.rank and importlib.util.find_spec("peft") is None:
        raise ConfigError(
            f"policy.lora.rank is {settings.rank}, but peft is not installed: install the extra `swarm[lora]`, or set "
            "it to 0 to train all weights"
        )
