"""Base of every configuration model. Each component defines its own settings; `swarm.config` composes them."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import isabstract, signature
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from swarm.errors import ConfigError, SwarmError
from swarm.files import at_home

S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Frozen; refuses unknown fields; the string below a field documents it, as `nodes.commands.reference` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def find_settings(name: str, known: Mapping[str, type[S]], base: type[S], public: str) -> type[S]:
    """The subclass of `base` that a setting names: one of `known`, or the user's own by its place in code.

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
    """What a setting names by a place in code, `mypackage.mymodule:Name` or `path/to/file.py:Name`, and not by one of
    the `known` names.

    Raises `ValueError`, whatever the module raises.
    """
    module, colon, attribute = path.rpartition(":")
    if not (module and colon and attribute.isidentifier()):
        hint = nearest(path, known)
        choices = f"one of {', '.join(known)}, or " if known else ""
        raise ValueError(
            f"must be {choices}code such as mypackage.mymodule:Name or file.py:Name, got {path}"
            f"{f'; did you mean {hint}?' if hint else ''}"
        )
    file = file_of(path)
    try:
        names = vars(importlib.import_module(module) if file is None else module_in(file))
    except OSError as error:
        raise ValueError(f"cannot read {module}: {error.strerror or error}") from error
    except Exception as error:  # the user's own code
        if not (isinstance(error, ImportError) and error.name and f"{module}.".startswith(f"{error.name}.")):
            raise ValueError(f"{module}: {type(error).__name__}: {error}") from error
        here = Path(f"{module}.py")
        fix = f"name the file: {here}:{attribute}" if here.exists() else "install it, or name a file: file.py:Name"
        raise ValueError(f"cannot import {module}: {error}; {fix}") from error
    if attribute not in names:
        hint = nearest(attribute, names)
        raise ValueError(f"{module} has no {attribute}{f'; did you mean {hint}?' if hint else ''}")
    return names[attribute]


def file_of(target: str) -> Path | None:
    """The path in `path/to/file.py:Name`; None for a name in a module."""
    path = target.rpartition(":")[0]
    return at_home(path) if path.endswith(".py") else None


def module_in(file: Path) -> ModuleType:
    """The file as a module, run once per process. Raises `OSError`, and whatever its code does."""
    name = f"swarm_code_{hashlib.sha256(file.read_bytes()).hexdigest()[:32]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where pydantic looks for the names in annotations
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contextmanager
def own_code(name: str) -> Iterator[None]:
    """What a user's own code raises within the block is a `ConfigError` of one line; `name` says whose code it is."""
    try:
        yield
    except (SwarmError, MemoryError):
        raise
    except Exception as error:
        if "out of memory" in str(error).lower():
            raise
        frames = traceback.extract_tb(error.__traceback__)
        frame = [each for each in frames if "site-packages" not in each.filename][-1]  # this one, if no other
        reason = " ".join(str(error).split())
        place = f"{frame.filename}, line {frame.lineno}"
        raise ConfigError(f"{name} failed: {type(error).__name__}: {reason} ({place})") from error


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
