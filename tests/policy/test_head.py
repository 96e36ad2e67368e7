from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from swarm.policy.scoring import OutputHead, give_float32_logits, project, selected_logprobs

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
    "head_dim": 16,
}
LINEAR = {
    "llama": LlamaConfig(**SIZES),
    "gpt2": GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2),
    "opt": OPTConfig(
        vocab_size=97, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=1, num_attention_heads=2
    ),
}
MORE_THAN_LINEAR = {
    "soft cap": Gemma2Config(**SIZES, final_logit_softcapping=3.0),
    "scale": CohereConfig(**SIZES, logit_scale=0.25),
    "divisor": GraniteConfig(**SIZES, logits_scaling=7.0),
}


def _model(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)  # logits at which a cap acts
    return model


def _plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias) / temperature, -1).gather(
        -1, targets[:, None]
    )[:, 0]


@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
@pytest.mark.parametrize("kept_chunks", [0, 1, 4])
@pytest.mark.parametrize("has_bias", [False, True])
def test_values_and_gradients_are_those_of_the_whole_softmax(
    chunk_tokens: int, kept_chunks: int, has_bias: bool
) -> None:
    torch.manual_seed(0)
    inputs = [3 * torch.randn(9, 8).double(), torch.randn(31, 8).double(), torch.randn(31).double()]
    targets, upstream = torch.randint(31, (9,)), torch.randn(9).double()
    results = []
    for chunked in (True, False):
        hidden, weight, bias = (tensor.clone().requires_grad_() for tensor in inputs)
        used = bias if has_bias else None
        if chunked:
            values, entropies = selected_logprobs(hidden, weight, used, targets, 0.7, chunk_tokens, kept_chunks)
            distribution = torch.distributions.Categorical(
                logits=torch.nn.functional.linear(hidden, weight, used) / 0.7
            )
            torch.testing.assert_close(entropies, distribution.entropy(), atol=1e-12, rtol=0)
            assert not entropies.requires_grad
        else:
            values = _plain(hidden, weight, used, targets, 0.7)
        (values * upstream).sum().backward()
        results.append([values, hidden.grad, weight.grad, *([bias.grad] if has_bias else [])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_what_needs_no_gradient_gets_none() -> None:
    hidden, weight = torch.randn(5, 4), torch.randn(7, 4, requires_grad=True)
    selected_logprobs(hidden, weight, None, torch.arange(5))[0].sum().backward()
    frozen, learning = torch.randn(7, 4), torch.randn(5, 4, requires_grad=True)
    selected_logprobs(learning, frozen, None, torch.arange(5))[0].sum().backward()
    assert hidden.grad is None and weight.grad is not None
    assert frozen.grad is None and learning.grad is not None


def test_half_precision_logits_are_normalised_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(6, 16), torch.randn(50, 16, requires_grad=True), torch.randint(50, (6,))
    values, _ = selected_logprobs(hidden.bfloat16(), weight, None, targets, 1.0, 2, 0)
    values.sum().backward()
    assert values.dtype == torch.float32 and weight.grad is not None and weight.grad.dtype == torch.float32
    exact = _plain(hidden, weight, None, targets, 1.0)
    torch.testing.assert_close(values, exact, atol=0.1, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_give_logits_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(9, 64).to(dtype), torch.randn(300, 64).to(dtype), torch.randn(300)
    expected = hidden.double() @ weight.double().T + bias
    logits = project(hidden, weight, bias)
    assert logits.dtype == torch.float32
    error, rounding = (float((each - expected).abs().max()) for each in (logits, (hidden @ weight.T) + bias))
    assert error < 1e-3 and 50 * error < rounding


@pytest.mark.parametrize("name", [*LINEAR, *MORE_THAN_LINEAR])
def test_models_give_these_logits_under_autocast_and_their_gradient(name: str) -> None:
    model = _model((LINEAR | MORE_THAN_LINEAR)[name])
    give_float32_logits(model)
    head, ids, targets = OutputHead(model), torch.randint(97, (1, 12)), torch.randint(97, (12,))
    results = []
    for way in ("ours", "theirs", "float32"):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=way != "float32"):
            if way == "ours":
                hidden = head.hidden_states(input_ids=ids)[0]
                values, _ = head.logprobs(hidden, targets, 0.8, torch.bfloat16)
            else:
                logits = model(input_ids=ids).logits[0]
                values = torch.log_softmax(logits / 0.8, dim=-1).gather(-1, targets[:, None])[:, 0]
        assert values.dtype == torch.float32
        values.sum().backward()
        results.append((values.detach(), head._module.weight.grad.clone()))
    (ours, our_slope), (theirs, their_slope), (_, exact_slope) = results
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    size = float(exact_slope.norm())
    assert float((our_slope - exact_slope).norm()) < 0.05 * size > float((their_slope - exact_slope).norm())


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    values, entropies = selected_logprobs(hidden, torch.tensor([[1.0], [-1.0]]), None, torch.tensor([1, 1]))
    values.sum().backward()
    assert values.tolist() == [-2e4, 0.0] and entropies.tolist() == [0.0, 0.0]
    assert hidden.grad is not None and hidden.grad.isfinite().all()


@pytest.mark.parametrize("name", [*LINEAR, *MORE_THAN_LINEAR])
def test_any_head_gives_what_its_model_gives(name: str) -> None:
    model = _model((LINEAR | MORE_THAN_LINEAR)[name])
    head = OutputHead(model)
    assert head._linear == (name in LINEAR)
    ids, targets = torch.randint(97, (1, 12)), torch.randint(97, (12,))
    results = []
    for ours in (True, False):
        model.zero_grad()
        if ours:
            hidden = head.hidden_states(input_ids=ids)[0]
            values, entropies = head.logprobs(hidden, targets, 0.8, torch.float32)
        else:
            distribution = torch.distributions.Categorical(logits=model(input_ids=ids).logits[0] / 0.8)
            values, entropies = distribution.log_prob(targets), distribution.entropy()
        values.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([values.detach(), entropies.detach(), *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_head_hidden_states_are_taken_from_serves_others_meanwhile() -> None:
    """What one thread takes or puts in at the head must not reach another that generates."""
    import threading

    model = _model(LINEAR["llama"])
    ids = torch.randint(97, (1, 5))
    expected = model(input_ids=ids).logits
    head = OutputHead(model)
    seen: list[Tensor] = []
    first_layer = model.model.layers[0]

    def generate(*_: object) -> None:
        hook.remove()
        thread = threading.Thread(target=lambda: seen.append(model(input_ids=ids).logits))
        thread.start()
        thread.join()

    hook = first_layer.register_forward_pre_hook(generate)
    head.hidden_states(input_ids=ids)
    torch.testing.assert_close(seen[0], expected)
