"""What a model needs of memory, by its `config.json`.

Its own code runs on tensors without content, so that every architecture counts as it is, with the casts of mixed
precision and with adapters. Only the first layers of it run, two where all are alike: the others are like one of these.
Compiled layers are traced, forward and backward: torch chooses what to keep for the gradient as for a GPU, on tensors
without content; kernels are not made.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from msgspec import Struct, structs
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule
from torch.nn import ModuleList
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from swarm.engines.transformers.generating import is_cast
from swarm.errors import PolicyError
from swarm.policy.adapters import FrozenLinear, frozen_layers, insert
from swarm.policy.attention import Ranges, packed_attention
from swarm.policy.config import LoraSettings
from swarm.policy.experts import cast_experts
from swarm.policy.media.features import freeze_encoder
from swarm.policy.reading import empty_model, has_encoder
from swarm.policy.scoring import KEPT_CHUNKS, selected_logprobs, tokens_of_chunk
from swarm.training.forward import TrainingLayers

UNMASKED = "swarm_unmasked"
"""Causal attention without a mask, as real passes have it; transformers would make one for tensors without content."""
Code = Callable[..., Any]
Kind = tuple[tuple[str, torch.Size], ...]
"""Names and shapes of a layer's parameters and buffers."""
MAX_CHARS = 100
WIDTH = 64
"""Tokens of a row while measuring."""
LOGIT_BYTES = 4


class Growth(Struct, frozen=True):
    """Bytes that grow with the tokens of a pass."""

    fixed: float
    per_token: float

    def at(self, tokens: int) -> int:
        """Bytes of a pass of so many tokens."""
        return round(self.fixed + self.per_token * tokens)


class PassSize(Struct, frozen=True):
    """Memory of forward and backward passes, beside weights and gradients. Fixed parts are rounded copies of trained
    weights."""

    kept: Growth
    """What the layers keep of a forward pass for the gradient."""
    kept_checkpointed: Growth
    """The same with checkpointing: the inputs of the layers."""
    layer: Growth
    """What one layer keeps: checkpointing computes it again, layer by layer."""
    cached_per_token: float
    """Keys and values of a token."""
    compiled: bool = False
    """Whether layers are. `layer` is that of plain ones where layers are checkpointed, and `kept_checkpointed` has no
    copies of weights."""


class ModelSize(Struct, frozen=True):
    """A model, with or without adapters."""

    parameters: int
    """Parameters of the model, tied ones once, without adapters."""
    trained: int
    """All parameters, or those of the adapters. Always float32."""
    frozen_bytes: int
    """Weights beside the trained ones."""
    copied: int
    """Numbers in matrices that are not stored in the type of forward passes, nor in few bits: a tied head is one."""
    vocabulary: int
    hidden: int
    dtype: torch.dtype
    """Type of forward passes."""
    passes: PassSize | None
    problem: str = ""
    """Why the passes are unknown."""
    computed_bytes: int = 0
    """What it takes to compute the largest matrix that is stored in few bits; 0 without such ones."""
    trains_head: bool = True
    has_encoder: bool = False
    """Whether it reads pictures or sounds; what reads them is frozen."""

    @property
    def weight_bytes(self) -> int:
        """All weights as a trainer holds them."""
        return 4 * self.trained + self.frozen_bytes

    @property
    def rounded_bytes(self) -> int:
        """All weights in the type of forward passes, without adapters: vLLM's copy."""
        return self.parameters * self.dtype.itemsize

    @property
    def copied_bytes(self) -> int:
        """The copy for generation in this process: matrices that are not stored in the type of passes, in it."""
        return self.copied * self.dtype.itemsize if self.dtype.itemsize < torch.float32.itemsize else 0


