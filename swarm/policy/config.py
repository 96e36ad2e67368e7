"""Settings of the policy that a node trains."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import Field, JsonValue, field_validator

from swarm.distribution import how_to_install
from swarm.errors import ConfigError
from swarm.files import sampled_digest
from swarm.policy.calling import CallFormat
from swarm.settings import Settings

TINY = "tiny"
TINY_SPARSE = "tiny-sparse"
"""Like `TINY`, but it answers in the right form so rarely that most of its groups have no signal at first."""
TINY_TOOL = "tiny-tool"
"""It knows how to multiply with a calculator, but hardly ever takes it."""
TINY_SEES = "tiny-sees"
"""It sees, and answers questions about images in the right form as rarely as `TINY_SPARSE` does its own."""
EMBEDDED = (TINY, TINY_SPARSE, TINY_TOOL, TINY_SEES)
SMOLLM2 = "smollm2"
"""SmolLM2-135M-Instruct from a package."""
MADE_HERE = (*EMBEDDED, SMOLLM2)
"""Policies that every machine makes for itself, the same everywhere: known by these names."""

SYSTEM_PROMPT = (
    "Answer the question. Think step by step if it helps, then give only the final answer between <answer> and "
    "</answer>."
)
"""The default for models that are not embedded."""
SYSTEM_PROMPT_WITH_FORMS = f"{SYSTEM_PROMPT} If the question asks for another form of answer, use that form instead."
"""The default where some questions say how to answer."""
SYSTEM_PROMPT_OF_FORMS = "Answer the question in the form that it asks for."
"""The default where all questions do."""

BEHIND_ENDPOINT = "endpoint"
"""`policy.model` where an endpoint answers: the defaults are those of any model, and none is loaded."""

EXPORTED = "swarm.json"
EXPORT_FORMAT = 1
MAX_EXPORTED_BYTES = 2**20

BatchingName = Literal["auto", "packed", "padded"]
FrozenDtype = Literal["compute", "float32", "int8", "nf4"]
QUANTIZED: tuple[FrozenDtype, ...] = ("int8", "nf4")
"""Types of fewer bits than the forward pass has."""


class LoraSettings(Settings):
    """Train small adapters beside frozen weights: optimizer, gradients and checkpoints shrink to their size.

    Adapters need a larger learning rate than full training, often three to ten times. There is no dropout, because
    sampling and training must agree on probabilities. Needs the extra `lora` (peft). Source: arXiv:2106.09685.
    """

    rank: int = Field(0, ge=0)
    """Rank of the adapters, e.g. 16; 0 trains all weights instead."""
    alpha: int = Field(32, ge=1)
    """An adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Suffixes of the names of adapted layers, such as `q_proj`; default: every linear layer except the output head."""
    frozen_dtype: FrozenDtype = "compute"
    """Type of the frozen weights: `compute` follows `policy.dtype`, which halves memory with bfloat16. `int8` and `nf4`
    keep the matrices of linear layers, except the output head, in 8 and 4.5 bits a weight, dequantized on the fly
    (QLoRA, arXiv:2305.14314). The policy is then the quantized model with its adapters, for generation too: a
    learner and its workers need the same. Not with several processes (torchrun)."""

    @property
    def quantized(self) -> str:
        """The type that the frozen weights are quantized to; empty if there are none, or if they are not quantized."""
        return self.frozen_dtype if self.rank and self.frozen_dtype in QUANTIZED else ""


TemplateVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
ThinkingMark = Annotated[str, Field(min_length=1, max_length=64)]
MAX_TEMPLATE_BYTES = 2**20
MAX_KWARGS = 32
MAX_KWARGS_CHARS = 4_096
SCALAR = re.compile(r"true|false|null|-?(0|[1-9]\d{0,15})(\.\d{1,16})?", re.IGNORECASE | re.ASCII)
NODES_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "strftime_now")
    + ("bos_token", "eos_token", "pad_token", "unk_token", "raise_exception", "namespace")
)
"""Variables of chat templates that are not the user's."""


