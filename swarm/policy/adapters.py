"""LoRA adapters in a policy, beside frozen weights that may have 8 or 4 bits (QLoRA).

Each quantized weight is dequantized on the fly, forward and backward; one is materialized at a time. Adapters also
learn what the rounding lost. Source: arXiv:2106.09685; arXiv:2305.14314, sections 2 and 3 and appendix E, without the
double quantization of scales: 4.5 bits a weight instead of 4.13. 8 bits: arXiv:2208.07339 without outliers, so with one
scale for each row.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from transformers import PreTrainedModel

from swarm.errors import CheckpointError, PolicyError
from swarm.policy.config import FrozenDtype, LoraSettings, check_peft
from swarm.policy.media.features import encoder_layers, is_encoder_trained
from swarm.sanitize import clean

if TYPE_CHECKING:
    from peft import PeftModel

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BASE_FILE = "base.json"
MAX_JSON_BYTES = 2**20
FLOATS = ("F16", "BF16", "F32", "F64")
PREFIX = "base_model.model."
"""Prefix that peft adds to the names of the model's parameters."""


class Adapters:
    """The adapters of one model, which is modified in place; its other weights are frozen."""

    def __init__(self, model: PreTrainedModel, settings: LoraSettings) -> None:
        """New adapters, initially without effect. Raises `ConfigError` without peft, `PolicyError` for bad targets."""
        self.rank = settings.rank
        self.base = _fingerprint(model)
        """Digest of the frozen weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # every process that holds a part of this policy starts from the same adapters
            self._peft = insert(model, settings)

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Within the block, forward passes use the frozen model: the policy before training."""
        with self._peft.disable_adapter():
            yield

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a directory that peft loads; `weights` are the trained parameters by their names in the model."""
        from peft import get_peft_model_state_dict

        directory.mkdir(parents=True, exist_ok=True)
        named = {PREFIX + name: value.detach().cpu().contiguous() for name, value in weights.items()}
        state = get_peft_model_state_dict(self._peft, state_dict=named, save_embedding_layers=False)
        save_file(state, directory / WEIGHTS_FILE, metadata={"format": "pt"})
        self._peft.peft_config["default"].save_pretrained(directory)
        (directory / BASE_FILE).write_text(json.dumps({"fingerprint": self.base}))

    def load(self, directory: Path) -> None:
        """Load what `save` wrote. Raises `CheckpointError` when it does not match these settings or this model."""
        from peft import set_peft_model_state_dict

        try:
            saved = _read_json(directory / CONFIG_FILE)
            settings = saved["r"], saved["lora_alpha"], sorted(saved["target_modules"])
            base = _read_json(directory / BASE_FILE)["fingerprint"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise CheckpointError(f"cannot read the adapters in {directory}: {error}") from error
        ours = self._peft.peft_config["default"]
        own = ours.r, ours.lora_alpha, sorted(ours.target_modules)
        for field, was, now in zip(("rank", "alpha", "targets"), settings, own, strict=True):
            if was != now:
                raise CheckpointError(f"{directory} was trained with policy.lora.{field} {was}, got {now}")
        if base != self.base:
            raise CheckpointError(
                f"{directory} holds adapters of another model than the loaded one: did policy.model or "
                "policy.revision change, or the model's files?"
            )
        try:
            state = _read_tensors(directory / WEIGHTS_FILE, self._shapes())
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"the adapters in {directory} do not fit the model: {error}") from error
        set_peft_model_state_dict(self._peft, state)

    def _shapes(self) -> dict[str, list[int]]:
        """Shapes of all tensors of the adapters, by their names in files."""
        from peft import get_peft_model_state_dict

        state = get_peft_model_state_dict(self._peft, save_embedding_layers=False)
        return {name: list(tensor.shape) for name, tensor in state.items()}

    def merge(self) -> PreTrainedModel:
        """The model with the adapters merged into its weights; this object cannot be used afterwards."""
        thaw(self._peft)
        merged: PreTrainedModel = self._peft.merge_and_unload()
        return merged


def _read_json(file: Path) -> Any:
    """What a small file of adapters holds. Raises `ValueError` for a larger one, and what reading raises."""
    if file.stat().st_size > MAX_JSON_BYTES:
        raise ValueError(f"{file.name} has more than {MAX_JSON_BYTES} bytes")
    return json.loads(file.read_text())


def _read_tensors(file: Path, shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """Tensors with these shapes by name. Raises `ValueError` for others, before any is read; `OSError` and
    `SafetensorError` for what is no such file."""
    with safe_open(file, "pt") as opened:
        names = set(opened.keys())
        if odd := sorted(names ^ shapes.keys()):
            what = "has" if odd[0] in names else "lacks"
            raise ValueError(f"{file.name} {what} {clean(odd[0])} ({len(odd)} names differ)")
        for name, shape in shapes.items():
            part = opened.get_slice(name)
            if part.get_shape() != shape or part.get_dtype() not in FLOATS:
                raise ValueError(
                    f"{name} must have the shape {shape} in floating point, got {part.get_shape()} in "
                    f"{part.get_dtype()}"
                )
        state = {name: opened.get_tensor(name) for name in shapes}
    if bad := [name for name, tensor in state.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{bad[0]} holds NaN or infinite weights")
    return state


def insert(model: PreTrainedModel, settings: LoraSettings) -> PeftModel:
    """Insert new adapters into `model`, and freeze the rest, quantized if the settings say so. Raises as `Adapters`."""
    check_peft(settings)
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(settings.targets) or "all-linear",
        exclude_modules=None if is_encoder_trained(model) else encoder_layers(model) or None,
        task_type="CAUSAL_LM",
    )
    if settings.quantized:
        freeze(model, settings.frozen_dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft's use of transformers is nothing that users can mend
            inserted: PeftModel = get_peft_model(model, config)
    except ValueError as error:
        raise PolicyError(f"policy.lora.targets do not fit the model: {error}") from error
    _refuse_embeddings(model)
    return inserted


def is_adapter_directory(directory: Path) -> bool:
    """Whether the directory holds adapters that `Adapters.save` wrote, rather than a whole model."""
    return (directory / CONFIG_FILE).is_file()


def _refuse_embeddings(model: PreTrainedModel) -> None:
    """Adapters on embeddings that are tied to the output head could not be merged into one weight."""
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if any("lora_" in name for name, _ in layer.named_parameters()):
            raise PolicyError("policy.lora.targets must not name the embeddings or the output head; leave them out")


def _fingerprint(model: PreTrainedModel) -> str:
    """Digest of the first values of every weight, as bfloat16: quick, and differs for other weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        first = parameter.detach().flatten()[:64].to(torch.bfloat16).float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + first.numpy().tobytes())
    return digest.hexdigest()


