"""One way to plug in: every task, reward, tool, loss, advantage and mix is found by its name here.

    grpo                       built in: its module is imported when the name is asked for
    halving                    an entry point: what an installed package offers in the group, such as `swarm.tasks`
    mypackage.mymodule:Name    code that Python can import
    path/to/file.py:Name       code in a file

The thing that a name stands for is usually a settings class: it says what it needs and builds itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import entry_points
from inspect import isabstract, signature
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar, Union

from pydantic import BaseModel, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from swarm.errors import ConfigError, SwarmError
from swarm.files import at_home
from swarm.sanitize import clean
from swarm.settings import nearest

T = TypeVar("T")

FOREIGN = "foreign"
"""Validation context for values of another peer: they may name what is built in or offered, no location in code."""


class Kinds(Mapping[str, T]):
    """The kinds of one sort of thing. A mapping of those that are built in; extras that are not installed are absent.

    As an annotation it makes a field that holds settings of any kind, chosen by their field `kind`.
    """

    def __init__(self, what: str, group: str, base: str, built_in: Mapping[str, str]) -> None:
        """`group` is that of entry points, `built_in` has "module:Name" by name.

        `base` is the class that all extend, "module:Name" as users import it; empty for functions.
        """
        self._what = what
        self.group = group
        self._base = base
        self._built_in = built_in

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Identity, which annotations need."""
        return self is other

    def __getitem__(self, name: str) -> T:
        """The built-in kind of this name. Raises `KeyError`."""
        if name not in self:
            raise KeyError(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        """Whether it is built in, and installed."""
        return isinstance(name, str) and name in self._built_in and _is_installed(self._built_in[name])

    def __iter__(self) -> Iterator[str]:
        """The built-in names, in the order of documents."""
        return (name for name in self._built_in if name in self)

    def __len__(self) -> int:
        """Number of built-in names."""
        return sum(1 for _ in self)

    def is_built_in(self, name: str) -> bool:
        """Whether the name is one of swarm's own, be the extra installed or not."""
        return name in self._built_in

    def resolved(self, name: str) -> str:
        """Where the code of a custom kind is, for a process in another directory. Raises `ValueError`."""
        return resolved(name, self.group)

    def find(self, name: str, also: tuple[str, ...] = ()) -> T:
        """The kind of this name. Raises `ValueError`, also when it has the wrong shape; `also` these are choices."""
        found: T
        if (target := self._built_in.get(name)) is not None:
            if not _is_installed(target):
                extra = ".".join(target.split(".")[:3])
                raise ValueError(f"{self._what} {name} needs {extra}, which this installation of swarm lacks")
            found = _attribute(target)
            return found
        plugged_in: Any = imported(name, self.group, (*also, *self))
        self._check(name, plugged_in)
        found = plugged_in
        return found

    def _check(self, name: str, found: Any) -> None:
        if not self._base:
            if not callable(found):
                raise ValueError(f"{name} must be a function, got {found!r}")
            return
        base: Any = _attribute(self._base)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ValueError(f"{name} must be a subclass of {self._base.replace(':', '.')}, got {found!r}")
        unfinished: Any = found
        if isabstract(found):
            methods = (
                f"{method}({', '.join(signature(getattr(found, method)).parameters)})"
                for method in sorted(unfinished.__abstractmethods__)
            )
            raise ValueError(f"{name} must define {', '.join(methods)}")

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A field that holds settings of any kind."""
        return core_schema.with_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """One of the built-in kinds."""
        built_in: Any = Union[tuple(self.values())]  # noqa: UP007
        return handler(TypeAdapter(Annotated[built_in, Field(discriminator="kind")]).core_schema)

    def parse(self, values: Mapping[str, object], context: object = None) -> Any:
        """Settings of the kind that they name. Raises `ValueError`, its subclass `ValidationError` for their fields."""
        kind = str(values["kind"])
        model: Any = self.find(kind)
        return _validator(model, kind).validate_python(values, context=context)

    def _validate(self, value: object, info: ValidationInfo) -> object:
        if isinstance(value, BaseModel) and isinstance(value, _attribute(self._base)):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"a {self._what} must be a mapping with a `kind`")
        if (kind := value.get("kind")) is None:
            raise ValueError(f"a {self._what} needs a `kind`, one of {', '.join(self)}")
        if info.context == FOREIGN and ":" in str(kind):
            raise ValueError(f"a {self._what} of another peer must not name code by its place, got {clean(str(kind))}")
        return self.parse(value, info.context)


@lru_cache
def _validator(model: type[BaseModel], kind: str) -> SchemaValidator:
    """Validates settings of a kind, whose name is part of the location of every error."""
    return SchemaValidator(core_schema.tagged_union_schema({kind: model.__pydantic_core_schema__}, "kind"))


def _attribute(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _is_installed(target: str) -> bool:
    try:
        return importlib.util.find_spec(target.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False


def has_extra(name: str) -> bool:
    """Whether `swarm.extras.NAME` is installed."""
    return _is_installed(f"swarm.extras.{name}")


def extra(name: str) -> ModuleType:
    """The module `swarm.extras.NAME`, for the core, which finds extras by name. Raises `ConfigError` without it."""
    if not has_extra(name):
        raise ConfigError(f"this needs swarm.extras.{name.partition('.')[0]}, which this installation of swarm lacks")
    return importlib.import_module(f"swarm.extras.{name}")


def offered(name: str, group: str) -> str | None:
    """The "module:Name" that an installed package offers under this name; None if no package does."""
    return next((f"{each.module}:{each.attr}" for each in entry_points(group=group, name=name)), None)


def resolved(target: str, group: str) -> str:
    """The same target for a process in another directory, without a package's name for it. Raises `ValueError`."""
    if (path := file_of(target)) is not None:
        return f"{path.absolute()}:{target.rpartition(':')[2]}"
    if ":" in target:
        return target
    if (found := offered(target, group)) is None:
        raise ValueError(
            f"no installed package offers {target!r} as an entry point of the group {group}; install it, or name code "
            "such as mypackage.mymodule:Name or tasks.py:Name"
        )
    return found


def imported(path: str, group: str, known: tuple[str, ...]) -> object:
    """The object behind a name that is not built in: an entry point, or a location in code. `known` are built in.

    Raises `ValueError`, whatever the module raises.
    """
    module, colon, attribute = path.rpartition(":")
    if not colon and (target := offered(path, group)) is not None:
        module, _, attribute = target.partition(":")
        path = target
    if not (module and attribute.isidentifier()):
        hint = nearest(path, (*known, *(each.name for each in entry_points(group=group))))
        choices = f"one of {', '.join(known)}, or " if known else ""
        raise ValueError(
            f"must be {choices}code such as mypackage.mymodule:Name or file.py:Name, got {clean(path)}"
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


def source_of(target: str, group: str) -> Path:
    """The file that holds a target's code. Raises `ValueError`."""
    if (path := file_of(target)) is not None:
        return path
    module = resolved(target, group).rpartition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:  # imports the packages that contain the module
        raise ValueError(f"{target}: cannot import {module}: {error}") from error
    if spec is None or spec.origin is None or not spec.has_location:
        raise ValueError(
            f"{target}: there is no module {module} in a file; install it, or add its folder to PYTHONPATH"
        )
    return Path(spec.origin)


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
def custom_code(name: str) -> Iterator[None]:
    """Turns what a user's own code raises within the block into a `ConfigError` of one line that names it."""
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
