"""In vLLM's Python: weights in memory of the GPU, as vLLM's weight transfer takes them."""

from __future__ import annotations

import math

from swarm.engines.vllm.messages import Packed

CONFIG = {"backend": "ipc"}
"""vLLM's `weight_transfer_config`."""
INIT = {"packed": True}


def update_info(piece: Packed) -> dict[str, object]:
    """vLLM's `IPCWeightTransferUpdateInfo`, whose handle is what torch's `rebuild_cuda_tensor` is called with."""
    import torch

    memory = piece.memory
    handle = (
        torch.Tensor,
        (memory.num_bytes,),
        (1,),
        0,
        torch.storage.TypedStorage,
        torch.uint8,
        0,  # vLLM's number of the GPU takes its place
        memory.handle,
        memory.storage_bytes,
        memory.storage_offset_bytes,
        False,
        memory.counter,
        memory.counter_offset,
        memory.event,
        memory.must_wait,
    )
    return {
        "names": list(piece.names),
        "shapes": [list(shape) for shape in piece.shapes],
        "dtype_names": [piece.dtype] * len(piece.names),
        "tensor_sizes": [math.prod(shape) * piece.item_bytes for shape in piece.shapes],
        "ipc_handles": {memory.gpu: handle},
    }
