"""A user's own Python code that a task names: where it is, its digest, and loading it.

A target is `mypackage.mymodule:Name`, `path/to/file.py:Name`, or the name under which an installed package offers it.
Code never travels: a manifest carries its digest, and each member names a copy of its own. Only what a package offers
needs no naming: whoever installs it means it to be used.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import entry_points
from pathlib import Path

from swarm.environments.digests import content_digest
from swarm.errors import TaskError
from swarm.settings import file_of, imported

GROUP = "swarm.environments"
"""The group of entry points with which packages offer tasks."""


def is_offered(target: str) -> bool:
    """Whether an installed package offers a task under this name."""
    return bool(entry_points(group=GROUP, name=target))


def resolved(target: str) -> str:
    """The same target for a process in another directory, without a package's name for it. Raises `TaskError`."""
    if (path := file_of(target)) is not None:
        return f"{path.absolute()}:{target.rpartition(':')[2]}"
    if ":" in target:
        return target
    for found in entry_points(group=GROUP, name=target):
        return f"{found.module}:{found.attr}"
    raise TaskError(
        f"no installed package offers {target!r} as an entry point of the group {GROUP}; install it, or name code such "
        "as mypackage.mymodule:Name or tasks.py:Name"
    )


def code_digest(target: str) -> str:
    """Digest of the file that holds a target. Raises `TaskError`."""
    try:
        return content_digest([_source(target)])
    except OSError as error:
        raise TaskError(f"{target}: {error}") from error


def load(target: str) -> object:
    """What a target names; runs its module. Raises `TaskError`, whatever the module raises."""
    try:
        return imported(target if file_of(target) is not None else resolved(target), ())
    except ValueError as error:
        raise TaskError(str(error)) from error


def _source(target: str) -> Path:
    if (path := file_of(target)) is not None:
        return path
    module = resolved(target).rpartition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:  # imports the packages that contain the module
        raise TaskError(f"{target}: cannot import {module}: {error}") from error
    if spec is None or spec.origin is None or not spec.has_location:
        raise TaskError(f"{target}: there is no module {module} in a file; install it, or add its folder to PYTHONPATH")
    return Path(spec.origin)
