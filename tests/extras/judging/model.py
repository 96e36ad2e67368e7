"""A small judge on disk."""

from __future__ import annotations

from pathlib import Path

from tests.following_model import save_following

FOLLOWS = {"N": "SCORE:", "SCORE:": "7", "7": "[EOS]", "good": "N", "[UNK]": "[UNK]", "[EOS]": "[EOS]"}
"""A prompt for points ends with `SCORE: N`, one for pairs with `good`."""


def save_judge(folder: Path, head_dim: int = 8) -> None:
    """Write model and tokenizer in Hugging Face format."""
    save_following(folder, FOLLOWS, head_dim)