class PolicySettings(Settings):
    """Model, tokenizer and device."""

    model: str = TINY
    """A hub id, a local directory in Hugging Face format, an embedded policy (`tiny`; `tiny-sparse`, which starts with
    hardly any reward; `tiny-tool`, which can call a calculator; `tiny-sees`, which sees images), or `smollm2`:
    SmolLM2-135M-Instruct, which needs the extra `smollm` but no hub."""
    revision: str | None = None
    """Hub revision of the model."""
    device: str = "auto"
    """`auto` (CUDA, then Apple's MPS, then CPU), or any torch device; the default for `tiny` is `cpu`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of forward passes; trained weights stay float32, because small steps would be rounded away. `auto`: bfloat16
    on GPUs that support it, and for models of 20 M parameters and more on CPUs with AVX512-BF16 or AMX; else float32.
    `float16` scales the loss, so that gradients do not underflow."""
    system_prompt: str | None = None
    """Prompt before every question. Default: none for embedded policies; the trained policy's for a directory that
    `swarm export` wrote; for others a request for `<answer>` tags, or for the form that the question asks for if a
    task's `find` is another."""
    chat_template: Path | None = None
    """File with a Jinja chat template in place of the model's."""
    chat_template_kwargs: dict[TemplateVariable, JsonValue] = Field({}, max_length=MAX_KWARGS)
    """Values for the chat template's own variables, such as `{enable_thinking: false}` for Qwen3. A name that the
    template does not read is refused. Default: none; the trained policy's for a directory that `swarm export` wrote."""
    thinking_marks: tuple[ThinkingMark, ...] = Field((), max_length=2)
    """Opening and closing mark of a thought, such as `["<think>", "</think>"]`. Default: those in the chat template."""
    tool_calls: CallFormat = "auto"
    """How the model calls tools: `hermes` (Qwen, Hermes), `llama`, `mistral`, `gemma`, `function_gemma`, `qwen3_coder`
    and `glm` (XML elements), `json` (bare objects), or `tags`, the `<tool>` tags that the question then explains.
    `auto`: as the chat template renders a call; `tags` where it takes no tools."""
    trust_remote_code: bool = False
    """Run Python code from the model's repository."""
    threads: int | None = Field(None, ge=1)
    """CPU threads for torch. Default: one for each core, of a container's processor time; from four cores on, one core
    is left to verification and network. Trainer and engine share them where both compute at the same time
    (`generation.max_staleness`)."""
    routing_replay: bool = False
    """For mixture-of-experts models: train every token with the experts that routed it at generation. Reduces the
    difference between engine and trainer (`sampling/sampling_logp_difference/mean`). Source: arXiv:2510.11370."""
    encoder: Literal["frozen", "trained"] = "frozen"
    """The encoder of a model that reads images or sounds. `frozen`: features are computed once a question, adapters are
    in the language part only. `trained`: so is the encoder, or its adapters; features are computed again in every pass
    of an update, and after it."""
    lora: LoraSettings = LoraSettings()

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_the_users(cls, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if reserved := sorted(given.keys() & NODES_VARIABLES):
            raise ValueError(f"{', '.join(reserved)}: the node itself sets it")
        read = {name: _scalar(value) for name, value in given.items()}
        if (size := len(json.dumps(read))) > MAX_KWARGS_CHARS:
            raise ValueError(f"it must have at most {MAX_KWARGS_CHARS} characters as JSON, got {size}")
        return read

    @field_validator("thinking_marks")
    @classmethod
    def _are_a_pair(cls, marks: tuple[str, ...]) -> tuple[str, ...]:
        if len(marks) == 1 or len(set(marks)) < len(marks):
            raise ValueError(f"must be two different texts, the opening and the closing mark, got {list(marks)}")
        return marks


class OpponentSettings(Settings):
    """A language model as an opponent: it is asked as a policy in its seat would be, on one core, and gives up where it
    names no legal move. Weights are float32."""

    path: str = Field(min_length=1)
    """A directory in Hugging Face format, such as `swarm export` writes, a hub id, or a policy that is made here, such
    as `smollm2`."""
    system_prompt: str | None = None
    """Prompt before every question; default as for `policy.system_prompt`."""
    temperature: float = Field(0.0, ge=0, le=10)
    """0 is greedy."""
    max_new_tokens: int = Field(32, ge=1, le=4_096)
    """Longest turn."""

    @property
    def policy(self) -> PolicySettings:
        """It as a policy."""
        return PolicySettings(model=self.path, device="cpu", dtype="float32", system_prompt=self.system_prompt)


def _scalar(value: JsonValue) -> JsonValue:
    """A value of a command line or variable, which is text: `false` is no true text."""
    if isinstance(value, str) and SCALAR.fullmatch(value):
        return cast(JsonValue, json.loads(value.lower()))
    return value


HUB_ID = re.compile(r"\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", re.ASCII)
MAX_HUB_ID_CHARS = 96
HUB_ID_IN_WORDS = f"OWNER/NAME, such as Qwen/Qwen2.5-0.5B-Instruct; without a hub there are {', '.join(MADE_HERE)}"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
UNIMPORTANT = ("transformers_version", "_name_or_path")
"""Fields of a `config.json` that do not describe the model: who wrote it, and where."""


def is_on_hub(model: str) -> bool:
    """Whether a model is neither embedded nor a local directory."""
    return model not in MADE_HERE and not model.startswith(("/", ".", "~")) and not Path(model).exists()


def public_name(model: str) -> str:
    """The public name of a model: its hub id; for a local model a digest of its `config.json`, never its path."""
    if model in MADE_HERE or is_on_hub(model):
        return model
    description = Path(model) / "config.json"
    content = description.read_bytes() if description.is_file() else b""
    return f"local:{hashlib.blake2b(content, digest_size=4).hexdigest()}"


def local_name(model: str) -> str:
    """The name of a model on this machine, in checkpoints and messages: for a directory its last part."""
    return Path(model).name if Path(model).exists() else model


@cache
def origin(model: str, revision: str | None) -> str:
    """Identity of a model before training, for checkpoints: its hub id and revision, or, for a directory wherever it
    is, a digest of its configuration and of its weights' names, sizes and samples of their content."""
    if model in MADE_HERE or is_on_hub(model):
        return model if revision is None else f"{model}@{revision}"
    description = Path(model) / "config.json"
    parts = [_description(description) if description.is_file() else {}]
    for file in sorted(Path(model).iterdir()) if Path(model).is_dir() else []:
        if file.suffix in WEIGHT_SUFFIXES:
            parts.append([file.name, file.stat().st_size, sampled_digest(file)])
    return f"local:{hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()}"


def _description(file: Path) -> object:
    """A `config.json` without what says nothing about the model."""
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError):  # loading it says what is wrong
        return {}
    return {name: found[name] for name in found if name not in UNIMPORTANT} if isinstance(found, dict) else found


