"""Load model and tokenizer from a directory or the hub, with precise errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from swarm.errors import PolicyError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
UNREADABLE = (OSError, ValueError, KeyError, ImportError)
"""What transformers raises for files that it cannot read, or not without another package."""
NAMED = 3
"""Most wrong tensors that a message lists."""


def read_model(
    source: str, revision: str | None, trust_remote_code: bool, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model, on the CPU in `dtype`, and tokenizer. Raises `PolicyError`."""
    if Path(source).is_dir():
        _check_files(Path(source))
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        config = AutoConfig.from_pretrained(source, **options)
        _check_whole_precision(source, config)
        model, found = model_class(config).from_pretrained(
            source, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except (*UNREADABLE, SafetensorError) as error:
        raise PolicyError(f"cannot load model {source!r}: {error}") from error
    # transformers would initialize such tensors at random and continue.
    if missing := sorted(found["missing_keys"]):
        raise PolicyError(f"the weights of {source!r} lack {', '.join(missing[:NAMED])} ({len(missing)} in total)")
    if mismatched := sorted(found["mismatched_keys"]):
        name, stored, expected = mismatched[0]
        raise PolicyError(
            f"the weights of {source!r} do not fit its config.json: {name} must have the shape {list(expected)}, got "
            f"{list(stored)} ({len(mismatched)} in total)"
        )
    return model, tokenizer


def has_encoder(config: PreTrainedConfig) -> bool:
    """Whether a model reads pictures or sounds beside text."""
    return type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING


def model_class(config: PreTrainedConfig) -> Any:
    """What loads a model with this configuration."""
    if has_encoder(config):
        return AutoModelForMultimodalLM
    return AutoModelForCausalLM


def empty_model(config: PreTrainedConfig, **options: object) -> PreTrainedModel:
    """The model of a configuration."""
    model: PreTrainedModel = model_class(config).from_config(config, **options)
    return model


def outline(source: str, revision: str | None, trust_remote_code: bool) -> PreTrainedModel:
    """The model by its `config.json`, on the device `meta`: names and shapes without memory. Raises `PolicyError`."""
    config = read_config(source, revision, trust_remote_code)
    try:
        with torch.device("meta"):
            return empty_model(config, trust_remote_code=trust_remote_code)
    except UNREADABLE as error:
        raise PolicyError(f"cannot read the configuration of model {source!r}: {error}") from error


def read_config(source: str, revision: str | None, trust_remote_code: bool) -> PreTrainedConfig:
    """The model's `config.json`. Raises `PolicyError`, also for a model that cannot be trained because of it."""
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    except UNREADABLE as error:
        raise PolicyError(f"cannot read the configuration of model {source!r}: {error}") from error
    _check_whole_precision(source, config)
    return config


def _check_whole_precision(source: str, config: PreTrainedConfig) -> None:
    """Raises `PolicyError` for quantised weights: codes have no gradients, and mean nothing without their scales."""
    for part in (config, config.get_text_config()):
        if stored := getattr(part, "quantization_config", None):
            method = (stored if isinstance(stored, dict) else vars(stored)).get("quant_method", "unknown")
            raise PolicyError(
                f"policy.model must have weights in full precision, got {source!r}, whose config.json says "
                f"quantization_config with quant_method {getattr(method, 'value', method)!r}: choose the model that it "
                "was made from; --policy.lora.rank 16 --policy.lora.frozen_dtype nf4 stores that in 4 bits here"
            )


def _check_files(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        raise PolicyError(f"{directory} has no config.json: it is not a model in Hugging Face format")
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise PolicyError(f"{directory} has no tokenizer; expected one of {', '.join(TOKENIZER_FILES)}")
