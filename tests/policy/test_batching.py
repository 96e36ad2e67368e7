"""One contract for all ways to share a forward pass, and what is particular to each."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, strategies as st
from transformers import AutoModelForCausalLM, BertConfig, Gemma2Config, GPT2Config, LlamaConfig, MistralConfig

from swarm.errors import PolicyError
from swarm.policy import attention
from swarm.policy.attention import Parts, Ranges
from swarm.policy.batching import Batching, Insert, Packed, Padded, minibatches
from swarm.policy.config import BatchingName
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer, can_pack, choose_batching
from tests.policy.exact import exact
from tests.policy.ranges import in_ranges

BATCHINGS = [Padded(), Packed(), Packed(in_ranges=True)]


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "in_ranges", in_ranges)


class Pair(NamedTuple):
    prompt: list[int]
    completion: list[int]
    inserts: list[Insert] = []


def _pairs(num_prompts: int = 3, group_size: int = 3, seed: int = 0) -> list[Pair]:
    """Every second completion has inserts: at its beginning, within it and at its end, some of them empty."""
    rng = random.Random(seed)

    def tokens(longest: int) -> list[int]:
        return [rng.randrange(100) for _ in range(rng.randint(1, longest))]

    def pair(prompt: list[int], number: int) -> Pair:
        completion = tokens(20)
        places = sorted(rng.randint(0, len(completion)) for _ in range(number % 2 * rng.randint(1, 4)))
        return Pair(prompt, completion, [Insert(place, tokens(5)[1:]) for place in places])

    return [pair(prompt, k) for prompt in (tokens(8) for _ in range(num_prompts)) for k in range(group_size)]


@st.composite
def _a_pair(draw: st.DrawFn) -> Pair:
    completion = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    places = sorted(draw(st.lists(st.integers(0, len(completion)), max_size=3)))
    inserts = [Insert(place, draw(st.lists(st.integers(10, 19), max_size=3))) for place in places]
    return Pair(draw(st.sampled_from([[1], [2, 3], [2, 3, 4]])), completion, inserts)


PAIRS = st.lists(_a_pair(), min_size=1, max_size=8)


def _read(pair: Pair) -> tuple[list[int], list[int]]:
    """All tokens in the order in which they are read, and the places of the completion's among them."""
    tokens, own = list(pair.prompt), []
    inserts = list(pair.inserts)
    for place in range(len(pair.completion) + 1):
        while inserts and inserts[0].after == place:
            tokens += inserts.pop(0).ids
        if place < len(pair.completion):
            own.append(len(tokens))
            tokens.append(pair.completion[place])
    return tokens, own


@pytest.mark.parametrize("batching", BATCHINGS)
@given(pairs=PAIRS, max_tokens=st.integers(1, 40))
def test_cutting_loses_nothing_and_keeps_within_the_budget(
    batching: Batching, pairs: list[Pair], max_tokens: int
) -> None:
    micros = list(batching.cut(pairs, max_tokens))
    assert sorted(pair for micro in micros for pair in micro) == sorted(pairs)
    for micro in micros:
        assert len(micro) == 1 or batching.lay_out(micro).ids.numel() <= max_tokens


@pytest.mark.parametrize("batching", BATCHINGS)
@given(pairs=PAIRS)
def test_a_layout_says_where_each_token_is_predicted(batching: Batching, pairs: list[Pair]) -> None:
    layout = batching.lay_out(pairs)
    assert layout.lengths.tolist() == [len(pair.completion) for pair in pairs]
    assert layout.targets.tolist() == [token for pair in pairs for token in pair.completion]
    read = [_read(pair) for pair in pairs]
    assert layout.ids.flatten()[layout.predictors].tolist() == [tokens[i - 1] for tokens, own in read for i in own]
    if layout.positions is not None:
        expected = [i - 1 for _, own in read for i in own]
        assert layout.positions.flatten()[layout.predictors].tolist() == expected


