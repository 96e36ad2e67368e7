"""Base of every configuration model. Each component defines its own settings; `swarm.config` composes them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from inspect import isabstract

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen; refuses unknown fields; the string below a field documents it, as `nodes.commands.reference` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """That one of the known names which is written most like this one; None without any."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def field_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted paths of all fields that hold values, in the model's order."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and not isabstract(inner):
            yield from field_paths(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
