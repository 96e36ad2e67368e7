"""Code that is compiled where it computes on a GPU with CUDA, and runs as it is elsewhere.

A model's code is many small operations, each of which reads and writes the whole of its tensors; compiled, several of
them are one kernel. Kernels are for any number of tokens, and kept on disk (`TORCHINDUCTOR_CACHE_DIR`) for the next
start. Where they cannot be made, for example without a C compiler, a warning says so and the code runs as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from swarm.policy.out_of_memory import is_out_of_memory

logger = logging.getLogger(__name__)

Code = Callable[..., Any]


class Compiled:
    """A function that is compiled at its first call."""

    def __init__(self, code: Code) -> None:
        """`code` is for tensors of a GPU."""
        self._code = code
        self._fast: Code | None = torch.compile(code, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        if self._fast is None:
            return self._code(*args, **kwargs)
        try:
            return self._fast(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, torch._dynamo.exc.TorchDynamoException) or is_out_of_memory(error):
                raise
            self._fast = None
            logger.warning("nothing is compiled for this GPU, so that updates take longer: %s", error)
        return self._code(*args, **kwargs)


@cache
def compiled(code: Code) -> Compiled:
    """`code`, compiled; one for each function, so that its kernels are made once."""
    return Compiled(code)