def default_prompt(model: str) -> str | None:
    """The system prompt of a model where none is set; that of a directory which `swarm export` wrote is the trained
    policy's. Raises `ConfigError` for a directory of a later version.
    """
    if model in EMBEDDED:
        return None
    exported = exported_prompt(model)
    return SYSTEM_PROMPT if exported is None else exported


def exported_prompt(model: str) -> str | None:
    """The system prompt that `swarm export` wrote beside a model; None without one. Raises `ConfigError`."""
    known = read_exported(model)
    return None if known is None else str(known["system_prompt"])


def prompt_of(settings: PolicySettings) -> str | None:
    """The system prompt: what is set, else the model's default. Raises `ConfigError`."""
    return default_prompt(settings.model) if settings.system_prompt is None else settings.system_prompt


def template_values(settings: PolicySettings) -> dict[str, JsonValue]:
    """Values of the chat template: those set, else the trained policy's for a directory that `swarm export` wrote.

    Raises `ConfigError`.
    """
    if settings.chat_template_kwargs:
        return settings.chat_template_kwargs
    found = (read_exported(settings.model) or {}).get("chat_template_kwargs")
    return cast(dict[str, JsonValue], found) if isinstance(found, dict) else {}


def read_exported(model: str) -> dict[str, object] | None:
    """The file that `swarm export` wrote beside a model; None without it. Raises `ConfigError`."""
    file = Path(model) / EXPORTED
    if not file.is_file():
        return None
    try:
        if file.stat().st_size > MAX_EXPORTED_BYTES:
            raise ValueError(f"it is larger than {MAX_EXPORTED_BYTES} bytes")
        known: dict[str, object] = json.loads(file.read_text())
        version, _ = known["format"], known["system_prompt"] if known["format"] == EXPORT_FORMAT else ""
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; export the checkpoint again, or remove the file") from error
    if version != EXPORT_FORMAT:
        raise ConfigError(f"{file} has format {version}, this version reads {EXPORT_FORMAT}: update swarm")
    return known


def write_exported(directory: Path, prompt: str | None, trained: Mapping[str, object]) -> None:
    """Write beside a model what `from_pretrained` does not keep: the prompt, and `trained` as JSON values."""
    known = {"format": EXPORT_FORMAT, "system_prompt": prompt or "", **trained}
    (directory / EXPORTED).write_text(json.dumps(known, indent=1) + "\n")


def read_chat_template(file: Path) -> str:
    """The template in a file of the user's. Raises `ConfigError`."""
    try:
        if file.stat().st_size > MAX_TEMPLATE_BYTES:
            raise ValueError(f"it has more than {MAX_TEMPLATE_BYTES} bytes")
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"policy.chat_template: {file} cannot be read: {reason}") from error


def check_model_path(settings: PolicySettings) -> None:
    """Raises `ConfigError` when `model` is no directory, and cannot be the name of a model either."""
    model = settings.model
    if model in MADE_HERE or Path(model).exists():
        return
    if model.startswith(("/", ".", "~")):
        raise ConfigError(f"policy.model: there is no directory {model}")
    if len(model) > MAX_HUB_ID_CHARS or not HUB_ID.fullmatch(model) or "--" in model or ".." in model:
        raise ConfigError(f"policy.model: {model!r} is neither a directory nor a hub id, which is {HUB_ID_IN_WORDS}")


def check_peft(settings: LoraSettings) -> None:
    """Raises `ConfigError` when LoRA is enabled and peft is not installed."""
    if settings.rank and importlib.util.find_spec("peft") is None:
        raise ConfigError(
            f"policy.lora.rank is {settings.rank}, but peft is not installed: {how_to_install('lora')}, or set it to "
            "0 to train all weights"
        )
