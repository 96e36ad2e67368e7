"""Base of every configuration model. Each component defines its own settings; `swarm.config` composes them."""

from __future__ import annotations

import importlib

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen; refuses unknown fields; the string below a field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def imported(path: str, known: tuple[str, ...]) -> object:
    """What a setting names by import path, `mypackage.mymodule:Name`, and not by one of the `known` names.

    Raises `ValueError`.
    """
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute.isidentifier()):
        raise ValueError(
            f"must be one of {', '.join(known)}, or an import path such as mypackage.mymodule:Name; got {path}"
        )
    try:
        return vars(importlib.import_module(module))[attribute]
    except ImportError as error:
        raise ValueError(f"cannot import {module}: {error}; install it, or add its folder to PYTHONPATH") from error
    except KeyError:
        raise ValueError(f"{module} has no {attribute}") from None
