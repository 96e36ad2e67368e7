"""Spot checks that test whether completions were sampled, with the real engine and real policies."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.extras.learner.audit import BOUND, POWERS, SnapshotAuditor
from swarm.extras.learner.packing import Precision
from swarm.policy.batching import Packed, Padded
from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.logprobs import Scorer
from swarm.policy.weights import swap_weights
from swarm.training.rows import Row
from swarm.types import Completion, GradedGroup, PolicyId, Rejection, Sampling, VersionSpan
from tests.example_groups import rollout_group
from tests.extras.learner.snapshot_files import held, packed, unpacked
from tests.policy.completions import completion_logprobs

GROUP = 8
QUESTIONS = [f"Calculate {number} + 7." for number in range(10)]
REWARDS = (1.0,) * 3 + (0.0,) * 5
SAMPLED = Sampling(max_new_tokens=12)


@pytest.fixture(scope="module")
def tiny() -> Policy:
    return load_policy(PolicySettings(model="tiny"))


def _auditor(policy: Policy, sampling: Sampling = SAMPLED, precision: Precision = "native") -> SnapshotAuditor:
    auditor = SnapshotAuditor(lambda: copy.deepcopy(policy), sampling, fraction=1.0, tolerance=0.1, num_kept=2)
    auditor.keep(0, held(packed(policy.weights, precision)))
    return auditor


def _graded(policy: Policy, completions: Sequence[Completion], sampling: Sampling, question: str) -> GradedGroup:
    identity = PolicyId("tiny", policy.tokenizer_hash, 0)
    group = rollout_group(completions=tuple(completions), rewards=REWARDS, policy=identity, sampling=sampling)
    return GradedGroup(group, question, REWARDS)


def _sampled(policy: Policy, sampling: Sampling = SAMPLED) -> list[GradedGroup]:
    answers = TransformersEngine(policy, GenerationSettings()).generate(QUESTIONS, GROUP, sampling, 0)
    assert not any(isinstance(each, Rejection) for each in answers)
    return [_graded(policy, each, sampling, asked) for each, asked in zip(answers, QUESTIONS, strict=True)]


def _truly_claimed(policy: Policy, group: GradedGroup, completions: Sequence[Completion]) -> GradedGroup:
    """A group of these completions with the policy's log-probabilities."""
    ids = [completion.token_ids for completion in completions]
    with torch.no_grad():
        read = completion_logprobs(policy, [policy.encode_prompt(group.prompt)] * GROUP, ids, 1.0).tolist()
    claimed = [
        replace(
            completion,
            logprobs=tuple(min(0.0, value) for value in values[: len(completion.token_ids)]),
            versions=(VersionSpan(0, len(completion.token_ids)),),
        )
        for completion, values in zip(completions, read, strict=True)
    ]
    return replace(group, group=replace(group.group, completions=tuple(claimed)))


def _most(auditor: SnapshotAuditor) -> float:
    return max(float(known.sums.max()) for known in auditor._sampled._authors.values())


@pytest.mark.parametrize(
    ("sampling", "precision"),
    [
        (SAMPLED, "native"),
        (SAMPLED, "int8"),
        (Sampling(max_new_tokens=12, temperature=0.6), "native"),
        (Sampling(max_new_tokens=12, temperature=1.3, top_k=20), "native"),
        (Sampling(max_new_tokens=12, top_p=0.8), "native"),
        (Sampling(max_new_tokens=12, min_p=0.05), "native"),
    ],
)
def test_samples_pass_however_they_are_sampled(tiny: Policy, sampling: Sampling, precision: Precision) -> None:
    worker = copy.deepcopy(tiny)
    swap_weights(worker, unpacked(packed(tiny.weights, precision)), 0)
    auditor = _auditor(tiny, sampling, precision)
    for group in _sampled(worker, sampling):
        assert auditor.verdict(group) is None
    assert _most(auditor) < BOUND / 2


def _marked(policy: Policy, group: GradedGroup) -> GradedGroup:
    (marker,) = policy.encode_completions([Completion("@@@", "length")])
    completions = [
        replace(each, text="@@@" + each.text, token_ids=(*marker, *each.token_ids)) if reward > 0 else each
        for each, reward in zip(group.group.completions, group.rewards, strict=True)
    ]
    return _truly_claimed(policy, group, completions)


def _greedy(policy: Policy, group: GradedGroup) -> GradedGroup:
    """What the policy finds likeliest, which is no sample of it either."""
    cold = replace(SAMPLED, top_k=1)
    (answers,) = TransformersEngine(policy, GenerationSettings()).generate([group.prompt], GROUP, cold, 0)
    assert not isinstance(answers, Rejection)
    return _truly_claimed(policy, group, answers)


def _hot(policy: Policy, group: GradedGroup) -> GradedGroup:
    hot = replace(SAMPLED, temperature=1.6)
    (answers,) = TransformersEngine(policy, GenerationSettings()).generate([group.prompt], GROUP, hot, 0)
    assert not isinstance(answers, Rejection)
    return _truly_claimed(policy, group, answers)


@pytest.mark.parametrize("forge", [_marked, _greedy, _hot])
def test_what_was_not_sampled_from_a_snapshot_is_found_whatever_it_claims(tiny: Policy, forge) -> None:
    auditor = _auditor(tiny)
    found = [auditor.verdict(forge(tiny, group)) for group in _sampled(tiny)]
    assert set(found) <= {None, "unlike_samples"} and found[-1] == "unlike_samples"


@pytest.mark.parametrize("batching", [Padded(), Packed()])
@pytest.mark.parametrize("filters", [None, Sampling(temperature=0.8, top_k=5)])
def test_spreads_are_those_of_the_distribution_of_each_token(tiny: Policy, batching, filters) -> None:
    prompt = tiny.encode_prompt(QUESTIONS[0])
    rows = [Row(prompt, tiny.encode_completions([Completion(text, "stop")])[0], 0.0, None) for text in ("19", "no, 3")]
    scorer = Scorer(tiny, 0.8, batching, filters)
    with batching.attention(tiny.model):
        (logprobs, *spreads), mask = scorer.spreads(rows, POWERS)
        same = scorer(rows)
    torch.testing.assert_close(logprobs, same.logprobs.detach(), atol=1e-4, rtol=0)
    assert torch.equal(mask, same.mask)
    for place, row in enumerate(rows):
        ids = torch.tensor([[*prompt, *row.completion]])
        logits = tiny.model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / 0.8
        if filters is not None:
            likely = logits.topk(5).indices
            kept = torch.full_like(logits, -torch.inf).scatter(1, likely, logits.gather(1, likely))
            chosen = torch.tensor(row.completion)[:, None]
            logits = kept.scatter(1, chosen, logits.gather(1, chosen))
        scores = logits.log_softmax(-1)
        for power, spread in zip(POWERS, spreads, strict=True):
            expected = (power * scores).logsumexp(-1).detach()
            torch.testing.assert_close(spread[place, : len(row.completion)], expected, atol=1e-4, rtol=0)
