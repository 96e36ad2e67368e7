"""A model in Hugging Face format as a GGUF file, which llama.cpp, Ollama and LM Studio load.

    config.json       ─▶ sizes, rope, attention            (`_describe`)
    tokenizer         ─▶ tokens, merges or scores, template (`tokenizer.py`)
    *.safetensors     ─▶ tensors, in llama.cpp's layout     (`_tensors`)

What llama.cpp would compute differently is refused: it reads what it knows of a file, and ignores the rest.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from swarm.distribution import how_to_install
from swarm.errors import ConfigError
from swarm.extras.export.tokenizer import refused, write_tokenizer

if TYPE_CHECKING:
    from gguf import GGUFWriter

GgufType = Literal["F16", "BF16", "Q8_0"]
"""Type of the matrices; vectors are float32."""
BLOCK = 32
"""Weights of a row that share a scale in Q8_0."""
GEMMA_PERIOD = 6
"""llama.cpp takes every sixth layer of a Gemma 3 for one that attends to everything."""
LARGEST_GEMMA_LAYERS = 62
"""Layers of Gemma 3 27B, which alone scales queries by another number than the head's size."""


class Family(NamedTuple):
    """What llama.cpp knows of an architecture."""

    arch: str
    """Its name there."""
    activation: str
    permutes: bool = False
    """Whether rows of queries and keys are ordered by pairs that rotate together, instead of by halves."""
    norm_shift: float = 0.0
    """Added to the weights of norms."""


FAMILIES = {
    "LlamaForCausalLM": Family("llama", "silu", permutes=True),
    "Qwen2ForCausalLM": Family("qwen2", "silu"),
    "Qwen3ForCausalLM": Family("qwen3", "silu"),
    "Gemma3ForCausalLM": Family("gemma3", "gelu_pytorch_tanh", norm_shift=1.0),
}
SUPPORTED = "Llama (SmolLM2), Qwen2, Qwen3 and Gemma 3 (text)"


def check_gguf() -> None:
    """Raises `ConfigError` without the package that writes GGUF."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"--gguf needs the package gguf: {how_to_install('gguf')}")


def write_gguf(directory: Path, file: Path, kind: GgufType) -> None:
    """Write the model in `directory` to `file`, its matrices as `kind`.

    Raises `ConfigError` for a model that llama.cpp would compute differently, and `OSError`.
    """
    import gguf

    config = AutoConfig.from_pretrained(directory)
    family = check_family(config)
    writer = gguf.GGUFWriter(file, family.arch, use_temp_file=True)
    try:
        writer.add_type("model")
        writer.add_name(file.stem)
        writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{kind}"))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _describe(writer, config)
        write_tokenizer(writer, AutoTokenizer.from_pretrained(directory), config.vocab_size, directory)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.arch.upper()], config.num_hidden_layers)
        for name, tensor in _tensors(directory, config, family):
            known = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if known is None:
                raise refused(f"llama.cpp has no place for the weights {name}")
            _add(writer, known, tensor, kind)
        for name, tensor in _rope_factors(config):
            writer.add_tensor(name, tensor.float().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def check_family(config: PretrainedConfig) -> Family:
    """The family of a model. Raises `ConfigError` for one that llama.cpp does not know, or computes differently."""
    name = (config.architectures or ["?"])[0]
    family = FAMILIES.get(name)
    if family is None:
        raise ConfigError(f"GGUF export supports {SUPPORTED}, not {name}")
    rope = _rope(config).get("rope_type", "default")
    scalar, head = getattr(config, "query_pre_attn_scalar", None), _head_size(config)
    differs = {
        "hidden_act": _activation(config) != family.activation,
        "attention_bias": family.arch != "qwen2" and bool(getattr(config, "attention_bias", False)),
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
        "use_sliding_window": bool(getattr(config, "use_sliding_window", False)),
        f"rope_type {rope}": rope not in ("default", "linear", "llama3"),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None) is not None,
        "query_pre_attn_scalar": scalar not in (None, head) and config.num_hidden_layers != LARGEST_GEMMA_LAYERS,
        "layer_types": family.arch == "gemma3"
        and config.layer_types != [_gemma_layer(number) for number in range(config.num_hidden_layers)],
    }
    if wrong := [field for field, is_other in differs.items() if is_other]:
        raise refused(f"llama.cpp does not support the {', '.join(wrong)} of this {name}")
    return family


def _gemma_layer(number: int) -> str:
    return "sliding_attention" if (number + 1) % GEMMA_PERIOD else "full_attention"


def _activation(config: PretrainedConfig) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _head_size(config: PretrainedConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rope(config: PretrainedConfig) -> Mapping[str, Any]:
    """How positions rotate, in layers that attend to everything."""
    parameters: Mapping[str, Any] = config.rope_parameters
    layers: Mapping[str, Any] = parameters.get("full_attention", parameters)
    return layers


def _describe(writer: GGUFWriter, config: PretrainedConfig) -> None:
    import gguf

    head, rope = _head_size(config), _rope(config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if local := config.rope_parameters.get("sliding_attention"):
        writer.add_rope_freq_base_swa(local["rope_theta"])
        writer.add_sliding_window(config.sliding_window)
    if cap := getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(cap)


def _rope_factors(config: PretrainedConfig) -> Iterator[tuple[str, Tensor]]:
    """Llama 3's divisors of the frequencies, [head / 2], which llama.cpp reads as a tensor."""
    rope = _rope(config)
    if rope.get("rope_type") == "llama3":
        head = _head_size(config)
        plain = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head, 2, dtype=torch.float32) / head))
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        yield "rope_freqs.weight", plain / scaled


def _tensors(directory: Path, config: PretrainedConfig, family: Family) -> Iterator[tuple[str, Tensor]]:
    """The weights in float32 by their names here, in llama.cpp's layout."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not iterable itself
                if name == "lm_head.weight" and config.tie_word_embeddings:
                    continue
                tensor = opened.get_tensor(name).float()
                if family.permutes and (count := heads.get(name.split(".")[-2])):
                    tensor = tensor.reshape(count, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
                if name.endswith("norm.weight"):
                    tensor = tensor + family.norm_shift
                yield name, tensor.contiguous()


def _add(writer: GGUFWriter, name: str, tensor: Tensor, kind: GgufType) -> None:
    """Add a tensor: vectors as float32, rows that do not divide into blocks as float16. Raises `ConfigError`."""
    import gguf

    chosen = gguf.GGMLQuantizationType[kind]
    if tensor.dim() < 2:
        chosen = gguf.GGMLQuantizationType.F32
    elif kind == "Q8_0" and tensor.shape[-1] % BLOCK:
        chosen = gguf.GGMLQuantizationType.F16
    if chosen is gguf.GGMLQuantizationType.F16 and tensor.abs().max() > torch.finfo(torch.float16).max:
        raise ConfigError(f"{name} has weights that float16 cannot hold: choose --gguf BF16")
    writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), chosen), raw_dtype=chosen)
