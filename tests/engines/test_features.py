"""What goes to vLLM of prompts with pictures and sounds, without a vLLM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from swarm.engines.base import Stops
from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.engines.vllm.messages import Add, Features, decode_request, encode
from swarm.engines.vllm.requests import PendingRequests, features, has_media, named, placed, reads_of
from swarm.engines.vllm.service import VllmService
from swarm.errors import EngineError
from swarm.policy.loading import Policy
from swarm.policy.media.features import FIRST_SLOT, runs
from swarm.types import Message, Sampling, Text
from tests import readers
from tests.engines.models import random_policy

SAMPLING = Sampling(max_new_tokens=4)


@pytest.fixture(scope="module", params=readers.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def policy(family: str, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return readers.load(family, tmp_path_factory.mktemp(family))


def asked(policy: Policy) -> PendingRequests:
    stops = Stops(policy, SAMPLING)
    return PendingRequests(policy, stops, SAMPLING, seed=1, max_positions=2048)


def test_a_prompt_has_its_tokens_and_every_place_is_of_one_medium(policy: Policy, family: str) -> None:
    medium = readers.medium(family, 0)
    ids = policy.encode_prompt((Message("user", (medium, Text("and"), medium, readers.medium(family, 1))),))
    assert has_media(ids) and policy.media is not None
    tokens = named(policy, ids)
    assert max(tokens) < policy.model.get_input_embeddings().weight.shape[0]
    assert [b for a, b in zip(ids, tokens, strict=True) if a < FIRST_SLOT] == [a for a in ids if a < FIRST_SLOT]
    found = placed(ids)
    assert [each.medium == found[0].medium for each in found] == [True, True, False]
    places = [start + k for each in found for start, length in each.runs for k in range(length)]
    assert places == [place for place, token in enumerate(ids) if token >= FIRST_SLOT]
    for each in found:
        assert sum(length for _, length in each.runs) == policy.media.reader[each.medium].num_features


def test_features_are_those_of_the_policy(policy: Policy, family: str) -> None:
    assert policy.media is not None
    ids = policy.encode_prompt(readers.question(family, 0))
    number = next(runs(ids)).number
    sent = decode_request(encode(features(policy, 3, number)))
    assert isinstance(sent, Features) and sent.id == 3 and sent.medium == number
    expected = policy.media.encoder.features(policy.media.reader[number], 0).flatten(1)
    assert torch.equal(torch.from_numpy(np.frombuffer(sent.content, np.float32).reshape(sent.shape).copy()), expected)
    assert len(sent.grid) == (3 if family.startswith("qwen") else 0)
    reads = reads_of(policy)
    assert reads is not None and reads.kinds == (sent.kind,) and reads.has_layers == (family == "qwen3_vl")


def test_media_are_sent_once_in_a_call_before_what_needs_them(policy: Policy, family: str) -> None:
    requests, known = asked(policy), set[int]()
    for index, number in enumerate((0, 1, 0)):
        requests.prompt(index, readers.question(family, number), 4)
    requests.prompt(3, "1 + 1", 4)
    sent = list(requests.missing(7, requests.names, known))
    assert [type(each) for each in sent] == [Features, Add, Features, Add, Add, Add]
    shown = set[int]()
    for each in sent:
        if isinstance(each, Features):
            assert each.medium not in shown
            shown.add(each.medium)
        elif isinstance(each, Add):
            assert {found.medium for media in each.media.values() for found in media} <= shown
            assert len(each.wanted) == 4
    assert [bool(each.media) for each in sent if isinstance(each, Add)] == [True, True, True, False]
    assert not [each for each in requests.missing(7, requests.names, known) if isinstance(each, Features)]
    again = [each for each in requests.missing(8, requests.names, set()) if isinstance(each, Features)]
    assert len(again) == 2, "another process has none of them"


def test_one_gpu_at_most(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    settings = GenerationSettings(vllm=VllmSettings(python=Path("python"), gpus=(0, 1)))
    with pytest.raises(EngineError, match=r"must name one GPU .* got \[0, 1\]"):
        VllmService(policy, settings, device=torch.device("cuda"))


def test_text_goes_as_ever() -> None:
    policy = random_policy()
    requests = asked(policy)
    for index in range(3):
        requests.prompt(index, "1 + 1", 2)
    (add,) = requests.missing(0, requests.names, set())
    assert isinstance(add, Add) and not add.media and list(add.prompts) == [0, 1, 2]
    assert reads_of(policy) is None
