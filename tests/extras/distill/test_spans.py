from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, strategies as st

from swarm.algorithms.importance import TREATMENTS
from swarm.extras.distill.spans import Spans, advantages, cuts, differences, spans
from swarm.policy.logprobs import Scores
from swarm.policy.tiny import tiny_tokenizer
from swarm.training.config import UpdateSettings
from swarm.training.gradient import Objective
from swarm.training.rows import Row
from tests.extras.distill.tokenizers import TEXTS, merging_tokenizer

TOKENIZERS = {"tiny": tiny_tokenizer(), "merging": merging_tokenizer()}


def _read(name: str, text: str, ended: bool) -> tuple[list[int], list[int | None]]:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    ids += [tokenizer.eos_token_id] if ended else []
    return ids, list(cuts(lambda part: tokenizer.decode(part, skip_special_tokens=True), ids, text, ended))


def _ends_by_bytes(name: str, ids: list[int], text: str) -> list[int | None]:
    """The same from the tokens' bytes in the vocabulary."""
    back = {char: byte for byte, char in _byte_chars().items()}
    tokenizer, found, done = TOKENIZERS[name], [], b""
    for token in ids:
        if token == tokenizer.eos_token_id:
            found.append(len(text.encode()) + 1)
            continue
        done += bytes(back[char] for char in tokenizer.convert_ids_to_tokens(token))
        whole = done.decode(errors="ignore").encode() == done
        found.append(len(done) if whole else None)
    return found


