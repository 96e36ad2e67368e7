"""Small random models of families that think, with chat templates of the structure of the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import JsonValue
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config
from swarm.policy.turns import TemplateUse

_TURNS = (
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}"
    "{%- set answer = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{{- '<|im_start|>assistant\n' + answer + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
)
QWEN3 = _TURNS + (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
QWEN3_THINKING = _TURNS + (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
GENERATION = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\n' }}{% generation %}{{- m.content + '<|im_end|>' }}{% endgeneration %}{{- '\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
DEEPSEEK = (
    "<bos>{%- for m in messages %}{%- if m.role == 'system' %}{{- m.content }}"
    "{%- elif m.role == 'user' %}{{- '<|User|>' + m.content }}"
    "{%- else %}{{- '<|Assistant|>' + m.content.split('</think>')[-1] + '<|eos|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|Assistant|><think>\n' }}{%- endif %}"
)
MAGISTRAL = (
    "<bos>{%- for m in messages %}{%- if m.role == 'system' %}{{- '[SYSTEM]' + m.content + '[/SYSTEM]' }}"
    "{%- elif m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}"
    "{%- else %}{{- m.content.split('[/THINK]')[-1] + '<|eos|>' }}{%- endif %}{%- endfor %}"
    "{#- a system prompt asks for [THINK] and [/THINK] #}"
)
GPT_OSS = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{#- thoughts: <|channel|>analysis<|message|> #}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
GEMMA4 = (
    "<bos>{%- for m in messages %}{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{- m.content.split('<channel|>')[-1] + '<turn|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|turn>model\n' }}"
    "{%- if not enable_thinking | default(false) %}{{- '<|channel>thought\n<channel|>' }}{%- endif %}{%- endif %}"
)
LLAMA3 = (
    "<bos>{%- for m in messages %}"
    "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
GEMMA2 = (
    "<bos>{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}"
    "{%- for m in messages %}{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{- m.content | trim + '<turn|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|turn>model\n' }}{%- endif %}"
)
SMOLLM2 = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


class Family(NamedTuple):
    """How a family writes conversations and thoughts."""

    template: str
    end: str
    """The token that ends a turn."""
    arguments: Mapping[str, JsonValue] = {}
    open: str = ""
    """What a policy says before a thought."""
    close: str = ""
    """What it says between thought and answer."""
    lead: str = ""
    """What its prompt has of the text of a thought."""
    plain: str = ""
    """What it says before an answer without a thought."""


THINK = {"open": "<think>\n", "close": "\n</think>\n\n"}
THINKING = {
    "qwen3": Family(QWEN3, "<|im_end|>", **THINK),
    "qwen3 opened": Family(QWEN3_THINKING, "<|im_end|>", close="\n</think>\n\n", lead="<think>\n"),
    "deepseek-r1": Family(DEEPSEEK, "<|eos|>", close="\n</think>\n\n", lead="<think>\n"),
    "magistral": Family(MAGISTRAL, "<|eos|>", open="[THINK]", close="[/THINK]"),
    "gpt-oss": Family(
        GPT_OSS,
        "<|return|>",
        open="<|channel|>analysis<|message|>",
        close="<|end|><|start|>assistant<|channel|>final<|message|>",
        plain="<|channel|>final<|message|>",
    ),
    "gemma4": Family(GEMMA4, "<turn|>", {"enable_thinking": True}, open="<|channel>thought\n", close="<channel|>"),
}
SILENT = {
    "qwen3 off": Family(QWEN3, "<|im_end|>", {"enable_thinking": False}),
    "gemma4 off": Family(GEMMA4, "<turn|>"),
    "llama3": Family(LLAMA3, "<|eot_id|>"),
    "gemma2": Family(GEMMA2, "<turn|>"),
    "smollm2": Family(SMOLLM2, "<|im_end|>"),
    "generation marks": Family(GENERATION, "<|im_end|>"),
}
FAMILIES = {**THINKING, **SILENT}
SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<bos>", "<|eos|>", "<|User|>", "<|Assistant|>", "[SYSTEM]", "[/SYSTEM]", "[INST]"),
    *("[/INST]", "[THINK]", "[/THINK]", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|turn>"),
    *("<turn|>", "<|channel>", "<channel|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
]
SHOWN = ("<think>", "</think>")
"""Tokens that a decoded text shows, as Qwen3's and DeepSeek-R1's do."""


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    """Bytes as tokens, with the marks of all families; 1 and 2 are also one token."""
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12"]
    inner = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[("1", "2")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken(token, normalized=False) for token in SHOWN])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=family.end, pad_token="<|eos|>", extra_special_tokens=list(SPECIAL)
    )
    tokenizer.chat_template = family.template
    return tokenizer


def policy_of(
    family: Family, arguments: Mapping[str, JsonValue] | None = None, system_prompt: str | None = None
) -> Policy:
    """A random policy of the family."""
    tokenizer = tokenizer_of(family)
    used = family.arguments if arguments is None else arguments
    return Policy("thinker", model_for(tokenizer), tokenizer, system_prompt, template=TemplateUse(used))


def model_for(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A tiny random Qwen3."""
    config = tiny_config()
    config.vocab_size, config.eos_token_id = len(tokenizer), tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    config.max_position_embeddings = 1024
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config)


def write_qwen3(folder: Path, name: str = "qwen3") -> Path:
    """A directory of a random model of Qwen3's shape, with what its publisher suggests for generation."""
    tokenizer = tokenizer_of(FAMILIES[name])
    model = model_for(tokenizer)
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.95, top_k=20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
