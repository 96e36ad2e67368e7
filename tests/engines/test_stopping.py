"""Stop texts, with tokenizers that write spaces in different ways."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from swarm.engines.base import Stops
from swarm.policy.loading import Policy
from swarm.types import Sampling

TEXT = "Step 1: add . Answer: 19 and more"


def _metaspace() -> PreTrainedTokenizerFast:
    """A space belongs to the token behind it, and the decoder drops the one of the first token."""
    words = ["<eos>", "<unk>", *(f"▁{word}" for word in TEXT.split())]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")


@pytest.fixture(params=["metaspace", "bytes"])
def speaking(request: pytest.FixtureRequest, policy: Policy) -> Policy:
    if request.param == "metaspace":
        tokenizer = _metaspace()
        return Policy("metaspace", policy.model, tokenizer, system_prompt=None)
    return policy


@pytest.mark.parametrize("stop", ["Answer: ", ": ", " and", "9", ". ", " "])
def test_a_completion_ends_with_the_token_that_completes_a_stop_text(speaking: Policy, stop: str) -> None:
    ids = speaking.tokenizer.encode(TEXT, add_special_tokens=False)
    assert speaking.decode(ids) == TEXT
    stops = Stops(speaking, Sampling(stop=(stop,), max_new_tokens=1_000))
    ended = next(n for n in range(1, len(ids) + 1) if stops.reason(ids[:n]) == "stop_sequence")
    assert stop in speaking.decode(ids[:ended]) and stop not in speaking.decode(ids[: ended - 1])
