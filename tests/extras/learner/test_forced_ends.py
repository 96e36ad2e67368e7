"""Spot checks of completions whose thoughts an engine ended, and of their turns."""

from __future__ import annotations

import copy

import pytest
from msgspec.structs import replace

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.extras.learner.audit import SnapshotAuditor
from swarm.groups.episodes import joined
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.types import Completion, GradedGroup, Past, PolicyId, Rejection, Sampling, Step, VersionSpan
from tests.engines.play import SHOWN
from tests.example_groups import rollout_group
from tests.extras.learner.snapshot_files import held, packed
from tests.thinking_models import FAMILIES, policy_of

QUESTION = "3 + 4?"
LIMITED = Sampling(max_new_tokens=24, max_thinking_tokens=7)
REWARDS = (1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
G = len(REWARDS)


@pytest.fixture(scope="module", params=["qwen3 opened", "deepseek-r1"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return policy_of(FAMILIES[request.param])


def auditor_of(*versions: Policy) -> SnapshotAuditor:
    auditor = SnapshotAuditor(
        lambda: copy.deepcopy(versions[0]), LIMITED, fraction=1.0, tolerance=1e-3, num_kept=len(versions)
    )
    for version, each in enumerate(versions):
        auditor.keep(version, held(packed(each.weights)))
    return auditor


def graded(policy: Policy, completions: tuple[Completion, ...]) -> GradedGroup:
    identity = PolicyId("thinker", policy.tokenizer_hash, 0)
    group = rollout_group(completions=completions, rewards=REWARDS, policy=identity, sampling=LIMITED)
    observations = tuple((SHOWN,) if each.turns else () for each in completions)
    return GradedGroup(group, QUESTION, REWARDS, observations)


def sampled(policy: Policy, context: object = QUESTION, seed: int = 1) -> tuple[Completion, ...]:
    engine = TransformersEngine(policy, GenerationSettings())
    (answers,) = engine.generate([context], G, LIMITED, seed)  # type: ignore[list-item]
    assert not isinstance(answers, Rejection)
    return answers


def test_inserted_ends_make_nobody_a_liar(policy: Policy) -> None:
    group = graded(policy, sampled(policy))
    assert sum(each.forced is not None for each in group.group.completions) >= 2
    auditor = auditor_of(policy)
    off, readings = auditor._compared(group)
    assert off < 1e-4
    assert [read.shape[1] for read in readings] == [len(each.token_ids) for each in group.group.completions]
    assert auditor.verdict(group) is None


def test_neither_are_they_in_turns(policy: Policy) -> None:
    first = sampled(policy)
    turns = []
    for each in first:
        past = Past(QUESTION, (Step(each.token_ids, SHOWN, each.forced),))
        turns.append(joined((each, sampled(policy, past, 2)[0]), (SHOWN,)))
    group = graded(policy, tuple(turns))
    assert any(turn.forced is not None for each in turns for turn in each.turns[1:])
    auditor = auditor_of(policy)
    assert auditor._compared(group)[0] < 1e-4 and auditor.verdict(group) is None


def lie(completion: Completion) -> Completion:
    return replace(completion, logprobs=tuple(value - 0.1 for value in completion.logprobs))


def another_place(completion: Completion) -> Completion:
    return completion if completion.forced is None else replace(completion, forced=completion.forced - 3)


def never(completion: Completion) -> Completion:
    return replace(completion, forced=None)


@pytest.mark.parametrize("change", [lie, another_place, never])
def test_who_lies_about_them_is_found(policy: Policy, change: object) -> None:
    group = graded(policy, sampled(policy))
    changed = tuple(change(each) for each in group.group.completions)  # type: ignore[operator]
    lying = replace(group, group=replace(group.group, completions=changed))
    assert auditor_of(policy).verdict(lying) == "wrong_logprobs"


@pytest.mark.parametrize("kv", ["keep", "recompute"])
@pytest.mark.parametrize("at", [3, 7, 8, 12])
def test_weights_that_change_around_an_inserted_end_make_nobody_a_liar(policy: Policy, kv: str, at: int) -> None:
    """Before it, with it and after it; only tokens scored as the engine's own cache was made agree."""
    other = policy_of(FAMILIES["qwen3 opened"])
    for parameter in other.model.parameters():
        parameter.data.mul_(1.5)
    sampler, steps = copy.deepcopy(policy), iter(range(1_000))

    def between_steps() -> bool:
        if next(steps) == at:
            swap_weights(sampler, {name: value.clone() for name, value in other.weights.items()}, 1)
        return False

    engine = TransformersEngine(sampler, GenerationSettings(kv=kv), between_steps)  # type: ignore[arg-type]
    (answers,) = engine.generate([QUESTION], G, LIMITED, 1)
    assert not isinstance(answers, Rejection)
    assert any(each.forced is not None and len(each.versions) == 2 for each in answers)
    group = graded(policy, answers)
    auditor = auditor_of(policy, other)
    assert auditor._compared(group)[0] < 1e-3 and auditor.verdict(group) is None
    swapped = tuple(
        replace(each, versions=tuple(VersionSpan(1 - span.version, span.num_tokens) for span in each.versions))
        for each in answers
    )
    assert auditor._compared(replace(group, group=replace(group.group, completions=swapped)))[0] > 1e-2
