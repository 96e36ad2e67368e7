"""Random models of real sizes."""

from __future__ import annotations

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

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


def half_a_billion(device: torch.device) -> Policy:
    """A policy of so many weights, in bfloat16."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(SHAPE).to(device, torch.bfloat16)
    return Policy("random/0.5B", model, tiny_tokenizer(), None, torch.bfloat16)
