"""Load model and tokenizer from a directory or the hub, with precise errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, get_session, try_to_load_from_cache
from safetensors import SafetensorError
from torch.nn.modules.module import register_module_module_registration_hook
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
from transformers.utils import CONFIG_NAME, cached_file

from swarm.children import inherited, python_path
from swarm.errors import PolicyError, SwarmError
from swarm.policy import tokenizer_process
from swarm.policy.config import HUB_ID_IN_WORDS, MADE_HERE, WEIGHT_SUFFIXES, is_on_hub
from swarm.sanitize import clean
from swarm.settings import nearest

ADAPTER_FILE = "adapter_config.json"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How Git LFS begins what it leaves in place of a file."""
DAMAGED = ("PytorchStreamReader", "UnpicklingError", "EOFError", "Error while deserializing header")
"""In what the readers of weights raise for files that are cut off, or are something else."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
TOKENIZER_FILE = TOKENIZER_FILES[0]
TRY_S = 300.0
"""Wall-clock limit of the process that tries a tokenizer, for a machine that is busy."""
NAMED = 3
"""Most wrong tensors that a message lists."""
PANIC = "PanicException"
"""The tokenizers' library raises it for files that it did not foresee; it is no `Exception`."""
MAX_REASON_CHARS = 1_000
HUB_TIMEOUT_S = 5.0
MAX_CONFIG_BYTES = 2**24
MAX_LAYERS = 10_000
MAX_MODULES = 250_000
"""Parts of a model: four times those of the largest mixture of experts."""
_LAYERS = re.compile(r"(^|_)(layers?|depth|blocks?)$")
"""Names of settings that say how often a part is repeated; others make parts large, which costs nothing without
content."""


@contextmanager
def foreign_files(source: str, part: str = "") -> Iterator[None]:
    """Whatever reading an untrusted model, or this part of it, raises is a `PolicyError` of one line."""
    try:
        yield
    except SwarmError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        known = isinstance(error, (OSError, ValueError, ImportError, SafetensorError))
        text = str(error) if known else f"{type(error).__name__}: {error}"
        reason = clean(" ".join(text.split()), MAX_REASON_CHARS)
        if any(sign in f"{type(error).__name__}: {text}" for sign in DAMAGED):
            reason = f"a file of its weights is cut off, or is no file of weights: download it again ({reason[:120]})"
        if part:
            raise PolicyError(f"cannot read the {part} of model {source!r}: {reason}") from error
        raise PolicyError(f"cannot load model {source!r}: {reason}") from error


@contextmanager
def few_modules(source: str) -> Iterator[None]:
    """Building a model of parts without end is a `PolicyError`. Only for parts that this thread makes."""
    thread, count = threading.get_ident(), 0

    def counted(module: object, name: str, part: object) -> None:
        nonlocal count
        count += threading.get_ident() == thread
        if count > MAX_MODULES:
            raise PolicyError(f"the config.json of {source!r} describes a model of over {MAX_MODULES} parts")

    hook = register_module_module_registration_hook(counted)
    try:
        yield
    finally:
        hook.remove()


