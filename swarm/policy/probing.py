"""Numeric probes of a model's code, on a small copy of it with random weights.

What a probe looks for is in the code of a model's family and in its configuration, not in its weights. A copy of a few
narrow layers with short windows is run in milliseconds whatever the model's size, in float32, where rounding cannot be
taken for a mistake; and rows of a few tokens are longer than its windows.
"""

from __future__ import annotations

import copy
import json
from math import gcd

import torch
from transformers import PretrainedConfig, PreTrainedModel

TOLERANCE = 1e-4
"""Largest difference that counts as rounding in float32: of log-probabilities in nats, of other values relative."""
WINDOW = 8
"""Tokens of a small copy's windows."""
VOCABULARY = 512
WIDTH = 64
"""Width of a small copy's feed-forward layers."""
EXPERTS = 16
MAX_LAYERS = 6
MAX_PARAMETERS = 50_000_000
"""Largest copy worth making: 200 MB."""
SIZES = dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), WIDTH)
SIZES |= dict.fromkeys(("ffn_dim", "n_inner"), WIDTH)
SIZES |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), EXPERTS)
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


@torch.no_grad()
def small_copy(model_class: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel | None:
    """A small random model with the same kinds of layers, on the CPU; None where there is no such copy."""
    try:
        config = _small(config)
        with torch.device("meta"):
            if model_class(config).num_parameters() > MAX_PARAMETERS:
                return None
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(0)  # no other device's
            made: PreTrainedModel = model_class(config).float().eval()
        made(input_ids=torch.arange(2 * WINDOW)[None], use_cache=False)
    except Exception:  # whatever the code of a family raises at sizes that its authors did not foresee
        return None
    return made


def _small(config: PretrainedConfig) -> PretrainedConfig:
    config = copy.deepcopy(config)
    for name in config.sub_configs:
        if isinstance(part := getattr(config, name, None), PretrainedConfig):
            setattr(config, name, _small(part))
    _keep_layers(config)
    _narrow(config)
    for name, size in [(name, value) for name, value in vars(config).items() if type(value) is int]:
        if name.startswith("vocab_size"):
            setattr(config, name, min(size, VOCABULARY))
        elif name in SIZES:
            setattr(config, name, min(size, SIZES[name]))
        elif _is_window(name):
            setattr(config, name, min(size, WINDOW))
    for name in TOKENS:
        token = vars(config).get(name)
        if token is not None and not (isinstance(token, int) and token < VOCABULARY):
            setattr(config, name, 0)
    return config


def _is_window(name: str) -> bool:
    """`sliding_window`, `window_size`, `attention_chunk_size`; not `max_window_layers`."""
    return name == "attention_chunk_size" or ("window" in name and "layer" not in name and "pattern" not in name)


def _keep_layers(config: PretrainedConfig) -> None:
    """Keep the first layer of each kind, as far as lists with one entry per layer show; at least two layers."""
    number = getattr(config, "num_hidden_layers", None)
    if not isinstance(number, int):
        return
    sequences = {name: each for name, each in vars(config).items() if isinstance(each, list | tuple)}
    lists = {name: each for name, each in sequences.items() if len(each) == number}
    kinds = [json.dumps([each[layer] for each in lists.values()], default=str) for layer in range(number)]
    first = [layer for layer, kind in enumerate(kinds) if kind not in kinds[:layer]][:MAX_LAYERS]
    kept = first if len(first) > 1 else list(range(min(2, number)))
    for name, each in lists.items():
        setattr(config, name, [each[layer] for layer in kept])
    config.num_hidden_layers = len(kept)


def _narrow(config: PretrainedConfig) -> None:
    """Divide heads and hidden size by what they have in common: heads keep their size and their groups."""
    heads, hidden = (getattr(config, name, None) for name in ("num_attention_heads", "hidden_size"))
    if not isinstance(heads, int) or not isinstance(hidden, int):
        return
    groups = getattr(config, "num_key_value_heads", None) or heads
    divisor = gcd(heads, groups)
    if divisor == heads and heads % 2 == 0:
        divisor = heads // 2  # two heads, so that one cannot be taken for another
    if hidden % divisor:
        return
    config.num_attention_heads, config.hidden_size = heads // divisor, hidden // divisor
    if getattr(config, "num_key_value_heads", None):
        config.num_key_value_heads = groups // divisor
