"""Code that is compiled for GPUs with CUDA.

A model's code is many small operations, each of which reads and writes the whole of its tensors; compiled, several of
them are one kernel. Kernels are for any number of tokens, and kept on disk for the next start. Where they cannot be
made, for example without a C compiler, a warning says so and the code runs as it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from swarm.machine import num_cores
from swarm.policy.out_of_memory import is_out_of_memory
from swarm.policy.packaged.cache import cached

logger = logging.getLogger(__name__)

Code = Callable[..., Any]
KERNELS = "kernels"
"""The directory of kernels, among those that are made once on a machine."""
MAKERS = 4
"""Most processes that make kernels: those of a layer take one core seconds, and each process loads torch first."""


@cache
def compiled(code: Code) -> Code:
    """`code`, compiled at its first call; one for each function, so that its kernels are made once."""
    from torch._inductor import config

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cached(KERNELS)))
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        config.compile_threads = min(num_cores(), MAKERS)
    return _Compiled(code)


class _Compiled:
    def __init__(self, code: Code) -> None:
        self._code = code
        self._fast: Code | None = torch.compile(code, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._fast is None:
            return self._code(*args, **kwargs)
        try:
            return self._fast(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, torch._dynamo.exc.TorchDynamoException) or is_out_of_memory(error):
                raise
            self._fast = None
            logger.warning("nothing can be compiled for this GPU, so that updates take longer: %s", error)
        return self._code(*args, **kwargs)
