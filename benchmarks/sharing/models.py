"""A policy of another size and tokenizer than the embedded one, as well prepared as `tiny-sparse`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from swarm.policy.config import TINY_SPARSE
from swarm.policy.tiny import STARTS, build_tokenizer, tiny_config, warm_start

FOLDER = "larger"


def ensure_larger(folder: Path) -> Path:
    """Its directory in `folder`, made once: three times the parameters, and animals spelled letter by letter."""
    directory = folder / FOLDER
    if directory.is_dir():
        return directory
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(animals=()), pad_token="<pad>", eos_token="<eos>"
    )
    config = tiny_config()
    config.update(
        {
            "vocab_size": len(tokenizer),
            "hidden_size": 96,
            "num_hidden_layers": 3,
            "intermediate_size": 288,
            "layer_types": ["full_attention"] * 3,
        }
    )
    recipe = replace(STARTS[TINY_SPARSE], seed=STARTS[TINY_SPARSE].seed + 1)
    model = warm_start(recipe, config, tokenizer, lambda done, total: None)
    draft = directory.with_name(f"{FOLDER}.partial")
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    draft.rename(directory)
    return directory
