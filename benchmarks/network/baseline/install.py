"""The public peer in a venv of its own, under the user's cache directory; nothing of it is imported into ours.

The package on the registry is called `gensyn-genrl`; its module is `genrl`. (A package called `genrl` is there
too, of which no 0.3.0 exists: that is not the peer.) It asks for more than its `HivemindBackend` needs, an Ethereum
client among others: it is installed without dependencies, and then what this one module imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

PACKAGE = "gensyn-genrl==0.3.0"
NEEDS = ("hivemind==1.1.12", "torch==2.13.0", "msgpack>=1", "numpy>=2,<3")
CHECK = "import genrl_node as node; node.provide_missing_name(); import genrl.communication.hivemind.hivemind_backend"
"""Run beside `genrl_node.py`, whose first act mends the one thing the two packages disagree on."""
INSTALL_TIMEOUT_S = 1_800.0


class PeerNotInstalled(Exception):
    """The public peer cannot be had; the message says why."""


def genrl_python() -> Path:
    """The interpreter that has the peer, installed on first use. Raises `PeerNotInstalled`."""
    folder = _cache() / PACKAGE.replace("==", "-")
    python = folder / "bin" / "python"
    done = folder / "installed"
    if done.exists() and python.exists():
        return python
    try:
        venv.create(folder, with_pip=True, clear=True)
        _run(python, "-m", "pip", "install", "--quiet", "--no-deps", PACKAGE)
        _run(python, "-m", "pip", "install", "--quiet", *NEEDS)
        _run(python, "-c", CHECK)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", "") or str(error)
        raise PeerNotInstalled(f"{PACKAGE} could not be installed: {output.strip().splitlines()[-1:]}") from error
    done.touch()
    return python


def genrl_versions(python: Path) -> dict[str, str]:
    """Versions of the peer and its network library."""
    code = "from importlib.metadata import version as v; print(v('gensyn-genrl'), v('hivemind'), v('torch'))"
    genrl, hivemind, torch = _run(python, "-c", code).split()
    return {"peer gensyn-genrl": genrl, "peer hivemind": hivemind, "peer torch": torch}


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "swarm" / "benchmark-peers"


def _run(python: Path, *arguments: str) -> str:
    # Our own packages must not be seen by the peer's interpreter.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(python), *arguments],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    print(genrl_python(), file=sys.stderr)
