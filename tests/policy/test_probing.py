"""Small copies of large models, and lengths that a model's code cannot mix."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPTNeoConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from swarm.policy.loading import Policy
from swarm.policy.probing import WINDOW, small_copy
from swarm.policy.tiny import tiny_tokenizer

LARGE = {
    "llama": LlamaConfig(hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8),
    "mistral": MistralConfig(sliding_window=4096),
    "gemma3": Gemma3TextConfig(num_hidden_layers=62, sliding_window=1024),
    "gpt-neo": GPTNeoConfig(),
    "experts": Qwen3MoeConfig(),
}

LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 48,
    "long_factor": [8.0] * 48,
    "original_max_position_embeddings": 64,
}


def _outline(config: object) -> PreTrainedModel:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("family", LARGE)
def test_a_copy_of_a_large_model_is_small_and_has_all_kinds_of_layers(family: str) -> None:
    model = _outline(LARGE[family])
    state = torch.get_rng_state()
    small = small_copy(type(model), model.config)
    assert small is not None and type(small) is type(model)
    assert torch.equal(torch.get_rng_state(), state), "a copy takes no random numbers from others"
    assert small.num_parameters() < 10_000_000
    kinds = [set(getattr(each.config, "layer_types", None) or ["full"]) for each in (model, small)]
    assert kinds[0] == kinds[1] and small.config.num_hidden_layers >= 2
    assert small.config._attn_implementation == model.config._attn_implementation
    for name in ("sliding_window", "window_size"):
        assert getattr(small.config, name, None) in (None, WINDOW)
    head = [each.config.hidden_size // each.config.num_attention_heads for each in (model, small)]
    assert head[0] == head[1]


def test_the_copied_model_is_as_before() -> None:
    model = _outline(LARGE["gemma3"])
    before = model.config.to_dict()
    small_copy(type(model), model.config)
    assert model.config.to_dict() == before


def test_a_model_whose_sizes_cannot_be_changed_has_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise KeyError("a size that the code of this family expects")

    model = _outline(LARGE["llama"])
    monkeypatch.setattr(type(model), "__init__", refuse)
    assert small_copy(type(model), model.config) is None


def test_a_model_with_long_rope_has_only_its_original_positions() -> None:
    plain, scaled = Phi3Config(), Phi3Config(original_max_position_embeddings=64, rope_parameters=LONG_ROPE)
    found = [Policy("phi", _outline(each), tiny_tokenizer(), system_prompt=None) for each in (plain, scaled)]
    assert [each.max_positions for each in found] == [4096, 64]
    assert [each.original_positions for each in found] == [None, 64]
    assert found[1].positions == "64 positions before those of LongRoPE"
