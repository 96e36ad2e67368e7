"""The model that generates: the trained one, or a copy whose matrices have the type of the forward passes.

Autocast casts float32 matrices in every pass, so that a decode step moves four times the bytes that it needs. The copy
casts them once after a change of the weights. It shares everything else, such as norms, embeddings and matrices that
have the type already, with the trained model, and computes the very same numbers. So adapters stay beside their
matrices: a merged matrix would be rounded once more, as if the sampler were another policy than the trained one. Its
norms in float32 are one operation each, where they give what the model's code gives.

Small Qwen3 models have a fused decode step. A step of the embedded policy is bound by the number of operations, not by
arithmetic: the model's own code takes some 150 of them, each through several Python calls. Here projections of the same
input are one matrix product, positions and mask are computed once a step, and rows are written to and read from the
slots without an index for each dimension.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer
from transformers.pytorch_utils import Conv1D

from swarm.engines.transformers.layout import Unread
from swarm.engines.transformers.slots import SlotCache
from swarm.policy.experts import Routers, are_cast
from swarm.policy.loading import Policy

LINEAR = (nn.Linear, Conv1D)
"""Layers whose weight and bias autocast casts, whatever their input."""


def is_cast(module: nn.Module) -> bool:
    """Whether each pass in half precision casts the parameters of this module itself, unless they have its type."""
    return type(module) in LINEAR or are_cast(module)


@dataclass(frozen=True)
class _Cast:
    """A layer of the copy, and its source."""

    trained: nn.Module
    copied: nn.Module

    def refresh(self) -> None:
        """Cast the present weights."""
        for name, copied in self.copied.named_parameters(recurse=False):
            copied.copy_(self.trained.get_parameter(name))


class GeneratingModel:
    """The model to run in the `compute` context of a policy, and its routers."""

    def __init__(self, policy: Policy) -> None:
        """The trained model; a copy, if it is of use, is made by the first `refresh`."""
        self.model: PreTrainedModel = policy.model
        self.routers = policy.routers
        self._policy = policy
        self._casts: list[_Cast] = []
        self._changes: int | None = None

    def tensors(self) -> Iterator[Tensor]:
        """Parameters and buffers that a pass reads."""
        yield from self.model.parameters()
        yield from self.model.buffers()

    @torch.inference_mode(False)
    @torch.no_grad()
    def refresh(self) -> None:
        """Take the policy's present weights. The gate must be held; does nothing if they have not changed."""
        policy = self._policy
        # The gathered weights of several ranks are in float32, and gone after generation.
        if self._changes == policy.gate.changes or policy.dtype is torch.float32 or policy.ranks.size > 1:
            return
        if self._changes is None:
            self.model, self._casts = _copied(policy)
            self.routers = Routers(self.model) if policy.routers is not None else None
        for cast in self._casts:
            cast.refresh()
        self._changes = policy.gate.changes


def _copied(policy: Policy) -> tuple[PreTrainedModel, list[_Cast]]:
    """A second model with separate matrices, still empty; other tensors are those of the first."""
    twin: PreTrainedModel = _sharing_tensors(policy.model)
    casts = []
    for name, trained in policy.model.named_modules():
        if not is_cast(trained) or all(each.dtype is policy.dtype for each in trained.parameters(recurse=False)):
            continue
        layer = twin.get_submodule(name)
        for part, value in list(layer.named_parameters(recurse=False)):
            setattr(layer, part, nn.Parameter(torch.empty_like(value, dtype=policy.dtype), requires_grad=False))
        casts.append(_Cast(trained, layer))
    _fuse_norms(twin)
    return twin, casts


def _fuse_norms(twin: PreTrainedModel) -> None:
    """Replace RMS norms, some six operations in most families, by one operation."""
    for module in twin.modules():
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if isinstance(eps, float) and _is_rms_norm(module, eps):
            module.forward = partial(_rms_norm, module, eps, module.forward)


def _is_rms_norm(module: nn.Module, eps: float) -> bool:
    """Whether a module computes an RMS norm and has float32 weights only."""
    weights = dict(module.named_parameters())
    weight = weights.pop("weight", None)
    if weights or weight is None or weight.dim() != 1 or weight.dtype is not torch.float32:
        return False
    sample = torch.linspace(-2, 3, 3 * len(weight), device=weight.device).view(3, -1)
    try:
        own = module(sample)
    except Exception:  # it takes other inputs
        return False
    fused = functional.rms_norm(sample, weight.shape, weight, eps)
    return isinstance(own, Tensor) and own.dtype is fused.dtype and torch.allclose(own, fused, rtol=1e-5, atol=1e-6)


