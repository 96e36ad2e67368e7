"""How a node generates."""

from __future__ import annotations

from pydantic import Field, model_validator

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
    """Keep 1: the update's log-probabilities are those of the full distribution."""
    max_new_tokens: int = Field(512, ge=1)
    """Longest completion; `tiny` has 16 as its default."""
    max_batch_sequences: int = Field(256, ge=1)
    """Sequences decoded together; more are generated in turn."""

    def sampling(self) -> Sampling:
        """What the engine is asked for."""
        return Sampling(self.temperature, self.top_p, self.max_new_tokens)

    @model_validator(mode="after")
    def _a_group_fits_a_batch(self) -> GenerationSettings:
        if self.group_size > self.max_batch_sequences:
            raise ValueError(
                f"group_size must be at most max_batch_sequences, got {self.group_size} > {self.max_batch_sequences}"
            )
        return self
