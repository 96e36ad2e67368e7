"""Thoughts in tokens and texts: exact for every family's marks, and between families."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarm.errors import PolicyError
from swarm.policy.thinking import Prompted
from swarm.training.rows import RowReader, sampled_row, text_rows
from swarm.types import Completion, Message, Past, Step, Text
from swarm.types.thoughts import parts_of
from tests.example_groups import graded
from tests.thinking_models import FAMILIES, SILENT, THINKING, policy_of


def _ids(policy, text: str) -> list[int]:
    """A sampled text's tokens, with special ones."""
    return list(policy.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut off"])
def test_a_thought_has_the_same_marks_in_the_text_of_every_family(name: str, ended: bool) -> None:
    family = THINKING[name]
    policy = policy_of(family)
    end = family.end if ended else ""
    ids = _ids(policy, f"{family.open}3 + 4 is 12 - 5.{family.close}<answer>7</answer>{end}")
    text = policy.said(ids)
    thought, answer = parts_of(text)
    assert thought is not None and thought.strip() == "3 + 4 is 12 - 5."
    assert answer is not None and answer.strip() == "<answer>7</answer>"
    completion = Completion(text, "stop" if ended else "length", tuple(ids), (-0.1,) * len(ids))
    if name != "gpt-oss":  # its past turns end with another token than its last one
        assert policy.encode_completions([completion]) == [ids], "read as text it is what was sampled"
    assert not policy.hides(ids), "marks are in the text"


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_without_an_end_has_no_answer(name: str) -> None:
    family = THINKING[name]
    policy = policy_of(family)
    ids = _ids(policy, f"{family.open}it may be <answer>7</answer>, or")
    text = policy.said(ids)
    assert parts_of(text).answer is None and "<answer>7" in (parts_of(text).thought or "")
    assert policy.encode_completions([Completion(text, "length")]) == [ids]


@pytest.mark.parametrize("name", THINKING)
def test_an_answer_without_a_thought_is_an_answer(name: str) -> None:
    family = THINKING[name]
    policy = policy_of(family)
    said = policy.encode_completions([Completion("<answer>7</answer>", "length")])[0]
    if policy.thinking.prompted is Prompted.OPENED:
        assert (parts_of(policy.said(said)).answer or "").strip() == "<answer>7</answer>", (
            "the thought that the prompt begins is ended"
        )
    else:
        assert said == _ids(policy, f"{family.plain}<answer>7</answer>")
        assert policy.said(said) == "<answer>7</answer>"


@pytest.mark.parametrize("sender", THINKING)
@pytest.mark.parametrize("reader", FAMILIES)
def test_thoughts_travel_between_families(sender: str, reader: str) -> None:
    """A reader that thinks reads the same thought with its own marks; one whose thinking is off reads the answer."""
    theirs, ours = FAMILIES[sender], FAMILIES[reader]
    author, policy = policy_of(theirs), policy_of(ours)
    text = author.said(_ids(author, f"{theirs.open}12 and 1{theirs.close}<answer>7</answer>"))
    (read,) = policy.encode_completions([Completion(text, "length")])
    if policy.thinking is None:
        assert policy.decode(read) == text
        return
    again = parts_of(policy.said(read))
    assert (again.answer or "").strip() == "<answer>7</answer>"
    if policy.thinking.prompted is Prompted.OFF:
        assert policy.decode(read).strip() == "<answer>7</answer>"
    else:
        assert (again.thought or "").strip() == "12 and 1"
        assert not policy.hides(read)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_prompts_are_the_templates_own_tokens(name: str, system: str | None) -> None:
    family = FAMILIES[name]
    policy = policy_of(family, system_prompt=system)
    conversation = [{"role": "user", "content": "3 + 4?"}]
    if system and name == "gemma2":
        conversation[0]["content"] = f"{system}\n\n3 + 4?"
    elif system:
        conversation.insert(0, {"role": "system", "content": system})
    expected = policy.tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_dict=False, **family.arguments
    )
    assert policy.encode_prompt("3 + 4?") == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_an_episode_keeps_its_thoughts_as_they_were_sampled(name: str) -> None:
    family = FAMILIES[name]
    policy = policy_of(family)
    said = _ids(policy, f"{family.open}is it 1 or 2?{family.close}12{family.end}")
    once = policy.encode(Past("Guess!", (Step(tuple(said), (Text("higher"),)),)))
    prompt = policy.encode_prompt("Guess!")
    assert once[: len(prompt) + len(said)] == [*prompt, *said]
    behind = policy.tokenizer.decode(once[len(prompt) + len(said) :], skip_special_tokens=False)
    question = policy.tokenizer.decode(prompt, skip_special_tokens=False)
    assert "higher" in behind and behind.endswith(question.partition("Guess!")[2]), (
        "the next turn is asked as the first"
    )


