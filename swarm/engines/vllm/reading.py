"""In vLLM's Python: prompts with images and audio, whose features the node has computed, and weights in GPU memory.

features ──▶ kept for their call ──▶ prompt: unchanged tokens, features at their positions ──▶ vLLM

vLLM neither reads a processor's files nor expands a prompt nor runs an encoder. So it samples from the trainer's own
inputs: the same tokens, made of the same pixels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.engines.vllm.messages import Features, Packed, Placed, Reads

if TYPE_CHECKING:
    from vllm.inputs.engine import MultiModalInput
    from vllm.multimodal.inputs import MultiModalKwargsItem, PlaceholderRange


TRANSFER = {"backend": "ipc"}
"""vLLM's `weight_transfer_config`."""
TRANSFER_INIT = {"packed": True}
MAX_FEATURES = 2**14
"""Most features of one image or audio clip; a longer one fits if a step holds it."""
KINDS = ("image", "video", "audio")
"""Modalities of vLLM's encoders; an encoder with a limit of 0 is not loaded."""
EMBEDDED = "prompt_embeds"
"""vLLM's name for embeddings that enter a sequence unchanged."""


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
        0,  # vLLM replaces it by its own number of the GPU
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


class Read:
    """An image or audio clip in vLLM's types."""

    def __init__(self, features: Features, dtype: str, weights: int) -> None:
        """`dtype` is that of the features; `weights` counts loads of weights, with which a trained encoder changes."""
        import torch

        self.name = f"medium {features.medium}, weights {weights}"
        """Key in vLLM's caches, unique for its content."""
        values = torch.frombuffer(bytearray(features.content), dtype=getattr(torch, dtype)).view(features.shape)
        if features.grid:
            self.kind = features.kind
            self.inputs = _item({f"{self.kind}_embeds": values, f"{self.kind}_grid_thw": torch.tensor(features.grid)})
        else:
            self.kind = EMBEDDED
            self.inputs = _item({"embedding": values})


def prompt_with(ids: Sequence[int], placed: Sequence[Placed], media: Mapping[int, Read], salt: str) -> MultiModalInput:
    """A prompt of these token ids, with the features of media at their positions."""
    from vllm.inputs.engine import mm_input
    from vllm.multimodal.inputs import MultiModalKwargsItems

    of_kind: dict[str, list[tuple[Read, Placed]]] = {}
    for each in placed:
        read = media[each.medium]
        of_kind.setdefault(read.kind, []).append((read, each))
    return mm_input(
        prompt_token_ids=list(ids),
        mm_kwargs=MultiModalKwargsItems({kind: [read.inputs for read, _ in found] for kind, found in of_kind.items()}),
        mm_hashes={kind: [read.name for read, _ in found] for kind, found in of_kind.items()},
        mm_placeholders={kind: [_range(each) for _, each in found] for kind, found in of_kind.items()},
        cache_salt=salt,
    )


def _item(inputs: Mapping[str, object]) -> MultiModalKwargsItem:
    from vllm.multimodal.inputs import (
        MultiModalBatchedField,
        MultiModalFieldElem,
        MultiModalFlatField,
        MultiModalKwargsItem,
    )

    def field(name: str) -> object:
        if name.endswith("_embeds"):
            return MultiModalFlatField(slices=[])
        return MultiModalBatchedField(keep_on_cpu=True)  # positions need it even where a cache has the features' keys

    return MultiModalKwargsItem({name: MultiModalFieldElem(value, field(name)) for name, value in inputs.items()})


def _range(placed: Placed) -> PlaceholderRange:
    import torch
    from vllm.multimodal.inputs import PlaceholderRange

    first, _ = placed.runs[0]
    last, length = placed.runs[-1]
    whole = last + length - first
    if len(placed.runs) == 1:
        return PlaceholderRange(first, whole)
    mask = torch.zeros(whole, dtype=torch.bool)
    for start, num in placed.runs:
        mask[start - first : start - first + num] = True
    return PlaceholderRange(first, whole, mask)


def arguments(model: str, reads: Reads) -> dict[str, object]:
    """Arguments of vLLM for a model that takes features; `model` is its directory."""
    architecture, *_ = json.loads((Path(model) / "config.json").read_bytes())["architectures"]
    take_features(architecture, reads)
    keep_features()
    return {
        "enable_mm_embeds": True,
        "limit_mm_per_prompt": {} if reads.has_layers else dict.fromkeys(KINDS, 0),
        "skip_mm_profiling": True,
        "mm_processor_cache_gb": 0,
    }


def take_features(architecture: str, reads: Reads) -> None:
    """Register an architecture so that it takes features, without a processor.

    Raises `ValueError` for a model that vLLM has no code for.
    """
    from vllm import ModelRegistry
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

    class Info(BaseProcessingInfo):  # type: ignore[misc]
        def get_supported_mm_limits(self) -> Mapping[str, int | None]:
            return dict.fromkeys(reads.kinds)

        def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
            return dict.fromkeys(mm_counts, min(seq_len, MAX_FEATURES))

    class Unused(BaseDummyInputsBuilder[Info]):  # type: ignore[misc]
        def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
            raise NotImplementedError

        def get_dummy_mm_data(self, *_: object) -> dict[str, object]:
            raise NotImplementedError

    class Processor(BaseMultiModalProcessor[Info]):  # type: ignore[misc]
        def _get_mm_fields_config(self, *_: object) -> dict[str, object]:
            raise NotImplementedError

        def _get_prompt_updates(self, *_: object) -> Sequence[object]:
            raise NotImplementedError

    if architecture not in ModelRegistry.models:
        raise ValueError(f"vLLM has no model {architecture}")
    model = ModelRegistry.models[architecture].load_model_cls()
    MULTIMODAL_REGISTRY.register_processor(Processor, info=Info, dummy_inputs=Unused)(model)


def keep_features() -> None:
    """Let vLLM's workers keep the features of prompts that its prefix cache covers.

    vLLM drops them there, and its scheduler does not know: when new weights empty the caches, such a prompt is read
    again, its features are missing, and the engine fails (vLLM 0.32).
    """
    from vllm.v1.core.sched import output

    if hasattr(output, "strip_covered_mm_data"):
        output.strip_covered_mm_data = lambda features, *_, **options: features
