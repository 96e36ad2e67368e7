"""The embedded policy that sees: small, the same on every run, and hardly ever right although it sees well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, LlavaForConditionalGeneration

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.environments.verification.inline import InlineVerifier
from swarm.evaluation import evaluate
from swarm.extras.pictures import sees
from swarm.extras.pictures.sees import TINY_SEES_TASK
from swarm.policy import tiny
from swarm.policy.config import TINY_SEES, PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.media.features import FIRST_SLOT
from swarm.policy.media.processor import as_array, modalities_of
from swarm.types import HELD_OUT_STREAMS, Grade, Message, Prompt, Question, Sampling, Text, media_of

QUICK = {"questions_per_task": 40, "steps": 2, "batch_size": 8, "warmup_steps": 1}


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy of a few steps."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sees, "SEEING", replace(sees.SEEING, **QUICK))
    monkeypatch.setattr(sees, "ANSWERING", replace(sees.ANSWERING, **QUICK))


def _questions(number: int) -> list[Question]:
    return list(InlineVerifier((TINY_SEES_TASK,)).draw(HELD_OUT_STREAMS + 7, 0, number))


def test_it_is_small_and_most_of_it_is_the_encoder() -> None:
    model = LlavaForConditionalGeneration(sees.sees_config(sees.sees_tokenizer()))
    text = sum(parameter.numel() for parameter in model.get_decoder().parameters())
    assert 120_000 < text < sum(parameter.numel() for parameter in model.parameters()) < 300_000


def test_its_tokenizer_is_the_tiny_one_with_a_few_more_tokens() -> None:
    ours, theirs = sees.sees_tokenizer(), tiny.tiny_tokenizer()
    assert theirs.get_vocab().items() < ours.get_vocab().items()
    assert len(ours) == len(theirs) + 1 + len(sees.PHRASES)
    prompts = [question.prompt[-1].parts[-1].text for question in _questions(40)]  # type: ignore[union-attr]
    assert max(len(ours.encode(text)) for text in prompts) <= 6


@pytest.mark.usefixtures("quick")
def test_it_is_made_once_and_loads_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    first = sees.ensure_sees(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert sees.ensure_sees(progress=lambda done, total: pytest.fail("made twice")) == first
    assert isinstance(AutoModelForImageTextToText.from_pretrained(first), LlavaForConditionalGeneration)
    assert AutoProcessor.from_pretrained(first).image_token == sees.IMAGE
    policy = load_policy(PolicySettings(model=TINY_SEES))
    assert modalities_of(PolicySettings(model=TINY_SEES)) == policy.modalities > {"image"}
    assert policy.system_prompt is None
    assert {name.split(".")[1] for name in _trained(policy)} == {"language_model"}


def _trained(policy: Policy) -> list[str]:
    return [name for name, weight in policy.model.named_parameters() if weight.requires_grad]


@pytest.mark.usefixtures("quick")
def test_it_practises_what_it_is_asked_later() -> None:
    policy = load_policy(PolicySettings(model=TINY_SEES))
    recipe = replace(sees.ANSWERING, questions_per_task=1, untagged=0.0, wrong=0.0)
    (question,) = sees._questions(recipe)
    (example,) = sees._examples([question], recipe, sees.sees_tokenizer())
    asked = policy.encode((Message("user", (question.picture, Text(question.text))),))
    feature = policy.tokenizer.convert_tokens_to_ids(sees.IMAGE)
    prompt = [feature if each >= FIRST_SLOT else each for each in asked]
    answer = [*policy.tokenizer.encode(f"<answer>{question.answer}</answer>"), policy.tokenizer.eos_token_id]
    assert example.ids == [*prompt, *answer]
    assert [label for label in example.labels if label != tiny.IGNORED] == answer


def test_the_same_machine_makes_the_same_weights() -> None:
    def made() -> dict[str, torch.Tensor]:
        seeing, answering = replace(sees.SEEING, **QUICK), replace(sees.ANSWERING, **QUICK)
        return sees.warm_start(seeing, answering, sees.sees_processor(), lambda done, total: None).state_dict()

    before = torch.get_rng_state()
    first, second = made(), made()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert torch.equal(torch.get_rng_state(), before), "nobody else's random numbers change"


def test_what_is_drawn_to_learn_from_is_what_questions_show() -> None:
    pixels, kinds = sees._scenes(replace(sees.SEEING, questions_per_task=60), sees.sees_processor())
    assert pixels.shape == (60, 3, 32, 32) and kinds.shape == (60, 4) and kinds.max() == len(sees.KINDS)
    patches = pixels.unfold(2, sees.PATCH, sees.PATCH).unfold(3, sees.PATCH, sees.PATCH).amax((1, 4, 5)).flatten(1)
    assert torch.equal(patches > -1, kinds > 0), "a patch is black where there is no shape"
    asked = [as_array(picture) for question in _questions(60) for picture in media_of(question.prompt)]
    assert sees._read(asked, sees.sees_processor()).unique().tolist() == pixels.unique().tolist()


@pytest.mark.slow
def test_it_sees_but_hardly_ever_says_so() -> None:
    policy = load_policy(PolicySettings(model=TINY_SEES))
    engine = TransformersEngine(policy, GenerationSettings(max_batch_sequences=1024))
    verifier = InlineVerifier((TINY_SEES_TASK,))
    found = evaluate(engine, verifier, Sampling(max_new_tokens=16), 360, HELD_OUT_STREAMS)
    assert 0 < (found.accuracy or 0.0) < 0.05
    questions = _questions(80)
    prompts = [question.prompt for question in questions]
    others = [_about(theirs, prompt) for prompt, theirs in zip(prompts, [prompts[-1], *prompts], strict=False)]
    assert _num_right(policy, questions, prompts) > 0.6 * len(questions)
    assert _num_right(policy, questions, others) < 0.4 * len(questions), "the pictures of other questions do not help"


def _about(theirs: Prompt, prompt: Prompt) -> Prompt:
    """A prompt with the picture of another one."""
    assert not isinstance(prompt, str)
    return (Message("user", (*media_of(theirs), *prompt[0].parts[1:])),)


def _num_right(policy: Policy, questions: Sequence[Question], prompts: Sequence[Prompt]) -> float:
    """How often the likeliest word between the tags is the answer."""
    verifier = InlineVerifier((TINY_SEES_TASK,))
    answers = [f"<answer>{_begun_answer(policy, prompt)}</answer>" for prompt in prompts]
    grades = verifier.grade([(question.ref, [text]) for question, text in zip(questions, answers, strict=True)])
    return sum(grade.rewards[0] for grade in grades if isinstance(grade, Grade))


@torch.no_grad()
def _begun_answer(policy: Policy, prompt: Prompt) -> str:
    """The likeliest word after the first tag."""
    asked = policy.encode(prompt)  # holds the features
    ids = torch.tensor([[*asked, *policy.tokenizer.encode("<answer>")]])
    return policy.decode([int(policy.model(**policy.inputs(ids)).logits[0, -1].argmax())])
