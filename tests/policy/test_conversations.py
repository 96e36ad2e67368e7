"""A question that continues a conversation: from its messages to tokens, and on the way between processes."""

from __future__ import annotations

import msgspec
import pytest
from transformers import Qwen3ForCausalLM

from swarm.engines.process import messages as engine_messages
from swarm.environments.digests import question_hash
from swarm.environments.verification import messages as verifier_messages
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config, tiny_tokenizer
from swarm.types import (
    MAX_MESSAGES,
    Grade,
    GradedGroup,
    Message,
    Past,
    ProceduralRef,
    Question,
    Sampling,
    Step,
    Text,
    as_text,
)
from tests.example_groups import graded

CHAT = (Message("user", "one"), Message("assistant", "two"), Message("user", "three"))
WITH_SYSTEM = (Message("system", "zero"), *CHAT)
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
)


def policy(system_prompt: str | None, template: str | None) -> Policy:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return Policy("random", Qwen3ForCausalLM(tiny_config()), tokenizer, system_prompt=system_prompt)


@pytest.mark.parametrize(
    ("system_prompt", "prompt", "text"),
    [
        (None, "one", "<user>one<go>"),
        ("rule", "one", "<system>rule<user>one<go>"),
        (None, CHAT, "<user>one<assistant>two<user>three<go>"),
        ("rule", CHAT, "<system>rule<user>one<assistant>two<user>three<go>"),
        ("rule", WITH_SYSTEM, "<system>zero<user>one<assistant>two<user>three<go>"),
    ],
)
def test_messages_go_through_the_chat_template_and_keep_their_own_system_prompt(
    system_prompt: str | None, prompt: str | tuple[Message, ...], text: str
) -> None:
    made = policy(system_prompt, TEMPLATE)
    assert made.encode_prompt(prompt) == made.tokenizer.encode(text)


@pytest.mark.parametrize(
    ("system_prompt", "prompt", "text"),
    [
        (None, "one", "one"),
        ("rule", "one", "rule\n\none\n"),
        (None, CHAT, "one\n\ntwo\n\nthree\n"),
        ("rule", WITH_SYSTEM, "zero\n\none\n\ntwo\n\nthree\n"),
    ],
)
def test_without_a_template_they_are_one_text(
    system_prompt: str | None, prompt: str | tuple[Message, ...], text: str
) -> None:
    made = policy(system_prompt, None)
    assert made.encode_prompt(prompt) == made.tokenizer.encode(text)


def test_an_episode_may_begin_with_one() -> None:
    made = policy("rule", TEMPLATE)
    said = tuple(made.tokenizer.encode("4"))
    past = made.encode(Past(CHAT, (Step(said, (Text("higher"),)),)))
    assert past[: len(made.encode(CHAT)) + len(said)] == [*made.encode_prompt(CHAT), *said]
    assert made.tokenizer.decode(past).endswith("three<go>4<user>higher<go>")


def test_a_conversation_and_its_text_are_different_questions() -> None:
    other = (Message("system", "one"), Message("user", "two"), *CHAT[2:])
    assert as_text(CHAT) == as_text(other) == "one\n\ntwo\n\nthree"
    assert len({question_hash(prompt) for prompt in (CHAT, other, as_text(CHAT))}) == 3


def test_it_survives_every_way_between_processes() -> None:
    ref = ProceduralRef("task", "", "", 0, 0, "")
    drawn = verifier_messages.Drawn(Question(ref, WITH_SYSTEM), {})
    rewarded = verifier_messages.Graded(Grade(CHAT, (1.0,)), {})
    for reply in (drawn, rewarded):
        assert verifier_messages.decode_reply(verifier_messages.encode(reply)) == reply
    past = Past(CHAT, (Step((1, 2), (Text("higher"),)),))
    ask = engine_messages.Ask([CHAT, "text", past], 1, Sampling(), 0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ask), type=engine_messages.Ask) == ask
    kept = msgspec.structs.replace(graded(), prompt=CHAT)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=GradedGroup) == kept


def test_a_worker_s_reply_is_bounded_whatever_it_holds() -> None:
    ref = ProceduralRef("task", "", "", 0, 0, "")
    many = verifier_messages.Drawn(Question(ref, CHAT * MAX_MESSAGES), {})
    for wrong in (many, verifier_messages.Drawn(Question(ref, ()), {})):
        with pytest.raises(msgspec.ValidationError):
            verifier_messages.decode_reply(verifier_messages.encode(wrong))
    long = verifier_messages.Drawn(Question(ref, (Message("user", "x" * 2**20), Message("user", "x"))), {})
    assert not verifier_messages.in_order(verifier_messages.Draw(0, 0), long, {"task": ()})
