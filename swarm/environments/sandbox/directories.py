"""Empty directories for workers, and their environment variables."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from swarm.children import inherited

_PREFIX = "swarm-verification-"
_LOCK = "lock"

_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "PYTHONHOME")
"""Without these some installations of Python do not start."""

_FIXED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "USE_TORCH": "0",  # `datasets` would import it
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "PYTHONHASHSEED": "0",  # some generators iterate over sets of strings; every node must make the same questions
    "PYTHONUTF8": "1",  # the locale is not passed on
}


class WorkerDirectories:
    """A directory of this node with an empty subdirectory for each worker.

    `close` removes them; a new node removes the leftovers of killed ones.
    """

    def __init__(self, within: Path | None = None) -> None:
        """Create the directory, by default in the system's directory for temporary files."""
        within = within or Path(tempfile.gettempdir())
        _sweep(within)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=within)).resolve()
        # locked before it gets its name, so that no cleanup mistakes it for a dead node's
        self._lock = _hold(self.path / f"{_LOCK}.new")
        (self.path / f"{_LOCK}.new").rename(self.lock)

    @property
    def lock(self) -> Path:
        """A file here that belongs to no worker."""
        return self.path / _LOCK

    def new(self) -> Path:
        """A new empty directory; the caller removes it."""
        return Path(tempfile.mkdtemp(prefix="worker-", dir=self.path))

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def environment(directory: Path) -> dict[str, str]:
    """A worker's environment variables: nothing of the user's except Python's library paths."""
    directories = dict.fromkeys(("HOME", "TMPDIR", "HF_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR"), str(directory))
    kept = {name: os.environ[name] for name in _LIBRARIES if name in os.environ}
    return {**kept, **_FIXED, **directories, "HF_HUB_OFFLINE": "1"}


def download_environment(directory: Path, with_secrets: bool) -> dict[str, str]:
    """`environment` with the variables for downloading data sets into the caches, and the hub's token if allowed."""
    # The caches are named below.
    hub = {name: value for name, value in inherited("hub").items() if "CACHE" not in name}
    if with_secrets:
        hub |= inherited("tokens")
        hub.setdefault("HF_TOKEN_PATH", str(token_file()))
    downloads, converted = map(str, caches())
    offline = os.environ.get("HF_HUB_OFFLINE", "0")
    named = {"HF_HUB_CACHE": downloads, "HF_DATASETS_CACHE": converted, "HF_HUB_OFFLINE": offline}
    return {**hub, **environment(directory), **named}


def caches() -> tuple[Path, Path]:
    """The Hugging Face libraries' caches: downloads, and converted data sets."""
    return _hub_path("HF_HUB_CACHE", "hub"), _hub_path("HF_DATASETS_CACHE", "datasets")


def token_file() -> Path:
    """Path of the user's hub token, if there is one."""
    return _hub_path("HF_TOKEN_PATH", "token")


def _hub_path(variable: str, name: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(os.environ.get(variable) or f"{home}/{name}").expanduser().absolute()


def _hold(path: Path) -> int:
    """Open and lock a file until this process ends. Raises `OSError` when another process holds the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _sweep(within: Path) -> None:
    for path in within.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if path.lstat().st_uid != os.getuid() or not (path / _LOCK).is_file():
                continue
            handle = _hold(path / _LOCK)
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)