def read_model(
    source: str, revision: str | None, trust_remote_code: bool, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model, on the CPU in `dtype`, and tokenizer. Raises `PolicyError`."""
    _check_source(source, revision)
    if Path(source).is_dir():
        _check_tokenizer(Path(source))
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    with foreign_files(source), few_modules(source):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        config = _read_config(source, revision, trust_remote_code)
        _check_files_hold(source, config, trust_remote_code)
        model, found = model_class(config).from_pretrained(
            source, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
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
    """Whether a model reads images or sounds beside text."""
    return type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING


def model_class(config: PreTrainedConfig) -> Any:
    """The auto class that loads a model with this configuration."""
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
    with foreign_files(source, "configuration"), few_modules(source):
        return _outline(config, trust_remote_code)


def read_config(source: str, revision: str | None, trust_remote_code: bool) -> PreTrainedConfig:
    """The model's `config.json`. Raises `PolicyError`, also for a model that cannot be trained because of it."""
    with foreign_files(source, "configuration"):
        return _read_config(source, revision, trust_remote_code)


def _read_config(source: str, revision: str | None, trust_remote_code: bool) -> PreTrainedConfig:
    _check_source(source, revision)
    if find_file(source, ADAPTER_FILE, revision) is not None:
        raise PolicyError(
            f"{source} holds adapters ({ADAPTER_FILE}) beside its weights: merge them into the weights, or remove the "
            "files adapter_*"
        )
    if (file := find_file(source, CONFIG_NAME, revision)) is not None:
        _check_repeated(source, Path(file))
    config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    _check_whole_precision(source, config)
    return config


def find_file(source: str, name: str, revision: str | None) -> str | None:
    """The path of one of the model's files; None if it has none of this name."""
    found: str | None = cached_file(
        source,
        name,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,  # what is loaded next says it
    )
    return found


def _outline(config: PreTrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    with torch.device("meta"):
        return empty_model(config, trust_remote_code=trust_remote_code)


def _check_repeated(source: str, file: Path) -> None:
    """Raises `PolicyError` for so many layers that a list of them would fill the memory."""
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise PolicyError(f"the config.json of {source!r} has more than {MAX_CONFIG_BYTES} bytes")
    pending = [json.loads(file.read_bytes())]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            pending += part.values()
            for name, value in part.items():
                if _LAYERS.search(name) and isinstance(value, int | float) and not value <= MAX_LAYERS:
                    raise PolicyError(
                        f"the config.json of {source!r} says {clean(name)} {value:.3g}, must be at most {MAX_LAYERS}"
                    )


def _check_files_hold(source: str, config: PreTrainedConfig, trust_remote_code: bool) -> None:
    """Raises `PolicyError` for a directory whose files cannot hold the model that is to be made, before it is made."""
    if not Path(source).is_dir():
        return  # the hub's files are not here yet
    stored = sum(file.stat().st_size for file in Path(source).iterdir() if file.suffix in WEIGHT_SUFFIXES)
    described = _outline(config, trust_remote_code).num_parameters()
    if described > stored > 0:
        raise PolicyError(
            f"the weights in {source!r} have {stored} bytes, too few for the {described} parameters of its config.json"
        )


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


def check_hub(model: str, revision: str | None = None) -> None:
    """Look for a model that is neither embedded nor in a directory: in the hub's cache, then on the hub.

    Raises `PolicyError` within seconds when it is nowhere to be had. Where the hub does not answer, but the cache has
    the model, this process asks the hub no more.
    """
    if not is_on_hub(model) or constants.HF_HUB_OFFLINE:
        return
    problem = _unreachable(constants.ENDPOINT)
    if problem is None:
        return
    if isinstance(try_to_load_from_cache(model, CONFIG_NAME, revision=revision), str):
        constants.HF_HUB_OFFLINE = True
        return
    meant = nearest(model, MADE_HERE)
    raise PolicyError(
        f"there is no model {model!r} here{f', did you mean {meant}? It' if meant else ': it'} is no directory, the "
        f"hub's cache has none of this name, and {constants.ENDPOINT} cannot be reached ({problem}). A hub id is "
        f"{HUB_ID_IN_WORDS}"
    )


@cache
def _unreachable(endpoint: str) -> str | None:
    """Why the hub does not answer, whatever the answer is; None if it does."""
    try:
        get_session().head(endpoint, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # of whatever library the hub's client uses
        return clean(str(error) or type(error).__name__)
    return None


def _check_source(source: str, revision: str | None = None) -> None:
    """Raises `PolicyError` for a path that is no directory of a whole model, and for a model that cannot be had."""
    check_hub(source, revision)
    directory = Path(source)
    if directory.is_file():
        raise PolicyError(f"policy.model must be a directory or a hub id, got the file {source}: name its directory")
    if not directory.is_dir():
        return
    if not (directory / CONFIG_NAME).is_file():
        if (directory / ADAPTER_FILE).is_file():
            raise PolicyError(
                f"{source} holds adapters alone: merge them into their base model and name that directory, or name the "
                "base model"
            )
        raise PolicyError(f"{source} has no config.json: it is not a model in Hugging Face format")
    for file in sorted(directory.iterdir()):
        if not file.is_file() or file.suffix not in (*WEIGHT_SUFFIXES, ".json", ".model", ".jinja", ".txt"):
            continue
        with file.open("rb") as opened:
            if opened.read(len(LFS_POINTER)) == LFS_POINTER:
                raise PolicyError(f"{file} is a pointer of Git LFS, not the file itself: run `git lfs pull` there")
        if file.stat().st_size == 0 and file.suffix in WEIGHT_SUFFIXES:
            raise PolicyError(f"{file} is empty: download it again")


def _check_tokenizer(directory: Path) -> None:
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise PolicyError(f"{directory} has no tokenizer; expected one of {', '.join(TOKENIZER_FILES)}")


def try_tokenizer(source: str, revision: str | None) -> None:
    """Raises `PolicyError` for a tokenizer with which texts take long or fill the memory, as another process finds.

    Raises it for a source that is no model first.
    """
    _check_source(source, revision)
    with foreign_files(source, TOKENIZER_FILE):
        path = find_file(source, TOKENIZER_FILE, revision)
    if path is None:
        return
    script = [sys.executable, "-P", tokenizer_process.__file__, path]
    environment = {**inherited("base"), **python_path(), "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(script, capture_output=True, env=environment, timeout=TRY_S, start_new_session=True)
        said = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired):
        said = (
            f"a text of {tokenizer_process.LENGTH} characters takes over {tokenizer_process.LIMIT_S:.0f} s of "
            f"processor time, or over {tokenizer_process.MAX_MEMORY_BYTES} bytes of memory"
        )
    except OSError as error:
        raise PolicyError(f"the process that tries tokenizers cannot be started: {error}") from error
    if said:
        raise PolicyError(f"the {TOKENIZER_FILE} of {source!r} cannot be used: {clean(said)}")
