"""A tokenizer that merges bytes, beside the embedded one that does not; texts with long characters."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = ("<answer>12</answer>", "na\u00efve caf\u00e9 \u20ac5 \U0001f600\U0001f600", " 12  +7\n\n=19", "")


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges, also of parts of characters."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<pad>", "<eos>"], show_progress=False
    )
    inner.train_from_iterator([text * 3 for text in TEXTS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
