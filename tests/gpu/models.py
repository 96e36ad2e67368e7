"""Random models of real sizes."""

from __future__ import annotations

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from swarm.policy.adapters import Adapters
from swarm.policy.config import LoraSettings
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_tokenizer

SHAPE = Qwen2Config(
    hidden_size=896,
    intermediate_size=4_864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=151_936,
    max_position_embeddings=4_096,
    tie_word_embeddings=True,
    pad_token_id=0,
    eos_token_id=1,
)
"""Of Qwen2.5-0.5B."""


LARGE = Qwen2Config(
    hidden_size=3_584,
    intermediate_size=18_944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    vocab_size=152_064,
    max_position_embeddings=4_096,
    tie_word_embeddings=False,
    pad_token_id=0,
    eos_token_id=1,
)
"""Of Qwen2.5-7B."""


def half_a_billion(device: torch.device, stored: torch.dtype = torch.bfloat16) -> Policy:
    """A policy of so many weights, computed in bfloat16."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(SHAPE).to(device, stored)
    return Policy("random/0.5B", model, tiny_tokenizer(), None, torch.bfloat16)


def seven_billion(device: torch.device, lora: LoraSettings) -> Policy:
    """A policy of so many weights in bfloat16, with adapters; made on the device, which takes seconds."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            model = Qwen2ForCausalLM(LARGE)
    finally:
        torch.set_default_dtype(before)
    adapters = Adapters(model, lora)
    return Policy("random/7B", model.to(device), tiny_tokenizer(), None, torch.bfloat16, adapters)
