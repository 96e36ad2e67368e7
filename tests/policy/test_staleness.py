"""What an update makes of tokens that another policy sampled, or this one long ago."""

from __future__ import annotations

import copy
import math
from typing import get_args

import pytest
import torch
from msgspec.structs import replace

from swarm.algorithms.importance import ImportanceName
from swarm.algorithms.losses import BehaviourKlEstimatorName, KlEstimatorName
from swarm.errors import PolicyError
from swarm.groups.expectation import log_expectation
from swarm.policy.config import LoraSettings, PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup, PolicyId, UpdateReport, VersionSpan
from tests.example_groups import rollout_group
from tests.policy.completions import completion_logprobs
from tests.policy.exact import exact

PROMPT = "Calculate 12 + 7."
TEXTS = ("<answer>19</answer>", "19", "<answer>3</answer>", "a rather long completion that is wrong")
REWARDS = (1.0, 0.0, 0.0, 0.0)
ADVANTAGES = (0.75, -0.25, -0.25, -0.25)
BEHAVIOUR = MixSettings(external_old_logprobs="behaviour", external_negative_weight=1.0)


def _own(policy: Policy, tokens: list[int]) -> list[float]:
    with torch.no_grad():
        return completion_logprobs(policy, [policy.encode_prompt(PROMPT)], [tokens], 1.0)[0].tolist()


def _group(policy: Policy, shift: float = 0.0, version: int = 0) -> GradedGroup:
    """A group whose sampler gave every token `shift` nats more than `policy` does."""
    completions = []
    for text in TEXTS:
        tokens = policy.encode_completions([Completion(text, "stop")])[0]
        logprobs = tuple(min(0.0, value + shift) for value in _own(policy, tokens))
        completions.append(Completion(text, "stop", tuple(tokens), logprobs))
    group = rollout_group(
        completions=tuple(completions),
        rewards=REWARDS,
        policy=PolicyId("random", policy.tokenizer_hash, version),
    )
    return GradedGroup(group, PROMPT, REWARDS)


def _text_only(group: GradedGroup, log_expectation: float | None) -> GradedGroup:
    texts = tuple(replace(c, token_ids=(), logprobs=()) for c in group.group.completions)
    return replace(group, group=replace(group.group, completions=texts, log_expectation=log_expectation))


def _updater(policy: Policy, reference: Policy | None = None, mix: MixSettings = BEHAVIOUR, **settings: object):
    chosen = UpdateSettings(**{"learning_rate": 1e-3, "advantage": "dr_grpo", "minibatches": 1, **settings})
    return PolicyUpdater(policy, chosen, mix, 1.0, reference)


def _gepo_loss(policy: Policy, log_denominator: float) -> float:
    rows = [_own(policy, policy.encode_completions([Completion(text, "stop")])[0]) for text in TEXTS]
    weights = [math.exp(sum(row) / len(row) - log_denominator) for row in rows]
    return -sum(w * a for w, a in zip(weights, ADVANTAGES, strict=True)) / len(rows)


def _sequence_ess(group: GradedGroup, shift: float) -> float:
    ratios = [math.exp(min(20.0, shift * len(completion.token_ids))) for completion in group.group.completions]
    return sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios))


def _own_expectation(policy: Policy) -> float:
    rows = [_own(policy, policy.encode_completions([Completion(text, "stop")])[0]) for text in TEXTS]
    return log_expectation([sum(row) / len(row) for row in rows])