def _rms_norm(module: nn.Module, eps: float, otherwise: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    if hidden.dtype is not torch.float32:
        return otherwise(hidden)  # which rounds between the two products
    weight = module.get_parameter("weight")
    return functional.rms_norm(hidden, weight.shape, weight, eps)


def _sharing_tensors(module: nn.Module) -> nn.Module:
    """A copy of the modules alone."""
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


MOST_PARAMETERS = 4_000_000
"""The copies of the projections take two thirds of the weights' memory again, and gain less in a larger model."""


@dataclass(frozen=True)
class _Layer:
    """Weights of one layer; H query heads, K key heads, of D numbers each."""

    norm: Tensor
    qkv: Tensor
    """[(H + 2 K) D, hidden]"""
    qk_norm: Tensor
    """[H + K, D]; the queries' norms are multiplied by the scale of attention."""
    out: Tensor
    """[H D, hidden]"""
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 intermediate, hidden]"""
    down: Tensor
    """[intermediate, hidden]"""


class FusedStep:
    """The decode step of a Qwen3 model in float32, with the weights of the last `refresh`."""

    def __init__(self, policy: Policy) -> None:
        """`policy` must be one of `can_fuse`."""
        self._policy = policy
        config = policy.model.config
        self._queries, self._keys = config.num_attention_heads, config.num_key_value_heads
        self._dim, self._eps = config.head_dim, config.rms_norm_eps
        inverse = policy.model.model.rotary_emb.inv_freq
        self._frequencies = torch.cat([inverse, inverse])
        self._signs = torch.cat([-torch.ones_like(inverse), torch.ones_like(inverse)])
        self._layers: list[_Layer] = []
        self._changes: int | None = None

    def refresh(self) -> None:
        """Take the policy's present weights; does nothing if they have not changed."""
        if self._changes != self._policy.gate.changes:
            self._layers = [self._layer(layer) for layer in self._policy.model.model.layers]
            self._changes = self._policy.gate.changes

    def step(self, cache: SlotCache, rows: Sequence[Unread]) -> Tensor:
        """Feed one token of each row, which are in the first slots, in order; returns logits [B, V] of the next."""
        model, device = self._policy.model, self._policy.device
        ids = torch.from_numpy(np.array([row.tokens[0] for row in rows])).to(device)
        starts = np.array([row.start for row in rows])
        width = int(starts.max()) + 1
        positions = torch.from_numpy(starts).to(device)[:, None]  # [B, 1]
        angles = positions * self._frequencies
        rotary = angles.cos()[:, None], (angles.sin() * self._signs)[:, None]  # [B, 1, D] each
        masked = torch.arange(width, device=device) > positions
        bias = angles.new_zeros(masked.shape).masked_fill_(masked, -torch.inf)
        bias = bias.repeat_interleave(self._keys, dim=0)[:, None]  # [B K, 1, width]
        capacity = cache.layers[0].keys.shape[2]
        starts_of_slots = capacity * torch.arange(len(rows) * self._keys, device=device)
        cells = (starts_of_slots.view(-1, self._keys) + positions).flatten()  # [B K], indices into all slots' tokens
        hidden = functional.embedding(ids, model.model.embed_tokens.weight)
        for layer, slots in zip(self._layers, cache.layers, strict=True):
            attended = self._attend(layer, hidden, rotary, (slots.keys, slots.values), cells, bias)
            hidden = torch.addmm(hidden, attended, layer.out)
            inner = functional.linear(self._normed(hidden, layer.mlp_norm), layer.gate_up)
            gate, up = inner.chunk(2, dim=-1)
            hidden = torch.addmm(hidden, functional.silu(gate).mul_(up), layer.down)
        return functional.linear(self._normed(hidden, model.model.norm.weight), model.lm_head.weight)

    def _attend(
        self,
        layer: _Layer,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        slots: tuple[Tensor, Tensor],
        cells: Tensor,
        bias: Tensor,
    ) -> Tensor:
        """Write the keys and values of `hidden` [B, hidden] and attend to their rows; returns [B, H D]."""
        num_rows, width = len(hidden), bias.shape[2]
        rotated = self._queries + self._keys
        qkv = functional.linear(self._normed(hidden, layer.norm), layer.qkv).view(num_rows, -1, self._dim)
        qk = functional.rms_norm(qkv[:, :rotated], (self._dim,), None, self._eps) * layer.qk_norm
        qk = torch.addcmul(qk * rotary[0], qk.roll(self._dim // 2, dims=-1), rotary[1])
        seen = []
        for slot, new in zip(slots, (qk[:, self._queries :], qkv[:, rotated:]), strict=True):
            slot.view(-1, self._dim).index_copy_(0, cells, new.reshape(-1, self._dim))
            seen.append(slot.view(-1, *slot.shape[2:])[: len(cells), :width])  # [B K, width, D]
        queries = qk[:, : self._queries].reshape(len(cells), -1, self._dim)  # [B K, H / K, D]
        scores = torch.baddbmm(bias, queries, seen[0].transpose(1, 2)).softmax(dim=-1)
        return torch.bmm(scores, seen[1]).view(num_rows, -1)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._eps)

    def _layer(self, layer: Qwen3DecoderLayer) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        queries = (attention.q_norm.weight * attention.scaling).expand(self._queries, -1)
        return _Layer(
            norm=layer.input_layernorm.weight,
            qkv=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
            qk_norm=torch.cat([queries, attention.k_norm.weight.expand(self._keys, -1)]),
            out=attention.o_proj.weight.T,
            mlp_norm=layer.post_attention_layernorm.weight,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            down=mlp.down_proj.weight.T,
        )


def can_fuse(policy: Policy) -> bool:
    """Whether the policy is a small Qwen3 model in float32 as its code alone describes it."""
    model, config = policy.model, policy.model.config
    return (
        type(model) is Qwen3ForCausalLM
        and model.dtype is policy.dtype is torch.float32
        and policy.adapters is None
        and policy.routers is None
        and policy.ranks.size == 1
        and model.num_parameters() <= MOST_PARAMETERS
        and set(config.layer_types) == {"full_attention"}
        and config.rope_parameters["rope_type"] == "default"
        and config.hidden_act == "silu"
        and not config.attention_bias
    )
