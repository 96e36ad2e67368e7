"""Base of every configuration model. Each component defines its own settings; `swarm.config` composes them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from inspect import isabstract, signature
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Frozen; refuses unknown fields; the string below a field documents it, as `nodes.commands.reference` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def find_settings(name: str, known: Mapping[str, type[S]], base: type[S], public: str) -> type[S]:
    """The subclass of `base` that a setting names: one of `known`, or the user's own by its import path.

    `public` is the module from which users import `base`. Raises `ValueError`.
    """
    if name in known:
        return known[name]
    found = imported(name, tuple(known))
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{name} must be a subclass of {public}.{base.__name__}, got {found!r}")
    if isabstract(found):
        methods = [
            f"{method}({', '.join(signature(getattr(base, method)).parameters)})"
            for method in sorted(found.__abstractmethods__)
        ]
        raise ValueError(f"{name} must define {', '.join(methods)}")
    return found


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