class FrozenLinear(nn.Linear):
    """A linear layer with a quantized `weight` [out, in], dequantized whenever it is read, without a gradient."""

    def __init__(self, layer: nn.Linear, kind: FrozenDtype) -> None:
        """Store the weight of `layer` as `kind`; its bias is taken over."""
        nn.Module.__init__(self)  # that of `nn.Linear` would make a weight
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_parameter("bias", layer.bias)
        self._dtype = layer.weight.dtype
        codes, scales = quantize_nf4(layer.weight) if kind == "nf4" else quantize_int8(layer.weight)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("pairs", nf4_pairs(codes.device) if kind == "nf4" else None, persistent=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The dequantized weight in the type of the original one."""
        return self.weight_as(self._dtype)

    def weight_as(self, dtype: torch.dtype) -> Tensor:
        """The dequantized weight in another type, as a pass in this type uses it."""
        return dequantize(*self._stored, (self.out_features, self.in_features), dtype)

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output [..., out] of `input` [..., in], in the type of the forward pass."""
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        product: Tensor = _product(input.to(dtype), *self._stored, self.out_features)
        return product if self.bias is None else product + self.bias.to(dtype)

    def plain(self) -> nn.Linear:
        """The same layer with its weight in full."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(self.weight, requires_grad=False)
        layer.bias = self.bias
        return layer

    @property
    def _stored(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return cast(Tensor, self.codes), cast(Tensor, self.scales), cast(Tensor | None, self.pairs)


def freeze(model: PreTrainedModel, kind: FrozenDtype) -> None:
    """Store the matrices of all linear layers but the output head as `kind`. Raises `PolicyError` without any."""
    head = model.get_output_embeddings()
    found = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear and layer is not head]
    if not found:
        raise PolicyError(
            f"policy.lora.frozen_dtype must be compute or float32 for a {type(model).__name__}, which has no linear "
            f"layers, got {kind}"
        )
    for name, layer in found:
        model.set_submodule(name, FrozenLinear(layer, kind))


def thaw(model: nn.Module) -> None:
    """Undo `freeze`, except for what quantization lost."""
    for name, layer in list(frozen_layers(model)):
        model.set_submodule(name, layer.plain())


def frozen_layers(model: nn.Module) -> Iterator[tuple[str, FrozenLinear]]:
    """The layers that `freeze` made, by name."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, FrozenLinear))


# Separate operations: a compiler that saw what they do would keep the weight from forward to backward.
@torch.library.custom_op("swarm::frozen_product", mutates_args=())
def _product(input: Tensor, codes: Tensor, scales: Tensor, pairs: Tensor | None, size: int) -> Tensor:
    """input [..., in] weight^T [in, size]; the backward pass dequantizes the weight again instead of keeping it."""
    return input @ dequantize(codes, scales, pairs, (size, input.shape[-1]), input.dtype).T


@torch.library.custom_op("swarm::frozen_slope", mutates_args=())
def _slope(grad: Tensor, codes: Tensor, scales: Tensor, pairs: Tensor | None, size: int) -> Tensor:
    """grad [..., out] weight [out, size]"""
    return grad @ dequantize(codes, scales, pairs, (grad.shape[-1], size), grad.dtype)


def _shaped(vectors: Tensor, codes: Tensor, scales: Tensor, pairs: Tensor | None, size: int) -> Tensor:
    return vectors.new_empty(*vectors.shape[:-1], size)


def _keep(ctx: _Context, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, int], output: Tensor) -> None:
    input, codes, scales, pairs, _ = inputs
    ctx.size = input.shape[-1]
    ctx.save_for_backward(codes, scales, pairs)  # type: ignore[arg-type]  # None may be saved