def _byte_chars() -> dict[int, str]:
    """Bytes as GPT-2 writes them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + k) for k, byte in enumerate(others)}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ended", [False, True])
def test_cuts_are_where_the_bytes_of_the_tokens_end(name: str, text: str, ended: bool) -> None:
    ids, found = _read(name, text, ended)
    assert found == _ends_by_bytes(name, ids, text)


def test_ids_of_another_text_cut_nothing() -> None:
    tokenizer = TOKENIZERS["tiny"]
    ids = tokenizer.encode("12", add_special_tokens=False)
    assert cuts(tokenizer.decode, ids, "13", False) == cuts(tokenizer.decode, ids, "123", False) == []


def test_a_text_of_replacement_characters_takes_no_quadratic_time() -> None:
    tokenizer = tiny_tokenizer()
    decoded = []

    def decode(ids: list[int]) -> str:
        decoded.append(len(ids))
        return tokenizer.decode(ids)

    text = "\ufffd" * 5_000
    assert cuts(decode, tokenizer.encode(text), text, False) == []
    assert sum(decoded) < 1_000


@given(st.text(max_size=40), st.booleans(), st.integers(0, 2**32))
def test_one_tokenizer_gives_each_token_the_difference_of_its_own_log_probabilities(
    text: str, ended: bool, seed: int
) -> None:
    chance = random.Random(seed)
    ids, cut = _read("merging", text, ended)
    ours, theirs = ([-chance.expovariate(1.0) for _ in ids] for _ in range(2))
    found = differences(cut, ours, spans(cut, theirs))
    open_tokens = [k for k, end in enumerate(cut) if end is None]
    for k, each in enumerate(found):
        if k not in open_tokens and k - 1 not in open_tokens:
            assert each == pytest.approx(theirs[k] - ours[k], abs=1e-10)


@given(st.text("12+ <answer>\u00e9\u20ac\U0001f600", max_size=40), st.booleans(), st.integers(0, 2**32))
def test_two_tokenizers_agree_with_sums_over_all_pairs_of_cuts(text: str, ended: bool, seed: int) -> None:
    chance = random.Random(seed)
    (own_ids, own), (ids, theirs) = (_read(name, text, ended) for name in ("tiny", "merging"))
    own_logprobs, logprobs = ([-chance.expovariate(1.0) for _ in each] for each in (own_ids, ids))
    found = differences(own, own_logprobs, spans(theirs, logprobs))
    common = sorted({0, *own} & {0, *theirs} - {None}) if text or ended else [0]
    for low, high in itertools.pairwise(common):
        within = _between(own, low, high)
        expected = sum(logprobs[k] for k in _between(theirs, low, high)) - sum(own_logprobs[k] for k in within)
        assert [found[k] for k in within] == [pytest.approx(expected, abs=1e-10)] * len(within)
    assert all(each is not None for each in found)  # both cut at the end of the text


def _between(cut: list[int | None], low: int, high: int) -> list[int]:
    """Tokens that end after `low` and at `high` at the latest; one without an end is of the next that has one."""
    ends = [next(end for end in cut[k:] if end is not None) for k in range(len(cut))]
    return [k for k, end in enumerate(ends) if low < end <= high]


def test_what_no_common_cut_closes_is_left_out() -> None:
    assert differences([1, 2, 4], [-1.0, -1.0, -1.0], Spans([1, 3], [-0.5, -2.0])) == [0.5, None, None]
    assert differences([2, 4], [-1.0, -1.0], Spans([], [])) == [None, None]
    assert differences([], [], Spans([1], [-1.0])) == []
    assert advantages([9.0, None, -9.0, 1.0], 0.5, 4.0) == (2.0, 0.0, -2.0, 0.5)


def test_the_expected_gradient_is_that_of_the_reverse_divergence_of_spans() -> None:
    """By enumeration: the student says two bytes in two tokens, the teacher in one token of its own."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True)
    second = torch.randn(3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(9, generator=generator, dtype=torch.float64).log_softmax(0)
    student = (first.log_softmax(0)[:, None] + second.log_softmax(1)).flatten()
    exact = torch.autograd.grad((student.exp() * (student - teacher)).sum(), [first, second], retain_graph=True)
    surrogate = torch.zeros((), dtype=torch.float64)
    for a, b in itertools.product(range(3), range(3)):
        tokens = [first.log_softmax(0)[a], second.log_softmax(1)[a, b]]
        found = differences([1, 2], [each.item() for each in tokens], Spans([2], [float(teacher[3 * a + b])]))
        sampled = math.exp(sum(each.item() for each in tokens))
        surrogate = surrogate - sampled * sum(
            each * token for each, token in zip(advantages(found, 1.0, math.inf), tokens, strict=True)
        )
    for ours, theirs in zip(torch.autograd.grad(surrogate, [first, second]), exact, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize("importance", TREATMENTS)
def test_the_update_adds_them_to_the_advantages_of_rewards(importance: str) -> None:
    """Against a loop over float64 numbers: GRPO's clip, importance weights and means."""
    settings = UpdateSettings(importance=importance, importance_cap=1.5)
    chance = random.Random(0)
    lengths, added = (3, 2), ((0.5, -0.25, 2.0), ())
    new, old, behaviour = ([[-chance.expovariate(1.0) for _ in range(3)] for _ in lengths] for _ in range(3))
    rows = [
        Row([0], range(length), 0.7 - row, behaviour[row][:length], old=old[row][:length], added=added[row])
        for row, length in enumerate(lengths)
    ]
    mask = torch.tensor([[True] * length + [False] * (3 - length) for length in lengths])
    scores = Scores(torch.tensor(new, dtype=torch.float64, requires_grad=True), torch.zeros(2, 3), mask)
    loss, _ = Objective(settings).share(scores, rows, 2, 5)
    expected = 0.0
    for row, length in enumerate(lengths):
        log_ratios = [old[row][t] - behaviour[row][t] for t in range(length)]
        for t in range(length):
            log_weight = sum(log_ratios) if "sequence" in importance else log_ratios[t]
            weight = 1.0 if importance == "none" else min(math.exp(log_weight), 1.5)
            if "mask" in importance and math.exp(log_weight) > 1.5:
                weight = 0.0
            advantage = weight * (0.7 - row + (added[row][t] if added[row] else 0.0))
            ratio = math.exp(new[row][t] - old[row][t])
            clipped = min(max(ratio, 0.8), 1.28)
            expected -= min(ratio * advantage, clipped * advantage) / length / 2
    assert loss.item() == pytest.approx(expected, abs=1e-10)