def test_without_a_treatment_the_clip_sees_the_sampler_and_with_one_the_receiver(policy: Policy) -> None:
    # Every ratio to the sampler is e^0.5, beyond the clip for what was rewarded; the weights take it instead.
    group = _group(policy, shift=-0.5)
    plain = _updater(copy.deepcopy(policy)).update([group], [])
    weighed = _updater(copy.deepcopy(policy), importance="token_truncate", importance_cap=10.0).update([group], [])
    assert plain.figures["clip_ratio/region_mean"] > 0
    assert weighed.figures["clip_ratio/region_mean"] == 0
    for report in (plain, weighed):
        assert report.figures["sampling/importance_sampling_ratio/max"] == pytest.approx(math.exp(0.5), rel=1e-4)
        assert report.figures["sampling/ess"] == pytest.approx(1.0, abs=1e-4), "of equal ratios"
        assert report.figures["sampling/sequence_ess"] == pytest.approx(_sequence_ess(group, 0.5), rel=1e-3)
        assert report.figures["sampling/behaviour_kl"] == pytest.approx(math.exp(0.5) - 0.5 - 1, rel=1e-3)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_text_whose_sampler_is_unknown_dilutes_no_figure_of_the_sampler(policy: Policy, minibatches: int) -> None:
    stale, alien = _group(policy, shift=-0.5), _text_only(_group(policy), None)
    alone = _updater(copy.deepcopy(policy), learning_rate=1e-9).update([stale], []).figures
    mixed = _updater(copy.deepcopy(policy), learning_rate=1e-9, minibatches=minibatches)
    figures = mixed.update([stale], [alien]).figures
    for name, value in alone.items():
        if name.startswith("sampling/"):
            assert figures[name] == pytest.approx(value, rel=1e-4), name
    strangers = _updater(copy.deepcopy(policy)).update([], [alien]).figures
    assert strangers["sampling/behaviour_kl"] == 0 and strangers["sampling/ess"] == 1, "nothing is known"


@pytest.mark.parametrize(
    ("treatment", "weight", "capped"),
    [("token_truncate", 1.5, 1.0), ("token_mask", 0.0, 1.0), ("sequence_truncate", 1.5, 1.0), ("sequence_mask", 0, 1)],
)
def test_a_weight_multiplies_the_loss_of_a_token(
    policy: Policy, treatment: ImportanceName, weight: float, capped: float
) -> None:
    group = _group(policy, shift=-0.5)
    report = _updater(policy, importance=treatment, importance_cap=1.5).update([group], [])
    # On the first step the receiver's ratio is 1 and the advantages of the group sum to 0: all that is left of the
    # loss is that capped weights are equal.
    assert report.figures["loss"] == pytest.approx(0.0, abs=1e-5)
    assert report.figures["sampling/importance_capped_ratio"] == capped
    assert report.figures["grad_norm"] > 0 if weight else report.figures["grad_norm"] == 0


def test_weights_equal_the_gradient_of_reinforce_with_the_same_cap(policy: Policy) -> None:
    # One step of grpo's sequence mean differs from tis; dapo's token mean with token_truncate is tis exactly.
    group = _group(policy, shift=-0.5)
    one, other = copy.deepcopy(policy), copy.deepcopy(policy)
    _updater(one, objective="dapo", importance="token_truncate", importance_cap=1.2).update([group], [])
    _updater(other, objective="tis", loss={"ratio_cap": 1.2}).update([group], [])
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("treatment", get_args(ImportanceName)[1:])
@pytest.mark.parametrize("objective", ["dapo", "gspo"])
def test_weights_and_penalties_do_not_depend_on_the_micro_batch_size(
    policy: Policy, treatment: ImportanceName, objective: str
) -> None:
    policy = exact(policy)
    reference = copy.deepcopy(policy)
    weights = []
    for budget in (1, 100_000):
        twin = copy.deepcopy(policy)
        settings = {"objective": objective, "importance": treatment, "importance_cap": 1.5, "reference_kl": 0.1}
        updater = _updater(twin, reference, micro_batch_tokens=budget, epochs=2, behaviour_kl=0.1, **settings)
        updater.update([_group(policy, shift=-0.2)], [_group(policy, shift=-0.6)])
        weights.append(list(twin.model.parameters()))
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_a_reference_holds_the_policy_near_where_it_began(policy: Policy, estimator: KlEstimatorName) -> None:
    def train(coefficient: float) -> list[UpdateReport]:
        twin = copy.deepcopy(policy)
        updater = _updater(twin, copy.deepcopy(policy), reference_kl=coefficient, kl_estimator=estimator)
        return [updater.update([_group(policy)], []) for _ in range(4)]

    free, held = train(1e-6), train(10.0)
    assert free[0].figures["kl"] == pytest.approx(0.0, abs=1e-6), "before the first step it is the reference"
    assert held[0].figures["loss"] == pytest.approx(free[0].figures["loss"], abs=1e-5)
    assert 0 < held[-1].figures["kl"] < free[-1].figures["kl"] / 2


