"""Base of every configuration model. Each component defines its own settings; `swarm.config` composes them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen; refuses unknown fields; the string below a field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
