"""Attention of decoding rows: what repeated keys and values would give."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from swarm.engines.transformers.layout import Group, attend


class _Repeats(nn.Module):
    """What attention reads of a layer."""

    def __init__(self, num_repeats: int) -> None:
        super().__init__()
        self.num_key_value_groups = num_repeats
        self.is_causal = True


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize(("num_heads", "num_keys"), [(6, 2), (4, 4), (5, 1)])
def test_shared_keys_need_not_be_repeated(num_heads: int, num_keys: int, num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, num_heads, num_tokens, 8, generator=generator)
    slots = torch.randn(2, 4, num_keys, 20, 8, generator=generator)
    key, value = slots[0, :3, :, :11], slots[1, :3, :, :11]
    hidden = torch.arange(11) > torch.tensor([4, 10, 0])[:, None]
    mask = torch.zeros(3, 1, num_tokens, 11).masked_fill(hidden[:, None, None], -torch.inf)
    layer = _Repeats(num_heads // num_keys)
    found, _ = attend(layer, query, key, value, mask, scaling=0.3)
    expected, _ = sdpa_attention_forward(layer, query, key, value, mask, scaling=0.3)
    torch.testing.assert_close(found, expected)
    if num_tokens == 1:
        tokens = Group(slice(0, 3), torch.arange(3)[:, None])
        flat, _ = attend(
            layer, query[:, :, 0].transpose(0, 1)[None], slots[0], slots[1], _padded(mask), 0.3, groups=[tokens]
        )
        torch.testing.assert_close(flat[0, :, :], expected[:, 0])


def _padded(mask: torch.Tensor) -> torch.Tensor:
    """[1, 1, rows, 20]"""
    wide = torch.full((1, 1, len(mask), 20), -torch.inf)
    wide[0, 0, :, : mask.shape[-1]] = mask[:, 0, 0]
    return wide