def test_adapters_switched_off_are_the_reference() -> None:
    policy = load_policy(PolicySettings(lora=LoraSettings(rank=4)))
    updater = _updater(policy, reference_kl=0.1, learning_rate=2e-3)
    group = _group(policy)
    assert updater.update([group], []).figures["kl"] == pytest.approx(0.0, abs=1e-6)
    report = updater.update([group], [])
    # The sampler was the base model: the same distance the other way round, which differs in third order only.
    assert report.figures["kl"] == pytest.approx(report.figures["sampling/behaviour_kl"], rel=0.2)
    assert report.figures["kl"] > 1e-5


@pytest.mark.parametrize("rank", [0, 4])
def test_a_reference_that_is_renewed_is_the_policy_of_then(rank: int) -> None:
    policy = load_policy(PolicySettings(lora=LoraSettings(rank=rank)))
    reference = None if rank else copy.deepcopy(policy)
    updater = _updater(policy, reference, reference_kl=1e-9, learning_rate=2e-3)
    for _ in range(2):
        updater.update([_group(policy)], [])
    then, group = [weight.detach().clone() for weight in policy.trained], _group(policy)
    updater.renew_reference()
    assert updater.update([group], []).figures["kl"] == pytest.approx(0.0, abs=1e-6)
    assert not any(map(torch.equal, then, policy.trained)), "trained on, not put back"
    assert updater.update([group], []).figures["kl"] > 1e-5, "it stays where it was"


def test_a_penalty_without_a_reference_is_refused(policy: Policy) -> None:
    with pytest.raises(PolicyError, match="needs the initial model"):
        _updater(policy, reference_kl=0.1)


def test_a_record_without_logprobs_still_carries_its_groups_expectation(policy: Policy) -> None:
    own = _own_expectation(policy)
    for claim, believed in [(own + 0.5, own + 0.5), (own - 0.5, own - 0.5), (-1e6, own - math.log(10)), (None, own)]:
        group = _text_only(_group(policy), None if claim is None else min(0.0, claim))
        report = _updater(copy.deepcopy(policy), objective="gepo").update([], [group])
        assert report.figures["loss"] == pytest.approx(_gepo_loss(policy, min(0.0, believed)), rel=1e-3)


def test_the_expectation_of_another_tokenizer_is_not_comparable(policy: Policy) -> None:
    stranger = _text_only(_group(policy), -0.01)
    stranger = replace(stranger, group=replace(stranger.group, policy=PolicyId("other", "another", 0)))
    report = _updater(copy.deepcopy(policy), objective="gepo").update([], [stranger])
    assert report.figures["loss"] == pytest.approx(_gepo_loss(policy, _own_expectation(policy)), rel=1e-3)


def test_a_claim_that_the_logprobs_contradict_is_ignored(policy: Policy) -> None:
    group = _group(policy)
    lie = replace(group, group=replace(group.group, log_expectation=-1e-3))
    report = _updater(copy.deepcopy(policy), objective="gepo").update([], [lie])
    assert report.figures["loss"] == pytest.approx(_gepo_loss(policy, _own_expectation(policy)), rel=1e-3)


def test_expectations_do_not_leak_between_the_groups_of_an_update(policy: Policy) -> None:
    own = _own_expectation(policy)
    near, far = _text_only(_group(policy), own), _text_only(_group(policy), own - 1.0)
    report = _updater(copy.deepcopy(policy), objective="gepo").update([], [near, far])
    assert report.figures["loss"] == pytest.approx(
        (_gepo_loss(policy, own) + _gepo_loss(policy, own - 1.0)) / 2, rel=1e-3
    )


