"""The policy a node trains, and how it is updated."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from swarm.algorithms.names import AdvantageName, ImportanceName, KlEstimatorName, LossName
from swarm.errors import ConfigError
from swarm.settings import Settings

TINY = "tiny"

BatchingName = Literal["auto", "packed", "padded"]
ScheduleName = Literal["constant", "linear", "cosine"]


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
    """A hub id, a local directory in Hugging Face format, or `tiny`: the embedded policy."""
    revision: str | None = None
    """Hub revision of the model."""
    device: str = "auto"
    """`auto` (CUDA, then Apple's MPS, then CPU), or any torch device."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What forward passes compute in; what is trained stays float32, or small steps would be rounded away.
    `auto`: bfloat16 on GPUs that have it, else float32. `float16`: with a scaled loss, lest gradients vanish."""
    system_prompt: str | None = None
    """Put before every question. Default: none for `tiny`, a request for `<answer>` tags for other models."""
    trust_remote_code: bool = False
    """Run Python code that a model repository brings along."""
    threads: int | None = Field(None, ge=1)
    """CPU threads for torch; default: torch's own choice."""
    routing_replay: bool = False
    """For mixture-of-experts models: train every token with the experts that it met when it was generated. Brings
    engine and trainer closer together (`mismatch` in the update's figures). Source: arXiv:2510.11370."""
    lora: LoraSettings = LoraSettings()


class UpdateSettings(Settings):
    """GRPO on whole groups. Source: arXiv:2402.03300, section 4.1, with the settings of arXiv:2509.08721, section 4."""

    objective: LossName = "grpo"
    """Which loss; `swarm losses` lists them with equation and paper."""
    advantage: AdvantageName = "grpo"
    """How a group's rewards become advantages."""
    learning_rate: float = Field(1e-6, gt=0)
    """1e-6 suits models of 0.5 B parameters and more; `tiny` has 3e-4 as its default."""
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(0.0, ge=0)
    warmup_updates: int = Field(0, ge=0)
    """Updates over which the learning rate rises linearly to its value."""
    schedule: ScheduleName = "constant"
    """The learning rate after warm-up: constant, or falling until `total_updates` and staying there."""
    total_updates: int | None = Field(None, ge=1)
    """Updates, warm-up included, after which `linear` and `cosine` have fallen to `final_learning_rate`."""
    final_learning_rate: float = Field(0.0, ge=0)
    """What the learning rate falls to."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    max_completion_tokens: int = Field(512, ge=1)
    """`dr_grpo`: the constant length it divides by."""
    ratio_cap: float = Field(5.0, gt=0)
    """`tis`: largest importance weight of a token."""
    group_epsilon: float = Field(0.0, ge=0, le=1)
    """`gepo`: part of the current policy in the denominator."""
    group_clip: bool = False
    """`gepo`: clip its weight to [1 - clip_low, 1 + clip_high]: not in the paper's equations, but in the code published
    for it."""
    importance: ImportanceName = "none"
    """How tokens are weighed that another policy or another engine sampled; `swarm losses` lists the treatments. With
    one, the clip is against this node's own log-probabilities when the batch is built."""
    importance_cap: float = Field(3.0, ge=1)
    """Largest importance weight, of a token or of a completion, before it is truncated or masked."""
    behaviour_kl: float = Field(0.0, ge=0)
    """Coefficient of a divergence from the behaviour policy, which keeps updates on stale groups near them; 0.005 in
    arXiv:2508.17850 under delay."""
    reference_kl: float = Field(0.0, ge=0)
    """Coefficient of a divergence from the model as it was loaded first; above 0 a frozen copy of it is kept."""
    kl_estimator: KlEstimatorName = "k3"
    """How that divergence is estimated; `swarm losses` lists the estimators."""
    max_grad_norm: float = Field(1.0, gt=0)
    epochs: int = Field(1, ge=1)
    """Passes over each mixed batch; clipping acts from the second step on."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps an epoch, the batch's groups divided among them."""
    batching: BatchingName = "auto"
    """How rows share a forward pass: `packed` reads a prompt once for all its completions and has no padding, but needs
    a model with plain attention; `padded` takes rows of similar length together. `auto`: packed on the CPU where the
    model can, else padded."""
    micro_batch_tokens: int | None = Field(None, ge=1)
    """Tokens a forward pass, padding included; memory is bounded by it, the update does not depend on it. Halved when
    memory runs out. Default: 16,384 on GPUs, 1,024 on the CPU, where larger ones are not faster."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input for the gradient and compute the rest again: less memory, a third more time."""
    compile: bool = False
    """Compile the model's layers for updates; the first updates take minutes longer."""
    max_nonfinite_steps: int = Field(5, ge=1)
    """Give up, checkpoint written, after this many optimizer steps in a row with a non-finite loss or gradient."""

    @model_validator(mode="after")
    def _betas_in_range(self) -> UpdateSettings:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), got {self.betas}")
        return self

    @model_validator(mode="after")
    def _one_correction(self) -> UpdateSettings:
        if self.objective == "gepo" and self.importance != "none":
            raise ValueError(
                f"importance must be none with objective gepo, got {self.importance}: its weights are against the "
                "sampler already"
            )
        return self

    @model_validator(mode="after")
    def _schedule_ends(self) -> UpdateSettings:
        if self.schedule == "constant":
            return self
        if self.total_updates is None or self.total_updates <= self.warmup_updates:
            raise ValueError(
                f"schedule {self.schedule} needs total_updates above warmup_updates ({self.warmup_updates}), "
                f"got {self.total_updates}"
            )
        if self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate must be at most learning_rate ({self.learning_rate:g}), "
                f"got {self.final_learning_rate:g}"
            )
        return self


def public_name(model: str) -> str:
    """What others may know a model by: its hub id, but of a local one a digest of its description, never its path."""
    if model == TINY or not (model.startswith(("/", ".", "~")) or Path(model).exists()):
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
