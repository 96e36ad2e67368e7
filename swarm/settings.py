"""Base of every configuration model. Each component keeps its own next to it; `swarm.config` composes them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen, refuses unknown fields, documents each field by the string below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
