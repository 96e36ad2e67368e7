"""The mix of SAPO: which groups teach, and how many of whose make one update. Source: arXiv:2509.08721, section 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct
from pydantic import Field, model_validator

from swarm.settings import Settings
from swarm.types import GradedGroup

T = TypeVar("T")


class MixSettings(Settings):
    """I local + J external groups an update."""

    local: int = Field(4, ge=0)
    """I: local groups an update."""
    external: int = Field(4, ge=0)
    """J: external groups an update."""
    fill: Literal["none", "local"] = "none"
    """What takes the place of missing external groups: nothing (the shortfall is reported), or further local ones."""
    external_old_logprobs: Literal["receiver", "behaviour", "none"] = "receiver"
    """What stands for the behaviour policy of external groups: this node's own log-probabilities when the batch is
    built (the paper's), the sender's (only with the same tokenizer, else `receiver`), or none: the ratio is 1."""
    external_negative_weight: float = Field(1.0, ge=0, le=1)
    """Scales negative-advantage external completions. 1 is the paper; below 1 deviates from it."""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> MixSettings:
        if self.local + self.external == 0:
            raise ValueError("local + external must be at least 1, got 0 + 0: nothing would ever be trained on")
        return self


class Mix(Struct, frozen=True):
    """The groups of one update, and what was missing."""

    local: tuple[GradedGroup, ...]
    external: tuple[GradedGroup, ...]
    external_ids: tuple[str, ...]
    """Content ids of `external`."""
    local_shortfall: int
    external_shortfall: int
    filled: int
    """Local groups beyond I that stand in for missing external ones."""


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group teaches anything: its advantages are all zero exactly when all G rewards are equal."""
    return any(reward != rewards[0] for reward in rewards)


def mix(
    local: Sequence[GradedGroup],
    external: Sequence[tuple[str, GradedGroup]],
    settings: MixSettings,
    rng: np.random.Generator,
) -> Mix:
    """Sample I of the local and J of the external groups, uniformly and without replacement.

    Both inputs have signal already. `external` are (content id, group) pairs.
    """
    chosen_external = _sample(external, settings.external, rng)
    external_shortfall = settings.external - len(chosen_external)
    wanted = settings.local + (external_shortfall if settings.fill == "local" else 0)
    chosen_local = _sample(local, wanted, rng)
    return Mix(
        local=tuple(chosen_local),
        external=tuple(group for _, group in chosen_external),
        external_ids=tuple(content_id for content_id, _ in chosen_external),
        local_shortfall=max(0, settings.local - len(chosen_local)),
        external_shortfall=external_shortfall,
        filled=max(0, len(chosen_local) - settings.local),
    )


def _sample(items: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    if len(items) <= count:
        return list(items)
    return [items[i] for i in rng.choice(len(items), size=count, replace=False)]