@pytest.mark.parametrize("together", [0, 128])
@pytest.mark.parametrize("batching", BATCHINGS)
def test_every_row_scores_as_it_does_alone(
    policy: Policy, batching: Batching, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "TOGETHER_TOKENS", together)
    policy = exact(policy)
    pairs = _pairs()
    with torch.no_grad(), batching.attention(policy.model):
        scores = Scorer(policy, 0.9, batching)(pairs)
    for row, pair in enumerate(pairs):
        tokens, own = _read(pair)
        with torch.no_grad():
            logits = policy.model(torch.tensor([tokens])).logits[0] / 0.9
        distribution = torch.distributions.Categorical(logits=logits[[i - 1 for i in own]])
        length = len(pair.completion)
        expected = distribution.log_prob(torch.tensor(pair.completion))
        torch.testing.assert_close(scores.logprobs[row, :length], expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(scores.entropies[row, :length], distribution.entropy(), atol=1e-10, rtol=0)
        assert scores.mask[row].sum() == length and not scores.logprobs[row, length:].any()


@pytest.mark.parametrize("together", [0, 128])
def test_packed_and_padded_rows_have_the_same_gradients(
    policy: Policy, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "TOGETHER_TOKENS", together)
    policy = exact(policy)
    pairs = _pairs()
    upstream = torch.randn(len(pairs), 20, dtype=torch.float64)
    gradients = []
    for batching in BATCHINGS:
        policy.model.zero_grad()
        with batching.attention(policy.model):
            logprobs = Scorer(policy, 1.0, batching)(pairs).logprobs
            (logprobs * upstream[:, : logprobs.shape[1]]).sum().backward()
        gradients.append([p.grad for p in policy.model.parameters() if p.grad is not None])
    for padded, *others in zip(*gradients, strict=True):
        for packed in others:
            torch.testing.assert_close(padded, packed, atol=1e-10, rtol=0)


@pytest.mark.parametrize("tokens_in_float32", [0, attention.FLOAT32_TOKENS])
def test_packed_rows_in_bfloat16_differ_from_float32_by_rounding(
    policy: Policy, tokens_in_float32: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "FLOAT32_TOKENS", tokens_in_float32)
    found = []
    for policy.dtype in (torch.float32, torch.bfloat16):
        policy.model.zero_grad()
        with Packed().attention(policy.model):
            logprobs = Scorer(policy, 1.0, Packed())(_pairs()).logprobs
            logprobs.sum().backward()
        gradient = policy.model.model.layers[0].self_attn.q_proj.weight.grad
        found.append((logprobs.detach(), gradient.clone()))
    (exactly, slope), (rounded, rounded_slope) = found
    torch.testing.assert_close(rounded, exactly, atol=0.1, rtol=0)
    assert (rounded_slope - slope).norm() < 0.05 * slope.norm()


def test_packed_rows_hold_a_prompt_once_and_no_padding() -> None:
    pairs = [Pair([1, 2, 3], [4]), Pair([1, 2, 3], [5, 6]), Pair([7], [8])]
    assert Packed().lay_out(pairs).ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_prompt_and_its_completions_attend_in_one_call() -> None:
    packing = Parts.of([2, 1, 2], [None, 0, 0])
    assert packing.lengths == [5] and packing.prefixes == [None]
    assert _ones(packing) == [
        [
            [1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [1, 1, 0, 1, 0],
            [1, 1, 0, 1, 1],
        ]
    ]


def test_a_single_completion_and_its_prompt_are_plain_text_of_any_length() -> None:
    packing = Parts.of([3, 200, 1, 1], [None, 0, None, 2])
    assert packing.lengths == [203, 2] and packing.prefixes == [None, None] and packing.masks == [None, None]


def test_long_completions_attend_one_by_one() -> None:
    packing = Parts.of([120, 1, 8], [None, 0, 0])
    assert packing.lengths == [120, 1, 8] and packing.prefixes == [None, 0, 0]
    assert packing.masks[0] is None
    assert _ones(packing)[1:] == [[[1] * 121], [[1] * (121 + t) + [0] * (7 - t) for t in range(8)]]


def test_ranges_of_keys_are_a_prompt_and_what_continues_it() -> None:
    found = Ranges.of([2, 1, 3, 1, 1], [None, 0, None, 2, 0], torch.device("cpu"))
    assert found.queries.tolist() == [0, 2, 3, 6, 7, 8]
    assert found.keys.tolist() == [0, 2, 5, 8, 12, 15]
    assert found.indices.tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 0, 1, 7]
    assert found.longest == (4, 4) and found.queries.dtype == found.keys.dtype == torch.int32


def test_a_completion_that_comes_later_finds_its_prompt() -> None:
    packing = Parts.of([2, 1, 3, 1, 1], [None, 0, None, 2, 0])
    assert packing.lengths == [2, 1, 4, 1] and packing.prefixes == [None, 0, None, 0]
    assert _ones(packing) == [None, [[1, 1, 1]], None, [[1, 1, 1]]]


def _ones(packing: Parts) -> list[list[list[int]] | None]:
    return [None if mask is None else mask.int().tolist() for mask in packing.masks]


def test_padded_rows_are_sorted_by_length() -> None:
    pairs = [Pair([1], [1] * length) for length in (9, 2, 8, 3)]
    assert [[len(pair.completion) for pair in micro] for micro in Padded().cut(pairs, 20)] == [[2, 3], [8, 9]]


def test_a_thread_that_generates_meanwhile_attends_as_before(policy: Policy) -> None:
    ids, attention = torch.randint(100, (2, 6)), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        expected = policy.model(input_ids=ids, attention_mask=attention).logits
        with Packed().attention(policy.model):
            meanwhile = policy.model(input_ids=ids, attention_mask=attention).logits
    assert torch.equal(meanwhile, expected)
    assert policy.model.config._attn_implementation == "sdpa"


SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
    "head_dim": 16,
}


@pytest.mark.parametrize(
    ("config", "packs"),
    [
        (LlamaConfig(**SIZES), True),
        (GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2), True),
        (MistralConfig(**SIZES, sliding_window=4), False),
        (Gemma2Config(**SIZES), False),
    ],
    ids=["llama", "gpt2", "mistral", "gemma2"],
)
def test_models_that_need_more_of_attention_are_padded(config: object, packs: bool) -> None:
    assert can_pack(AutoModelForCausalLM.from_config(config).eval()) == packs


def test_a_choice_that_cannot_be_kept_is_refused(policy: Policy) -> None:
    assert isinstance(choose_batching(policy, "auto"), Packed)
    assert isinstance(choose_batching(policy, "padded"), Padded)
    policy.model = AutoModelForCausalLM.from_config(Gemma2Config(**SIZES)).eval()
    assert isinstance(choose_batching(policy, "auto"), Padded)
    with pytest.raises(PolicyError, match="update.batching"):
        choose_batching(policy, "packed")


@pytest.mark.parametrize("name", ["auto", "padded"])
def test_a_model_that_reads_what_follows_is_not_trained(policy: Policy, name: BatchingName) -> None:
    config = BertConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    policy.model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(PolicyError, match="what follows a token"):
        choose_batching(policy, name)


def test_minibatches_deal_whole_groups() -> None:
    groups = [[Pair([i], [1]), Pair([i], [2])] for i in range(5)]
    parts = minibatches(groups, 2)
    assert [[pair.prompt[0] for pair in part] for part in parts] == [[0, 0, 2, 2, 4, 4], [1, 1, 3, 3]]
    assert len(minibatches(groups, 9)) == 5