def measure(
    config: PreTrainedConfig,
    lora: LoraSettings,
    find_dtype: Callable[[int], torch.dtype],
    trains_encoder: bool = False,
    compiled: Callable[[PreTrainedModel], bool] = lambda _: False,
    checkpointed: bool = False,
) -> ModelSize:
    """The size of the model that `config` describes; `find_dtype` gives the type of its passes by its parameters.

    `compiled` says whether its layers are; what these keep takes seconds to find, and is not looked for where they are
    `checkpointed`. What reads pictures or sounds is frozen unless the node `trains_encoder`; its own passes are not
    measured.

    Raises `PolicyError`.
    """
    whole = _whole(config, lora, trains_encoder)
    plain = sum(weight.numel() for name, weight in whole.named_parameters() if ".lora_" not in name)
    rounded = [layer for _, layer in frozen_layers(whole)]
    parameters = plain + sum(layer.in_features * layer.out_features for layer in rounded)
    dtype = find_dtype(parameters)
    stored = dtype if lora.rank and lora.frozen_dtype != "float32" else torch.float32
    trained = sum(weight.numel() for weight in whole.parameters() if weight.requires_grad)
    head = whole.get_output_embeddings().weight
    frozen = plain - (0 if lora.rank else trained)
    size = ModelSize(
        parameters=parameters,
        trained=trained,
        frozen_bytes=frozen * stored.itemsize + sum(buffer.nbytes for layer in rounded for buffer in layer.buffers()),
        copied=sum(weight.numel() for weight in _cast(whole) if weight.requires_grad or stored is not dtype),
        vocabulary=head.shape[0],
        hidden=head.shape[1],
        dtype=dtype,
        passes=None,
        computed_bytes=_most_computed_bytes(rounded, dtype),
        trains_head=head.requires_grad,
        has_encoder=has_encoder(config),
    )
    measured = partial(_measure_passes, config, lora, dtype, stored, _kinds(whole))
    try:
        plain = measured(traced=False)
    except Exception as error:  # as above; what depends on values, such as some routers of experts, cannot run
        return structs.replace(size, problem=_in_words(error))
    if not compiled(whole):
        return structs.replace(size, passes=plain)
    try:
        found = plain if checkpointed else measured(traced=True)
    except Exception:  # as above; plain layers keep more
        found = plain
    copies = structs.replace(found.kept_checkpointed, fixed=0)
    return structs.replace(size, passes=structs.replace(found, kept_checkpointed=copies, compiled=True))


def num_parameters(config: PreTrainedConfig) -> int:
    """Parameters of the model that `config` describes. Raises `PolicyError`."""
    return sum(weight.numel() for weight in _whole(config, LoraSettings()).parameters())


def _whole(config: PreTrainedConfig, lora: LoraSettings, trains_encoder: bool = False) -> PreTrainedModel:
    try:
        return _build(config, lora, torch.float32, trains_encoder)
    except Exception as error:  # a model's own code may raise anything
        raise PolicyError(f"the size of a {type(config).__name__} cannot be found: {_in_words(error)}") from error


def _cast(model: PreTrainedModel) -> Iterator[torch.nn.Parameter]:
    """What the model that generates has in the type of forward passes, if it is stored in another."""
    return (weight for module in model.modules() if is_cast(module) for weight in module.parameters(recurse=False))


def _most_computed_bytes(layers: Sequence[FrozenLinear], dtype: torch.dtype) -> int:
    """Peak while the largest weight is computed; `layers` are on the device `meta`."""
    if not layers:
        return 0
    largest = max(layers, key=lambda layer: layer.in_features * layer.out_features)
    with torch.no_grad(), LiveBytes(largest.buffers()) as live:
        largest.weight_as(dtype)
    peak: int = live.peak
    return peak


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_CHARS]}"


def head_bytes(size: ModelSize, tokens: int, device: str) -> int:
    """Peak of the output head and the gradient of its log-probabilities for `tokens` of them, on a type of device."""
    chunk = tokens_of_chunk(device, size.vocabulary)
    if device == "cuda":
        return _kernels_peak(size, tokens, chunk)
    simulated = (KEPT_CHUNKS + 2) * chunk  # later chunks are like the last of these
    if tokens <= simulated:
        return _head_peak(size, tokens, chunk)
    first, second = (_head_peak(size, simulated + more, chunk) for more in (0, chunk))
    return first + (second - first) * (tokens - simulated) // chunk


def _kernels_peak(size: ModelSize, tokens: int, chunk: int) -> int:
    """Hidden states that predict, rounded, and their gradient; a chunk's logits and their gradient; the head's weight,
    rounded, and its gradient."""
    rounded = size.dtype.itemsize
    states = tokens * size.hidden * (LOGIT_BYTES + 2 * rounded)
    weight = size.vocabulary * size.hidden * (LOGIT_BYTES + rounded) if size.trains_head else 0
    return states + weight + min(tokens, chunk) * size.vocabulary * (LOGIT_BYTES + rounded)


