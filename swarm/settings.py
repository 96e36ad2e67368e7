"""Base of every configuration model. Each component defines its own settings; `swarm.config` composes them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from inspect import isabstract

from pydantic import BaseModel, ConfigDict, ValidationError

_WORDS = (
    (r"^Value error, ", ""),
    (r"^Input should be a valid integer\b.*", "must be a whole number"),
    (r"^Input should be a valid (number|boolean|string|list|tuple|dictionary)\b.*", r"must be a \1"),
    (r"^(Input|Number|String|List|Tuple|Dictionary|Value) should ", "must "),
    (r"^must be greater than or equal to ", "must be at least "),
    (r"^must be less than or equal to ", "must be at most "),
    (r"^must be greater than ", "must be more than "),
    (r"^must be a boolean", "must be true or false"),
    (r"^must be a string", "must be text"),
    (r"^must be a (list|tuple)", "must be a list"),
    (r"^must be a dictionary", "must be a mapping"),
    (r" after validation, not \d+$", ""),
    (r"^Field required$", "is missing"),
)
"""Replacements in pydantic's sentences, made in this order."""


class Settings(BaseModel):
    """Frozen; refuses unknown fields; the string below a field documents it, as `nodes.commands.reference` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def in_words(problem: str) -> str:
    """What pydantic says of a value, as the end of a sentence about its field."""
    for pattern, words in _WORDS:
        problem = re.sub(pattern, words, problem)
    return problem


def leaves(values: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values in nested mappings with their dotted paths; an empty mapping is a value."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, values


def problems(error: ValidationError) -> str:
    """What is wrong with which field, in one line."""
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {in_words(item['msg'])}" for item in error.errors())


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
