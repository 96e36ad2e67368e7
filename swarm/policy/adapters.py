"""LoRA: small trained matrices beside frozen weights.

Source: arXiv:2106.09685. peft inserts them into the model's linear layers; other code uses the model as before. Only
the adapters are trained, saved in checkpoints and sent as snapshots.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from swarm.errors import CheckpointError, PolicyError
from swarm.policy.config import LoraSettings, check_peft
from swarm.policy.frozen import freeze, thaw
from swarm.policy.media.encoder import encoder_layers, is_encoder_trained

if TYPE_CHECKING:
    from peft import PeftModel

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BASE_FILE = "base.json"
PREFIX = "base_model.model."
"""Prefix that peft adds to the names of the model's parameters."""


class Adapters:
    """The adapters of one model, which is modified in place; its other weights are frozen."""

    def __init__(self, model: PreTrainedModel, settings: LoraSettings) -> None:
        """New adapters, initially without effect. Raises `ConfigError` without peft, `PolicyError` for bad targets."""
        self.rank = settings.rank
        self.base = _fingerprint(model)
        """Digest of the frozen weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # every process that holds a part of this policy starts from the same adapters
            self._peft = insert(model, settings)

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Within the block, forward passes use the frozen model: the policy before training."""
        with self._peft.disable_adapter():
            yield

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a directory that peft loads; `weights` are the trained parameters by their names in the model."""
        from peft import get_peft_model_state_dict

        directory.mkdir(parents=True, exist_ok=True)
        named = {PREFIX + name: value.detach().cpu().contiguous() for name, value in weights.items()}
        state = get_peft_model_state_dict(self._peft, state_dict=named, save_embedding_layers=False)
        save_file(state, directory / WEIGHTS_FILE, metadata={"format": "pt"})
        self._peft.peft_config["default"].save_pretrained(directory)
        (directory / BASE_FILE).write_text(json.dumps({"fingerprint": self.base}))

    def load(self, directory: Path) -> None:
        """Load what `save` wrote. Raises `CheckpointError` when it does not match these settings or this model."""
        from peft import set_peft_model_state_dict

        try:
            saved = json.loads((directory / CONFIG_FILE).read_text())
            settings = saved["r"], saved["lora_alpha"], sorted(saved["target_modules"])
            base = json.loads((directory / BASE_FILE).read_text())["fingerprint"]
            state = load_file(directory / WEIGHTS_FILE)
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"cannot read the adapters in {directory}: {error}") from error
        ours = self._peft.peft_config["default"]
        own = ours.r, ours.lora_alpha, sorted(ours.target_modules)
        for field, was, now in zip(("rank", "alpha", "targets"), settings, own, strict=True):
            if was != now:
                raise CheckpointError(f"{directory} was trained with policy.lora.{field} {was}, got {now}")
        if base != self.base:
            raise CheckpointError(
                f"{directory} holds adapters of another model than the loaded one: did policy.model or "
                "policy.revision change, or the model's files?"
            )
        try:
            set_peft_model_state_dict(self._peft, state)
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(f"the adapters in {directory} do not fit the model: {error}") from error

    def merge(self) -> PreTrainedModel:
        """The model with the adapters merged into its weights; this object cannot be used afterwards."""
        thaw(self._peft)
        merged: PreTrainedModel = self._peft.merge_and_unload()
        return merged


def insert(model: PreTrainedModel, settings: LoraSettings) -> PeftModel:
    """Insert new adapters into `model`, and freeze the rest, rounded as the settings say. Raises as `Adapters`."""
    check_peft(settings)
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(settings.targets) or "all-linear",
        exclude_modules=None if is_encoder_trained(model) else encoder_layers(model) or None,
        task_type="CAUSAL_LM",
    )
    if settings.rounded:
        freeze(model, settings.frozen_dtype)
    try:
        inserted: PeftModel = get_peft_model(model, config)
    except ValueError as error:
        raise PolicyError(f"policy.lora.targets do not fit the model: {error}") from error
    _refuse_embeddings(model)
    return inserted


def is_adapter_directory(directory: Path) -> bool:
    """Whether the directory holds adapters that `Adapters.save` wrote, rather than a whole model."""
    return (directory / CONFIG_FILE).is_file()


def _refuse_embeddings(model: PreTrainedModel) -> None:
    """Adapters on embeddings that are tied to the output head could not be merged into one weight."""
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if any("lora_" in name for name, _ in layer.named_parameters()):
            raise PolicyError("policy.lora.targets must not name the embeddings or the output head; leave them out")


def _fingerprint(model: PreTrainedModel) -> str:
    """Digest of the first values of every weight, as bfloat16: quick, and differs for other weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        first = parameter.detach().flatten()[:64].to(torch.bfloat16).float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + first.numpy().tobytes())
    return digest.hexdigest()
