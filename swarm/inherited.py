"""Environment variables of child processes: those that they need, by name. Secrets go only where they are used.

base      every process: where programs, libraries, temporary files and the locale are
home      the user's files: caches of the page, of models and of compiled kernels
compute   GPUs, threads, torch, vLLM
hub       the Hugging Face hub and the way to it
tokens    the hub's token
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping, MutableMapping
from pathlib import Path

GROUPS: dict[str, re.Pattern[str]] = {
    "base": re.compile(r"PATH|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|TEMP|TMP|(DY)?LD_(FALLBACK_)?LIBRARY_PATH|PYTHONHOME"),
    "home": re.compile(r"HOME|USER|LOGNAME|XDG_\w+|VIRTUAL_ENV|CONDA_PREFIX"),
    "compute": re.compile(
        r"(CUDA|CUBLAS|CUDNN|NVIDIA|NCCL|GLOO|ROCR|HIP|HSA|AMD|MIOPEN|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|VLLM"
        r"|OMP|KMP|GOMP|MKL|OPENBLAS|NUMEXPR|RAYON|BITSANDBYTES)_\w+"
        r"|TOKENIZERS_PARALLELISM|LIBRARY_PATH|CPATH|CC|CXX|LD_PRELOAD|MALLOC_\w+"
    ),
    "hub": re.compile(
        r"HF_\w+|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_\w+|(HTTP|HTTPS|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE"
        r"|CURL_CA_BUNDLE",
        re.IGNORECASE,
    ),
}
TOKENS = ("HF_TOKEN", "HF_TOKEN_PATH", "HF_OIDC_RESOURCE", "HUGGING_FACE_HUB_TOKEN")
SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|OIDC)(_|$)", re.IGNORECASE)
"""Names that no group includes, whatever they begin with."""


LOOPBACK = ("localhost", "127.0.0.1", "::1")


def inherited(*groups: str, names: tuple[str, ...] = (), told: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's variables that a child of it needs: those of the groups and with these names."""
    wanted = [GROUPS[group] for group in groups if group != "tokens"]
    names += TOKENS if "tokens" in groups else ()
    return {
        name: value
        for name, value in told.items()
        if name in names or (not SECRET.search(name) and any(pattern.fullmatch(name) for pattern in wanted))
    }


def spare_loopback(told: MutableMapping[str, str] = os.environ) -> None:
    """Have no library use a proxy for this machine itself, where variables name one."""
    known = told.get("no_proxy") or told.get("NO_PROXY") or ""
    if "*" in known or not any(name.lower().endswith("_proxy") for name in told):
        return
    hosts = [host.strip() for host in known.split(",") if host.strip()]
    told["no_proxy"] = told["NO_PROXY"] = ",".join(dict.fromkeys((*hosts, *LOOPBACK)))


def python_path() -> dict[str, str]:
    """The variable with which a child imports from where this process does."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def user_path(python: Path | None = None) -> list[str]:
    """Where the user's own PYTHONPATH has a child import from, with `python`; default: this process's.

    Another Python has packages of its own, so that it gets none of this one's.
    """
    entries = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if python is None or os.path.abspath(python) == sys.executable:
        return entries
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [entry for entry in entries if entry not in own]
