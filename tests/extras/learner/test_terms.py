"""What a worker and its learner must share: one line for each difference."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarm.extras.learner.terms import NO_ADAPTERS, differences, make_terms
from swarm.types import Sampling, Terms

LEARNER = make_terms("Qwen/Qwen2.5-0.5B", Sampling(temperature=0.8), "Be brief.", "hash", "{{ template }}")


def worker(model: str = LEARNER.model, prompt: str | None = "Be brief.", template: object = "{{ template }}") -> Terms:
    return make_terms(model, Sampling(temperature=0.8), prompt, "hash", template)


@pytest.mark.parametrize(
    ("terms", "line"),
    [
        (worker("tiny"), "the learner trains Qwen/Qwen2.5-0.5B, not tiny: set --policy.model Qwen/Qwen2.5-0.5B"),
        (replace(worker(), temperature=1.0), "temperature 0.8, not 1.0: set --generation.temperature 0.8"),
        (replace(worker(), top_p=0.9), "top_p 1.0, not 0.9: set --generation.top_p 1.0"),
        (replace(worker(), top_k=5), "top_k 0, not 5: set --generation.top_k 0"),
        (replace(worker(), min_p=0.1), "min_p 0.0, not 0.1: set --generation.min_p 0.0"),
        (replace(worker(), rounded="nf4"), "weights are compute, not nf4: set --policy.lora.frozen_dtype compute"),
        (worker(prompt="Be long."), "set the same policy.system_prompt"),
        (worker(prompt=None), "set the same policy.system_prompt"),
        (worker(prompt=""), "set the same policy.system_prompt"),
        (worker(template=None), "chat template is another"),
        (replace(worker(), tokenizer_hash="other"), "tokenizer is another"),
        (replace(worker("local:1234"), tokenizer_hash="other"), "tokenizer is another"),
    ],
)
def test_each_difference_is_a_line_that_says_what_to_do(terms: Terms, line: str) -> None:
    (said,) = differences(terms, LEARNER)
    assert line in said


def test_a_worker_whose_frozen_weights_are_not_rounded_as_the_learners_is_told_to() -> None:
    (said,) = differences(worker(), replace(LEARNER, rounded="nf4"))
    assert said.endswith("weights are nf4, not compute: set --policy.lora.frozen_dtype nf4")


WITH_ADAPTERS = replace(LEARNER, adapters="rank 4, alpha 8, targets q_proj v_proj", base="digest")


@pytest.mark.parametrize(
    ("terms", "learner", "line"),
    [
        (
            replace(WITH_ADAPTERS, adapters=NO_ADAPTERS, base=""),
            WITH_ADAPTERS,
            "the learner's adapters are rank 4, alpha 8, targets q_proj v_proj, not none: set --policy.lora.rank, "
            "--policy.lora.alpha and --policy.lora.targets as it does",
        ),
        (
            replace(WITH_ADAPTERS, adapters="rank 4, alpha 32, targets q_proj v_proj"),
            WITH_ADAPTERS,
            "adapters are rank 4, alpha 8, targets q_proj v_proj, not rank 4, alpha 32, targets q_proj v_proj",
        ),
        (WITH_ADAPTERS, replace(LEARNER, adapters=NO_ADAPTERS), "adapters: set --policy.lora.rank 0"),
        (
            replace(WITH_ADAPTERS, base="other"),
            WITH_ADAPTERS,
            "frozen weights are another model's: get the same files of the model (policy.revision)",
        ),
    ],
)
def test_other_adapters_and_other_weights_beneath_them_are_a_difference(
    terms: Terms, learner: Terms, line: str
) -> None:
    (said,) = differences(terms, learner)
    assert line in said


def test_adapters_of_a_version_that_does_not_say_are_no_difference() -> None:
    silent = replace(LEARNER, adapters="")
    assert list(differences(WITH_ADAPTERS, silent)) == [] == list(differences(silent, WITH_ADAPTERS))


def test_equal_terms_and_what_is_not_known_yet_are_no_difference() -> None:
    assert list(differences(worker(), LEARNER)) == []
    unloaded = make_terms(LEARNER.model, Sampling(temperature=0.8), "Be brief.", "", None)
    assert list(differences(unloaded, LEARNER)) == [] == list(differences(LEARNER, unloaded))
    assert list(differences(worker("local:1234"), LEARNER)) == [], "a directory may hold the same model"


def test_a_name_from_elsewhere_is_cleaned() -> None:
    (said,) = differences(worker("tiny"), replace(LEARNER, model="\x1b[31mred\n" + "x" * 300))
    assert "\x1b" not in said and "\n" not in said and len(said) < 400


def test_other_values_of_the_chat_template_are_a_difference() -> None:
    """Known before a model is loaded; a version that does not say has none."""
    off, long = {"enable_thinking": False}, {"note": "x" * 200}
    learner, unsaid = (
        make_terms("m", Sampling(), None, "", None, template_kwargs=off),
        replace(LEARNER, template_kwargs=""),
    )
    (said,) = differences(make_terms("m", Sampling(), None, "", None), learner)
    assert said.startswith(
        'the learner\'s chat template has the values {"enable_thinking": false}, not {}: set --policy'
    )
    assert not list(differences(learner, learner)) and not list(differences(worker(), unsaid))
    assert len(make_terms("m", Sampling(), None, "", None, template_kwargs=long).template_kwargs) <= 100
