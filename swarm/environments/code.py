"""A user's own Python code that a task names: its digest, and loading it.

A target is `mypackage.mymodule:Name`, `path/to/file.py:Name`, or the name under which an installed package offers it.
Code never travels: a manifest carries its digest, and each member names its copy. Only what a package offers
needs no naming: whoever installs it means it to be used.
"""

from __future__ import annotations

from swarm import kinds
from swarm.environments.digests import content_digest
from swarm.errors import TaskError

GROUP = "swarm.environments"
"""The group of entry points with which packages offer code that tasks name."""


def is_offered(target: str) -> bool:
    """Whether an installed package offers code under this name."""
    return kinds.offered(target, GROUP) is not None


def resolved(target: str) -> str:
    """The same target for a process in another directory, without a package's name for it. Raises `TaskError`."""
    try:
        return kinds.resolved(target, GROUP)
    except ValueError as error:
        raise TaskError(str(error)) from error


def code_digest(target: str) -> str:
    """Digest of the file that holds a target. Raises `TaskError`."""
    try:
        return content_digest([kinds.source_of(target, GROUP)])
    except OSError as error:
        raise TaskError(f"{target}: {error}") from error
    except ValueError as error:
        raise TaskError(str(error)) from error


def load(target: str) -> object:
    """What a target names; runs its module. Raises `TaskError`, whatever the module raises."""
    try:
        return kinds.imported(kinds.resolved(target, GROUP), GROUP, ())
    except ValueError as error:
        raise TaskError(str(error)) from error