@cache
def _head_peak(size: ModelSize, tokens: int, chunk: int) -> int:
    trains_head = size.trains_head
    with FakeTensorMode():
        weight = torch.empty(
            size.vocabulary, size.hidden, dtype=torch.float32 if trains_head else size.dtype, requires_grad=trains_head
        )
        hidden = torch.empty(tokens, size.hidden, dtype=size.dtype, requires_grad=True)
        targets = torch.zeros(tokens, dtype=torch.long)
        with LiveBytes([weight, hidden]) as live:
            logprobs, _ = selected_logprobs(hidden, weight, None, targets, 1.0, chunk)
            logprobs.sum().backward()  # type: ignore[no-untyped-call]
    peak: int = live.peak
    return peak


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages made within the block: those alive now, and the most at a time."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        """`given` are not counted, nor views of them."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {tensor.untyped_storage()._cdata for tensor in given}
        self.now = 0
        self.peak = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation."""
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._see(value.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._given or key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self.now += self._alive[key]
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._alive.pop(key)


class GroupedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Grouped products of tensors without content in any type: torch's own code for these knows bfloat16 alone."""

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation."""
        if function is not torch.ops.aten._grouped_mm.default:
            return function(*args, **(kwargs or {}))
        rows, weights, *_ = args  # [S, K] and [E, K, N]
        return rows.new_empty(rows.shape[0], weights.shape[-1])


def _kinds(model: PreTrainedModel) -> list[Kind]:
    """What tells the layers of the text model apart, in their order; all alike where they cannot be identified.

    Some models of experts begin with layers without any.
    """
    number = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.get_decoder().modules() if isinstance(module, ModuleList))
    for layers in lists:
        if len(layers) == number and isinstance(layers[0], GradientCheckpointingLayer):
            tensors = ([*layer.named_parameters(), *layer.named_buffers()] for layer in layers)
            return [tuple((name, tensor.shape) for name, tensor in found) for found in tensors]
    return [()] * number


class _Run(NamedTuple):
    """Bytes of a model of the first layers."""

    kept: dict[tuple[int, bool], int]
    """Bytes kept of a forward pass, by its rows and whether layers are checkpointed."""
    cached: int
    """Keys and values of a token."""


def _measure_passes(
    config: PreTrainedConfig,
    lora: LoraSettings,
    dtype: torch.dtype,
    stored: torch.dtype,
    kinds: Sequence[Kind],
    traced: bool,
) -> PassSize:
    """Size from models of one layer, and of as many as end with the first one of each kind, with and without that one.

    `traced`: what compiled layers keep.
    """
    counts = Counter(kinds[1:])
    ends = {kind: kinds.index(kind, 1) + 1 for kind in counts}
    with tracing() as trace:
        runs = {
            layers: _run(_build(_with_layers(config, layers), lora, stored), dtype, trace if traced else None)
            for layers in sorted({1, *ends.values(), *(end - 1 for end in ends.values())})
        }

    def growth(bytes_of: Callable[[int], float]) -> Growth:
        """Growth from passes of one and two rows."""
        per_token = (bytes_of(2) - bytes_of(1)) / WIDTH
        return Growth(bytes_of(1) - per_token * WIDTH, per_token)

    def more(kind: Kind, of: Callable[[_Run], int]) -> int:
        """What a layer of this kind adds."""
        return of(runs[ends[kind]]) - of(runs[ends[kind] - 1])

    def whole(of: Callable[[_Run], int]) -> int:
        return of(runs[1]) + sum(count * more(kind, of) for kind, count in counts.items())

    def largest(rows: int) -> int:
        """Most bytes of a layer; where there is only one, of the whole model."""
        each = [more(kind, lambda run: run.kept[rows, False]) for kind in counts]
        return max(each, default=runs[1].kept[rows, False])

    return PassSize(
        kept=growth(lambda rows: whole(lambda run: run.kept[rows, False])),
        kept_checkpointed=growth(lambda rows: whole(lambda run: run.kept[rows, True])),
        layer=growth(largest),
        cached_per_token=whole(lambda run: run.cached),
    )


def _run(model: PreTrainedModel, dtype: torch.dtype, trace: Callable[[Code], Code] | None) -> _Run:
    """`trace` compiles the layers, or they are plain."""
    kept: dict[tuple[int, bool], int] = {}
    fake = FakeTensorMode()
    with fake, GroupedProducts():  # type: ignore[no-untyped-call]
        _give_fake_memory(model)
        for rows in (1, 2):
            for checkpointed in (False, True):
                with TrainingLayers(model, compiled=False, checkpointed=checkpointed).active():
                    kept[rows, checkpointed] = _kept_bytes(model, rows, dtype)
        cached = _cached_bytes(model, dtype)
    if trace is not None:  # not within the dispatch mode, which would keep torch from tracing
        with fake, packed_attention(model):
            for rows in (1, 2):
                with TrainingLayers(model, compiled=True, checkpointed=False, compile_code=trace).active():
                    kept[rows, False] = _kept_bytes_compiled(model, rows, dtype)
    return _Run(kept, cached)


def _kept_bytes(model: PreTrainedModel, rows: int, dtype: torch.dtype) -> int:
    """What is alive after a forward pass of the layers."""
    ids = torch.zeros(rows, WIDTH, dtype=torch.long)
    with LiveBytes([*model.parameters(), *model.buffers()]) as live, _in(dtype):
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        kept: int = live.now
    del hidden
    return kept


def _kept_bytes_compiled(model: PreTrainedModel, rows: int, dtype: torch.dtype) -> int:
    """What compiled layers keep of a forward pass of packed rows."""
    ids = torch.zeros(1, rows * WIDTH, dtype=torch.long)
    bounds, mask = torch.zeros(rows + 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1)
    inputs = {"position_ids": ids, "attention_mask": mask, "packing": Ranges(bounds, bounds, ids[0], (WIDTH, WIDTH))}
    with counted(model) as kept, _in(dtype):
        hidden = model.base_model(input_ids=ids, use_cache=False, **inputs).last_hidden_state
    del hidden
    return kept()


@torch.no_grad()
def _cached_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """Keys and values of one token."""
    cache = DynamicCache(config=model.config)
    with _in(dtype):
        model.base_model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    return sum((layer.keys.numel() + layer.values.numel()) * dtype.itemsize for layer in cache.layers)


def _in(dtype: torch.dtype) -> AbstractContextManager[object]:
    return nullcontext() if dtype is torch.float32 else torch.autocast("cpu", dtype=dtype)


def _build(
    config: PreTrainedConfig, lora: LoraSettings, stored: torch.dtype, trains_encoder: bool = False
) -> PreTrainedModel:
    """The model on the device `meta`, with adapters if there are any."""
    with torch.device("meta"), no_init_weights():
        model = empty_model(config, dtype=stored)
        model.tie_weights()
        cast_experts(model)
        if has_encoder(config) and not trains_encoder:
            freeze_encoder(model)
        if lora.rank:
            insert(model, lora)
    if model.config._attn_implementation == "sdpa":
        model.config._attn_implementation = UNMASKED
    return model.eval()


def _give_fake_memory(model: PreTrainedModel) -> None:
    """Tensors that claim to be on the CPU, where mixed precision applies, in place of those on `meta`.

    `FakeTensorMode` must be active; `Module.to` cannot do this.
    """
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    fake = torch.empty(tensor.shape, dtype=tensor.dtype)
                    trained = isinstance(tensor, torch.nn.Parameter)
                    made[id(tensor)] = torch.nn.Parameter(fake, tensor.requires_grad) if trained else fake
                tensors[name] = made[id(tensor)]


def _with_layers(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    """The same model with fewer layers."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    before = text.num_hidden_layers
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == before:  # something for each layer
            setattr(text, name, value[:num_layers])
    text.num_hidden_layers = num_layers
    return config


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> Any:
    return sdpa_attention_forward(module, query, key, value, None, **others)