def test_gepos_clip_holds_what_a_stale_group_would_gain(policy: Policy) -> None:
    # Of weights above 1.28 what was rewarded counts as 1.28 and stops; what was not is pushed down in full.
    far = _text_only(_group(policy), _own_expectation(policy) - 2.0)
    report = _updater(copy.deepcopy(policy), objective="gepo", loss={"group_clip": True}).update([], [far])
    rows = [_own(policy, policy.encode_completions([Completion(text, "stop")])[0]) for text in TEXTS]
    weights = [math.exp(sum(row) / len(row) - _own_expectation(policy) + 2.0) for row in rows]
    held = [min(w * a, min(max(w, 0.8), 1.28) * a) for w, a in zip(weights, ADVANTAGES, strict=True)]
    assert report.figures["loss"] == pytest.approx(-sum(held) / len(held), rel=1e-3)
    stopped = sum(len(row) for row, a, w in zip(rows, ADVANTAGES, weights, strict=True) if a > 0 and w > 1.28)
    assert report.figures["clip_ratio/region_mean"] == pytest.approx(stopped / sum(map(len, rows))) and stopped


def test_gepos_smoothing_follows_the_variance_within_each_group(policy: Policy) -> None:
    # Of the second group only the text is known: the receiver's probabilities stand in, for the variance as well.
    sampler = (-0.05, -2.0, -2.5, -3.0)
    rows = [_own(policy, policy.encode_completions([Completion(text, "stop")])[0]) for text in TEXTS]
    p = [math.exp(sum(row) / len(row)) for row in rows]
    epsilons, losses = [], []
    for q in ([math.exp(value) for value in sampler], p):
        expectation = sum(each**2 for each in q) / sum(q)
        epsilons.append(4 * sum(each * (each - expectation) ** 2 for each in q) / sum(q))
        weights = [each / (epsilons[-1] * each + (1 - epsilons[-1]) * expectation) for each in p]
        losses.append(-sum(w * a for w, a in zip(weights, ADVANTAGES, strict=True)) / len(p))
    assert epsilons[0] > 0.01 > epsilons[1] > 0
    loss = {"group_epsilon": 1.0, "epsilon_from": "variance"}
    text = _text_only(own := _group(policy), None)
    known = tuple(
        replace(c, logprobs=(value,) * len(c.token_ids))
        for c, value in zip(own.group.completions, sampler, strict=True)
    )
    own = replace(own, group=replace(own.group, completions=known))
    for groups, expected in ([own], losses[0]), ([own, text], sum(losses) / 2):
        report = _updater(copy.deepcopy(policy), objective="gepo", loss=loss).update(groups[:1], groups[1:])
        assert report.figures["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("cppo", math.exp(-0.5) + 0.5 - 1), ("weighted_k3", math.exp(0.5) * 0.5 - math.exp(0.5) + 1)],
)
def test_the_penalty_for_leaving_the_sampler_has_the_chosen_estimator(
    policy: Policy, estimator: BehaviourKlEstimatorName, expected: float
) -> None:
    # Every ratio to the sampler is e^0.5.
    losses = [
        _updater(copy.deepcopy(policy), behaviour_kl=kl, behaviour_kl_estimator=estimator)
        .update([_group(policy, shift=-0.5)], [])
        .figures["loss"]
        for kl in (0.0, 2.0)
    ]
    assert losses[1] - losses[0] == pytest.approx(2.0 * expected, rel=1e-3)


def test_lag_counts_updates_since_own_tokens_were_sampled(policy: Policy) -> None:
    updater = _updater(policy)
    updater.version = 8
    report = updater.update([_group(policy, version=8), _group(policy, version=5)], [_group(policy, version=1)])
    assert report.figures["sampling/lag_mean"] == pytest.approx(1.5)
    assert report.figures["sampling/lag_max"] == 3


def test_a_completion_that_new_weights_came_into_has_a_lag_for_each_part(policy: Policy) -> None:
    updater = _updater(policy)
    updater.version = 4
    group = _group(policy, version=1)
    parts = tuple(
        replace(c, versions=(VersionSpan(1, 1), VersionSpan(3, len(c.token_ids) - 1))) for c in group.group.completions
    )
    report = updater.update([replace(group, group=replace(group.group, completions=parts))], [])
    num_tokens = sum(len(c.token_ids) for c in parts)
    assert report.figures["sampling/lag_mean"] == pytest.approx(
        (3 * len(parts) + 1 * (num_tokens - len(parts))) / num_tokens
    )
    assert report.figures["sampling/lag_max"] == 3