@pytest.mark.parametrize("name", THINKING)
def test_an_inserted_end_is_read_but_is_no_token_of_the_policy(name: str) -> None:
    family = THINKING[name]
    policy = policy_of(family)
    thought, answer = _ids(policy, f"{family.open}1 2 3"), _ids(policy, f"<answer>7</answer>{family.end}")
    said = (*thought, *answer)
    text = policy.said(said, len(thought))
    assert parts_of(text).answer == "<answer>7</answer>"
    completion = Completion(text, "stop", said, (-0.5,) * len(said), forced=len(thought))
    group = graded()
    group = replace(group, group=replace(group.group, completions=(completion,)), rewards=(1.0,))
    prompt = policy.encode_prompt("q")
    row = sampled_row(policy, prompt, group, 0)
    assert tuple(row.completion) == said and row.behaviour == completion.logprobs
    (insert,) = row.inserts
    assert (insert.after, list(insert.ids)) == (len(thought), policy.thinking.end)
    (read,) = text_rows(policy, prompt, group, [0])
    if name != "gpt-oss":
        assert (tuple(read.completion), read.inserts) == (said, row.inserts), "receivers leave it out, too"
    step = Step(said, (Text("more"),), forced=len(thought))
    assert policy.encode_steps((step,))[: row.length - len(prompt)] == [*thought, *policy.thinking.end, *answer]


@pytest.mark.parametrize("name", SILENT)
def test_inserted_ends_of_others_are_left_out_by_policies_that_do_not_think(name: str) -> None:
    policy = policy_of(SILENT[name])
    completion = Completion("<think>so</think>7", "length", forced=0)
    (ids,) = policy.encode_completions([completion])
    place = policy.forced_at(completion)
    if policy.thinking is None:
        assert policy.decode(ids[:place]) == "<think>so" and policy.decode(ids[place:]) == "7"
    else:
        assert place is None and policy.decode(ids) == "7"


@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize(
    "text", ["ab</think>c", "</think>", " <think>a</think>b", "a<think>b</think></think>", "<think></think>"]
)
def test_an_inserted_end_of_others_is_between_their_thought_and_their_answer(name: str, text: str) -> None:
    """The sender chooses the text: its thought may lack its opening mark."""
    policy = policy_of(THINKING[name])
    completion = Completion(text, "length", forced=0)
    (ids,), place = policy.encode_completions([completion]), policy.forced_at(completion)
    if place is None:
        assert policy.thinking.prompted is Prompted.OFF
    else:
        assert policy.decode(ids[place:]) == parts_of(text).answer


def test_a_text_must_be_that_of_its_tokens_with_the_marks() -> None:
    """A sender cannot show a grader an answer that its tokens have within the thought."""
    from swarm.sapo.mixing import MixSettings

    policy = policy_of(THINKING["magistral"])
    reader = RowReader(policy, MixSettings(), lambda rewards: rewards)
    ids = tuple(_ids(policy, "[THINK]7 perhaps[/THINK]8"))
    honest = Completion(policy.said(ids), "length", ids, (-0.1,) * len(ids))
    assert reader.same_tokens(honest)
    assert not reader.same_tokens(replace(honest, text="7 perhaps8"))
    assert not reader.same_tokens(replace(honest, text="<think>7 </think>perhaps8"))
    assert not reader.same_tokens(replace(honest, forced=3))


def test_values_of_the_template_are_given_and_typos_are_refused() -> None:
    family = FAMILIES["qwen3"]
    off = policy_of(family, {"enable_thinking": False})
    assert off.thinking.prompted is Prompted.OFF
    assert policy_of(family).thinking.prompted is Prompted.FREE
    with pytest.raises(PolicyError, match="chat_template_kwargs.enable_thinkng: the model's chat template reads no"):
        policy_of(family, {"enable_thinkng": False}).check_template()
    with pytest.raises(PolicyError, match="reads no value"):
        policy_of(FAMILIES["llama3"], {"enable_thinking": False}).check_template()


def test_marks_of_ones_own_are_tokens() -> None:
    from swarm.policy.thinking import named_marks
    from swarm.policy.turns import TemplateUse

    policy = policy_of(FAMILIES["llama3"])
    made = type(policy)(
        "x", policy.model, policy.tokenizer, None, template=TemplateUse({}, named_marks(("<r>", "</r>")))
    )
    with pytest.raises(PolicyError, match="must begin with added tokens"):
        made.check_template()
    made = type(policy)(
        "x", policy.model, policy.tokenizer, None, template=TemplateUse({}, named_marks(("[INST]", "[/INST]")))
    )
    assert made.said(_ids(made, "[INST]so[/INST]7")) == "<think>so</think>7"


def test_messages_of_a_conversation_are_prompts_too() -> None:
    policy = policy_of(FAMILIES["qwen3 opened"])
    prompt = (
        Message("system", "s"),
        Message("user", "a"),
        Message("assistant", "<think>x</think>b"),
        Message("user", "c"),
    )
    text = policy.tokenizer.decode(policy.encode_prompt(prompt), skip_special_tokens=False)
    assert text.endswith("<think>\n") and "x" not in text.partition("assistant")[2].partition("user")[0]