AttentionInterface.register(UNMASKED, _attend)
AttentionMaskInterface.register(UNMASKED, lambda *_, **__: None)


@contextmanager
def tracing() -> Iterator[Callable[[Code], Code]]:
    """Yields a function that returns code divided into what runs forward and backward as the compiler would, and run as
    it is. Afterwards nothing is left of the traces, of which torch makes only a few for each function."""
    from torch._C._dynamo.eval_frame import reset_code

    made: dict[Code, Code] = {}
    try:
        yield lambda code: made.setdefault(code, _traced(code))
    finally:
        for code in made:
            reset_code(code.__code__)


def _traced(code: Code) -> Code:
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    def divide(graph: GraphModule, inputs: object, **options: Any) -> tuple[GraphModule, GraphModule]:
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        return min_cut_rematerialization_partition(graph, inputs, **options)

    backend = aot_autograd(
        fw_compiler=_as_it_is, bw_compiler=_as_it_is, partition_fn=divide, decompositions=select_decomp_table()
    )
    traced: Code = torch.compile(code, dynamic=True, backend=backend)
    return traced


@contextmanager
def counted(model: PreTrainedModel) -> Iterator[Callable[[], int]]:
    """Yields a function that returns the bytes kept for the gradient within the block; the model's own do not count."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield lambda: sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _as_it_is(graph: GraphModule, inputs: object) -> Any:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    return make_boxed_func(graph.forward)
