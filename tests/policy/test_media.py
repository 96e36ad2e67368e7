"""Policies that read pictures and sounds: the same sequences and numbers as transformers' own way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swarm.errors import PolicyError
from swarm.policy.batching import Packed, Padded
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer
from swarm.policy.media.features import FIRST_SLOT, TokenIds, joined, runs
from swarm.types import Message, Text
from swarm.types.media import Image, Video
from tests import readers
from tests.policy.completions import completion_logprobs


@pytest.fixture(scope="module", params=readers.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def policy(family: str, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return readers.load(family, tmp_path_factory.mktemp(family))


def test_log_probabilities_are_those_of_the_models_own_forward_pass(policy: Policy, family: str) -> None:
    answer = [30, 31, 32, 40, 1]
    prompts = [policy.encode_prompt(readers.question(family, number)) for number in range(3)]
    found = completion_logprobs(policy, prompts, [answer] * 3, 1.0)
    for number in range(3):
        assert (found[number] - readers.own_logprobs(policy, family, number, answer)).abs().max() < 1e-4


@torch.no_grad()
def test_a_sampled_token_of_places_is_a_token(family: str, tmp_path: Path) -> None:
    """As engines read it: what follows is as after another token with the same embedding."""
    policy = readers.load(family, tmp_path)
    assert policy.media is not None
    prompt = policy.encode_prompt(readers.question(family, 0))
    token = policy.media.reader.feature_id(policy.media.reader[next(runs(prompt)).number].kind)
    embeddings = policy.model.get_input_embeddings().weight
    embeddings[token] = embeddings[40]
    found = completion_logprobs(policy, [prompt], [[30, token, 31, 32]], 1.0)[0]
    expected = readers.own_logprobs(policy, family, 0, [30, 40, 31, 32])
    assert (found - expected)[2:].abs().max() < 1e-4


def test_another_picture_gives_other_log_probabilities(policy: Policy, family: str) -> None:
    prompts = [policy.encode_prompt(readers.question(family, number)) for number in (0, 2)]
    first, second = completion_logprobs(policy, prompts, [[30, 31, 1]] * 2, 1.0)
    assert (first - second).abs().max() > 1e-3


@torch.no_grad()
def test_padded_and_packed_rows_give_the_same(policy: Policy, family: str) -> None:
    from swarm.training.rows import Row

    prompts = [policy.encode_prompt(readers.question(family, number)) for number in (0, 0, 1)]
    rows = [Row(prompt, [30 + k, 31, 40, 1][: k + 2], 0.0, None) for k, prompt in enumerate(prompts)]
    found = []
    for batching in (Padded(policy.mrope_positions), Packed(policy.mrope_positions)):
        with batching.attention(policy.model):
            found.append(Scorer(policy, 1.0, batching)(rows).logprobs)
    assert (found[0] - found[1]).abs().max() < 1e-5


def test_features_are_computed_once_while_anybody_holds_the_question(
    policy: Policy, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert policy.media is not None
    question = readers.question(family, 7)
    encoded = readers.calls_of(monkeypatch, policy.media.encoder, "_computed")
    prompts = [policy.encode_prompt(question) for _ in range(4)]
    for _ in range(2):
        completion_logprobs(policy, prompts, [[30, 31, 1]] * 4, 1.0)
    assert len(encoded) == 1
    assert len({tuple(prompt) for prompt in prompts}) == 1


def test_only_the_language_part_is_trained(policy: Policy, family: str) -> None:
    trained = {name for name, weight in policy.model.named_parameters() if weight.requires_grad}
    assert trained
    assert all("language_model" in name or "text_model" in name or "lm_head" in name for name in trained)


def test_a_text_that_spells_the_token_of_a_picture_is_no_picture(policy: Policy, family: str) -> None:
    assert policy.media is not None
    (token,) = policy.media.reader.tokens()
    question = readers.question(family, 0, f"what does {token} mean?")
    ids = policy.encode_prompt(question)
    assert len({run.number for run in runs(ids)}) == 1
    observed = policy.encode_observation((Text(f"{token} again"), readers.medium(family, 1)), [30, 1])
    assert len({run.number for run in runs(observed)}) == 1


def test_sequences_keep_their_media_alive(policy: Policy, family: str) -> None:
    assert policy.media is not None
    ids = joined([[1, 2], policy.encode_prompt(readers.question(family, 9)), [3]])
    assert isinstance(ids, TokenIds)
    number = next(runs(ids)).number
    assert policy.media.reader[number].num_features == sum(token >= FIRST_SLOT for token in ids)
    del ids
    with pytest.raises(KeyError):
        policy.media.reader[number]


def test_a_clip_is_read_as_its_frames_with_their_times(policy: Policy, family: str) -> None:
    if "video" not in policy.modalities:
        pytest.skip("reads no pictures")
    frame = readers.medium(family, 0)
    other = readers.medium(family, 2)
    assert isinstance(frame, Image) and isinstance(other, Image)
    clip = Video(frame.width, frame.height, 2.0, frame.pixels + other.pixels)
    ids = policy.encode_prompt((Message("user", (clip, Text("What moves?"))),))
    expected = policy.encode_prompt(
        (Message("user", (Text("0.0 s:"), frame, Text("0.5 s:"), other, Text("What moves?"))),)
    )
    assert ids == expected


def test_a_family_that_reads_pictures_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.policy.media.inputs._count", lambda positions, start, end, following: following)
    with pytest.raises(PolicyError, match="in a way that is not known here"):
        readers.load("qwen2_5_vl", tmp_path)