def _backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _slope(grad, *ctx.saved_tensors, ctx.size), None, None, None, None


class _Context(FunctionCtx):
    """State of `_product` between forward and backward."""

    saved_tensors: tuple[Tensor, Tensor, Tensor | None]
    size: int


_product.register_fake(_shaped)
_slope.register_fake(_shaped)
_product.register_autograd(_backward, setup_context=_keep)


BLOCK = 64
"""Weights of a row after row that share a scale with `nf4`."""
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of a normal distribution, divided by the largest. Source: arXiv:2305.14314, appendix E."""


def quantize_nf4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """NF4 codes: two to a byte [blocks, BLOCK / 2], and scales [blocks, 1]; zeros fill the last block."""
    flat = weight.detach().float().flatten()
    blocks = nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True)
    levels = torch.tensor(NF4, device=weight.device)
    nearest = torch.bucketize(
        blocks / scales.clamp(min=torch.finfo(torch.float32).tiny), (levels[1:] + levels[:-1]) / 2, out_int32=True
    )
    return (nearest[:, ::2] * len(NF4) + nearest[:, 1::2]).to(torch.uint8), scales


def nf4_pairs(device: torch.device) -> Tensor:
    """The two levels that each byte of NF4 codes stands for, [256, 2]: one look-up gives two weights."""
    levels = torch.tensor(NF4, device=device)
    return torch.cartesian_prod(levels, levels)


def dequantize(
    codes: Tensor, scales: Tensor, pairs: Tensor | None, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """The weight of this shape: from NF4 codes with `pairs`, without them from `quantize_int8`."""
    if pairs is None:
        return codes.to(dtype).mul_(scales)
    blocks = nn.functional.embedding(codes.int(), pairs.to(dtype)).flatten(1)
    return blocks.mul_(scales).flatten()[: shape[0] * shape[1]].view(shape)


INT8_MAX = 127


def quantize_int8(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [R, ...] and float32 scale [R, 1, ...]: tensor = int8 x scale to within scale / 2."""
    values = tensor.detach().float()
    scale = values.abs().amax(dim=tuple(range(1, values.ndim)), keepdim=True) / INT8_MAX
    rounded = (values / scale.clamp(min=torch.finfo(torch.float32).tiny)).round().to(torch.int8)
    return rounded, scale
