"""Small random models of several architectures, all with the embedded tokenizer."""

from __future__ import annotations

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config, tiny_tokenizer

ARCHITECTURES = ("qwen2", "llama", "gpt2", "mistral", "gemma3", "qwen3_moe")
"""Grouped heads, no bias, learned positions, a sliding window, windows on some layers, experts."""
PUBLISHED = ("gemma4_text", "glm4_moe", "mixtral", "phimoe", "minimax_m2", "qwen3_moe", "qwen2")
"""Buffers in checkpoints, other names in checkpoints, both, other experts only, none of it."""
WINDOW = 16
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}


def random_policy(head_dim: int = 16) -> Policy:
    """The embedded policy's architecture, nothing learned."""
    torch.manual_seed(0)
    config = tiny_config()
    config.head_dim = head_dim
    return Policy("random", Qwen3ForCausalLM(config), tiny_tokenizer(), system_prompt=None)


def make(architecture: str, attention: str = "sdpa") -> Policy:
    """A policy whose distributions are far from uniform."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    common = {"vocab_size": len(tokenizer), "initializer_range": 0.3, "eos_token_id": 1, "pad_token_id": 0}
    shape = {**common, **SIZES}
    mixed = ["sliding_attention", "full_attention"]
    models: dict[str, tuple[type[PreTrainedModel], object]] = {
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**shape)),
        "llama": (LlamaForCausalLM, LlamaConfig(**shape)),
        "gpt2": (
            GPT2LMHeadModel,
            GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, n_positions=512, bos_token_id=1),
        ),
        "mistral": (MistralForCausalLM, MistralConfig(**shape, sliding_window=WINDOW)),
        "gemma3": (
            Gemma3ForCausalLM,
            Gemma3TextConfig(**shape, head_dim=8, sliding_window=WINDOW, layer_types=mixed),
        ),
        "qwen3_moe": (
            Qwen3MoeForCausalLM,
            Qwen3MoeConfig(**shape, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        ),
    }
    model_class, config = models[architecture]
    model = model_class(config)
    model.set_attn_implementation(attention)
    return Policy(architecture, model, tokenizer, system_prompt=None)


def make_published(architecture: str) -> Policy:
    """A policy whose published checkpoints have more than parameters, or other names for them; buffers are random."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    shape = {**SIZES, "vocab_size": len(tokenizer), "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 1}
    local = {"num_local_experts": 4, "num_experts_per_tok": 2}
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
    layers = {"global_head_dim": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": len(tokenizer)}
    models: dict[str, tuple[type[PreTrainedModel], object]] = {
        "gemma4_text": (Gemma4ForCausalLM, Gemma4TextConfig(**shape, **layers, head_dim=8)),
        "glm4_moe": (
            Glm4MoeForCausalLM,
            Glm4MoeConfig(**shape, **experts, n_routed_experts=4, head_dim=8, first_k_dense_replace=1),
        ),
        "mixtral": (MixtralForCausalLM, MixtralConfig(**shape, **local)),
        "phimoe": (PhimoeForCausalLM, PhimoeConfig(**shape, **local)),
        "minimax_m2": (MiniMaxM2ForCausalLM, MiniMaxM2Config(**shape, **local, head_dim=8)),
        "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**shape, **experts, num_experts=4)),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**shape, tie_word_embeddings=True)),
    }
    model_class, config = models[architecture]
    model = model_class(config)
    for name, buffer in model.named_buffers():
        if name in model.state_dict():
            buffer.uniform_(0.1, 0.9)
    return Policy(architecture, model, tokenizer, system_prompt=None)
