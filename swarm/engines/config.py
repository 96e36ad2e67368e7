"""How a node generates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from swarm.settings import Settings
from swarm.types import Sampling


class GenerationSettings(Settings):
    """One round's questions and how their completions are sampled."""

    questions_per_round: int = Field(8, ge=1)
    """P: questions a node answers each round; those with signal are the candidates for its local groups."""
    group_size: int = Field(8, ge=2, le=256)
    """G: completions a question."""
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep 1: the update's log-probabilities are those of the full distribution. The same goes for `top_k`, `min_p`."""
    top_k: int = Field(0, ge=0)
    """Sample from the so many most likely tokens; 0: from all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Sample from tokens at least so likely as this part of the most likely one's probability."""
    max_new_tokens: int = Field(512, ge=1)
    """Longest completion; `tiny` has 16 as its default."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion; they stay in it."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens, by name, that end a completion besides the model's own end tokens."""
    max_batch_sequences: int = Field(256, ge=1)
    """Sequences decoded together; the next one starts as soon as one of them is finished."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Tokens, prompts included, whose keys and values are held together: sequences times the longest of them. The
    youngest wait when it gets tight. Default: what `memory_fraction` allows."""
    memory_fraction: float = Field(0.5, gt=0, le=1)
    """Part of the memory that is free when generation starts which keys and values may take."""
    kv: Literal["keep", "recompute"] = "keep"
    """When new weights come in the middle of a completion: keep what the old ones computed of its past, or compute it
    again. Source: arXiv:2509.19128."""

    def sampling(self) -> Sampling:
        """What the engine is asked for."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
            stop_tokens=self.stop_tokens,
        )
