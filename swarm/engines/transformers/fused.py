"""Fused decode step of small Qwen3 models.

A step of the embedded policy is bound by the number of operations, not by arithmetic: the model's own code takes some
150 of them, each through several Python calls. Here projections of the same input are one matrix product, positions and
mask are computed once a step, and rows are written to and read from the slots without an index for each dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from swarm.engines.transformers.layout import Unread
from swarm.engines.transformers.slots import SlotCache
from swarm.policy.loading import Policy

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
