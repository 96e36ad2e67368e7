"""Brings changed weights to vLLM: through memory of the GPU that both are on, or else through files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal

import torch

from swarm.engines.config import VllmSettings
from swarm.engines.vllm import transfer
from swarm.engines.vllm.handover import State, changed_files, state_of, trained_weights
from swarm.engines.vllm.messages import Load, Piece, Request
from swarm.errors import EngineCrashed, EngineError
from swarm.policy.loading import Policy

logger = logging.getLogger(__name__)

Ask = Callable[[Callable[[int], Request]], None]
"""Sends a request and awaits that it is done. Raises `EngineError` when it is refused, `EngineCrashed`."""


def shares_gpu(settings: VllmSettings, policy: Policy, device: torch.device) -> bool:
    """Whether weights may go through memory of a GPU; vLLM is on `device`.

    Raises `EngineError` if they must and cannot.
    """
    if settings.transfer == "files":
        return False
    if policy.adapters is not None:
        problem = "adapters go as files"
    elif settings.gpus or device.type != "cuda" or policy.device.type != "cuda":
        problem = "the policy and vLLM are not on one GPU"
    else:
        return True
    if settings.transfer == "ipc":
        raise EngineError(f"generation.vllm.transfer must be auto or files, {problem}: got ipc")
    return False


class Delivery:
    """The way of one policy's weights."""

    def __init__(self, policy: Policy, settings: VllmSettings, work: Path, shares_gpu: bool) -> None:
        """Files go to `work`."""
        self.shares_gpu = shares_gpu
        """Whether memory of the GPU is used, as long as that is possible."""
        self._policy = policy
        self._settings = settings
        self._work = work

    def bring(self, ask: Ask, kv: Literal["keep", "recompute"]) -> State:
        """Install the policy's weights, and return their state.

        Raises `EngineError` when vLLM refuses them, and `EngineCrashed`, also when it has only a part of them.
        """
        if self.shares_gpu and (buffer := self._buffer()):
            with closing(buffer):
                return self._share(buffer, ask, kv)
        adapters = self._policy.adapters is not None
        with changed_files(self._policy, self._work) as (directory, state):
            ask(lambda call: Load(call, str(directory), state.version, kv == "recompute", adapters))
        return state

    def _buffer(self) -> transfer.GpuBuffer | None:
        """None where memory cannot be shared, or there is none left."""
        needed = transfer.buffer_bytes(trained_weights(self._policy, outlined=True))
        try:
            return transfer.GpuBuffer(needed, self._policy.device)
        except RuntimeError as error:
            self._share_no_more(error)
            return None

    def _share(self, buffer: transfer.GpuBuffer, ask: Ask, kv: str) -> State:
        policy = self._policy
        try:
            with policy.gate.use():
                state = state_of(policy)
                for piece in transfer.pieces(buffer, trained_weights(policy)):
                    ask(lambda call, piece=piece: Piece(call, piece))  # type: ignore[misc]
            ask(lambda call: Load(call, None, state.version, kv == "recompute", adapters=False))
        except EngineCrashed:
            raise
        except EngineError as error:
            self._share_no_more(error)
            raise EngineCrashed("vLLM could not read weights in memory of the GPU") from error
        return state

    def _share_no_more(self, reason: Exception) -> None:
        """Said once. Raises `EngineError` if nothing else is allowed."""
        if self._settings.transfer == "ipc":
            raise EngineError(f"generation.vllm.transfer must be files here: {reason}") from reason
        logger.warning("weights go to vLLM through files, because memory of the GPU cannot be shared: %s", reason)
        self.shares_gpu = False
