"""A small transformers model on disk whose next token follows from the last one alone."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ("[UNK]", "[EOS]", "SCORE:", "N", "7", "good")
FOLLOWS = {"N": "SCORE:", "SCORE:": "7", "7": "[EOS]", "good": "N", "[UNK]": "[UNK]", "[EOS]": "[EOS]"}
"""A prompt for points ends with `SCORE: N`, one for pairs with `good`."""


def save_judge(folder: Path, head_dim: int = 8) -> None:
    """Write model and tokenizer in Hugging Face format."""
    size = 16
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[EOS]", pad_token="[EOS]"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=size,
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
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        for word, following in FOLLOWS.items():
            model.lm_head.weight[WORDS.index(following), WORDS.index(word)] = 10.0
    model.save_pretrained(folder)
