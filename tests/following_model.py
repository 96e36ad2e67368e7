"""A small transformers model on disk whose next token follows from the last one alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SIZE = 16


def save_following(
    folder: Path, follows: Mapping[str, str], head_dim: int = 8, chat_template: str | None = None
) -> None:
    """Write model and tokenizer in Hugging Face format; words that `follows` does not name are `[UNK]`, and `[EOS]`
    ends a text."""
    words = list(dict.fromkeys(("[UNK]", "[EOS]", *follows)))
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        eos_token="[EOS]",
        pad_token="[EOS]",
        chat_template=chat_template,
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=SIZE,
        intermediate_size=SIZE,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=1_024,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(SIZE))
        for word, following in follows.items():
            model.lm_head.weight[words.index(following), words.index(word)] = 10.0
    model.save_pretrained(folder)
