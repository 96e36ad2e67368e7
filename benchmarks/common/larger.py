"""A policy of another size and tokenizer than the embedded one, as well prepared as `tiny-sparse`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from swarm.policy.cache import Progress
from swarm.policy.config import TINY_SPARSE
from swarm.policy.tiny import STARTS, build_tokenizer, ensure_prepared, tiny_config

LARGER = "larger"


def ensure_larger(progress: Progress | None = None) -> Path:
    """Its directory, made once: 2.75 times the parameters, and animals spelled letter by letter.

    Raises `PolicyError`.
    """
    tokenizer = build_tokenizer(animals=())
    config = tiny_config()
    config.update(
        {
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 96,
            "num_hidden_layers": 3,
            "intermediate_size": 288,
            "layer_types": ["full_attention"] * 3,
        }
    )
    recipe = replace(STARTS[TINY_SPARSE], seed=STARTS[TINY_SPARSE].seed + 1)
    return ensure_prepared(LARGER, recipe, config, tokenizer, progress)
