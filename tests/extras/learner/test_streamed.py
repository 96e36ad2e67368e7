"""An update whose groups come one by one, and what is believed of those who sent them."""

from __future__ import annotations

import copy
import math
from typing import Literal

import pytest
import torch
from msgspec.structs import replace

from swarm.algorithms.losses import LOSSES
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import PolicyError
from swarm.extras.learner.audit import SnapshotAuditor
from swarm.extras.learner.packing import Precision
from swarm.extras.learner.updater import StreamedUpdater
from swarm.groups.episodes import joined
from swarm.policy.adapters import Adapters
from swarm.policy.config import LoraSettings
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import TokenBudget
from swarm.policy.weights import swap_weights
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup, PolicyId, Rejection, Sampling, VersionSpan
from tests import readers
from tests.engines.play import PROMPTS, SHOWN, Play
from tests.example_groups import rollout_group
from tests.extras.learner.snapshot_files import held, packed, packed_by, unpacked
from tests.policy.completions import completion_logprobs
from tests.policy.exact import exact

QUESTIONS = ("Calculate 12 + 7.", "What is the greatest common divisor of 12 and 18?", "Calculate 3 * 5.")
TEXTS = ("<answer>19</answer>", "19", "<answer>3</answer>", "a rather long completion that is wrong")
REWARDS = (1.0, 0.0, 1.0, 0.0)


def _sampled(policy: Policy, question: str, texts: tuple[str, ...] = TEXTS) -> GradedGroup:
    """A group as a worker with this policy would have sent it."""
    completions = []
    for text in texts:
        tokens = policy.encode_completions([Completion(text, "stop")])[0]
        with torch.no_grad():
            logprobs = completion_logprobs(policy, [policy.encode_prompt(question)], [tokens], 1.0)[0].tolist()
        spans = (VersionSpan(policy.version, len(tokens)),)
        completions.append(Completion(text, "stop", tuple(tokens), tuple(min(0.0, p) for p in logprobs), spans))
    rewards = REWARDS[: len(texts)]
    identity = PolicyId("random", policy.tokenizer_hash, policy.version)
    return GradedGroup(
        rollout_group(completions=tuple(completions), rewards=rewards, policy=identity), question, rewards
    )


def _settings(**changes: object) -> UpdateSettings:
    return UpdateSettings(**{"learning_rate": 1e-3, "minibatches": 1, **changes})


def _claiming(group: GradedGroup, shift: float) -> GradedGroup:
    completions = tuple(
        replace(c, logprobs=tuple(min(0.0, logprob + shift) for logprob in c.logprobs)) for c in group.group.completions
    )
    return replace(group, group=replace(group.group, completions=completions))


@pytest.mark.parametrize("objective", LOSSES)
def test_groups_that_come_one_by_one_make_the_update_of_all_at_once(policy: Policy, objective: str) -> None:
    policy = exact(policy)
    groups = [_sampled(policy, QUESTIONS[0]), _sampled(policy, QUESTIONS[1], TEXTS[1:]), _sampled(policy, QUESTIONS[2])]
    groups = [_claiming(group, -0.2) for group in groups]
    whole, parts = copy.deepcopy(policy), copy.deepcopy(policy)
    settings = _settings(objective=objective, reference_kl=0.1, micro_batch_tokens=64)
    expected = PolicyUpdater(whole, settings, MixSettings(), 1.0, copy.deepcopy(policy)).update(groups, [])
    updater = StreamedUpdater(parts, settings, MixSettings(), Sampling(), copy.deepcopy(policy))
    for group in groups:
        updater.accumulate([group])
    report = updater.apply()
    assert updater.version == 1
    assert report.figures == pytest.approx(expected.figures, rel=1e-6, abs=1e-9)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("arrivals", "epochs", "minibatches"),
    [([1, 1, 1], 1, 2), ([1, 1, 1], 2, 1), ([1, 1, 1], 2, 2), ([1, 1, 1], 3, 5), ([2, 1], 2, 2), ([1, 2], 3, 5)],
)
@pytest.mark.parametrize("importance", ["none", "token_truncate"])
def test_several_steps_are_those_of_all_groups_at_once(
    policy: Policy, arrivals: list[int], epochs: int, minibatches: int, importance: str
) -> None:
    policy = exact(policy)
    groups = [_claiming(_sampled(policy, question), -0.2) for question in QUESTIONS]
    whole, parts = copy.deepcopy(policy), copy.deepcopy(policy)
    settings = _settings(epochs=epochs, minibatches=minibatches, importance=importance, micro_batch_tokens=64)
    expected = PolicyUpdater(whole, settings, MixSettings(), 1.0).update(groups, [])
    updater = StreamedUpdater(parts, settings, MixSettings(), Sampling())
    for count in arrivals:
        assert _same_weights(parts, policy), "no step before all groups are there"
        updater.accumulate([groups.pop(0) for _ in range(count)])
    report = updater.apply()
    assert updater.version == 1, "an update of several steps is one version"
    assert report.figures["train/num_sequences"] == epochs * len(QUESTIONS) * len(TEXTS)
    assert report.figures == pytest.approx(expected.figures, rel=1e-6, abs=1e-9)
    assert not _same_weights(parts, policy)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("minibatches", "of_a_peer", "of_a_learner"), [(None, 4, 1), (2, 2, 2), (9, 5, 5)])
def test_a_peer_makes_four_steps_of_an_update_and_a_learner_one_where_nothing_is_configured(
    policy: Policy, minibatches: int | None, of_a_peer: int, of_a_learner: int
) -> None:
    groups = [_sampled(policy, question) for question in (*QUESTIONS, *QUESTIONS)][:5]
    settings = _settings(minibatches=minibatches)
    peer = PolicyUpdater(copy.deepcopy(policy), settings, MixSettings(), 1.0)
    learner = StreamedUpdater(copy.deepcopy(policy), settings, MixSettings(), Sampling())
    for updater, expected in ((peer, of_a_peer), (learner, of_a_learner)):
        steps: list[int] = []
        updater.optimizer.register_step_post_hook(lambda *_, steps=steps: steps.append(1))
        updater.update(groups, [])
        assert len(steps) == expected


def _same_weights(one: Policy, other: Policy) -> bool:
    return all(map(torch.equal, one.model.parameters(), other.model.parameters()))


@pytest.mark.parametrize("steps", [{}, {"minibatches": 2, "epochs": 2}])
def test_an_abandoned_update_leaves_no_trace(policy: Policy, steps: dict[str, int]) -> None:
    once, twice = copy.deepcopy(policy), copy.deepcopy(policy)
    group = _sampled(policy, QUESTIONS[0])
    updater = StreamedUpdater(twice, _settings(**steps), MixSettings(), Sampling())
    updater.accumulate([_sampled(policy, QUESTIONS[2])])
    updater.accumulate([_sampled(policy, QUESTIONS[1])])
    updater.abandon()
    assert updater.apply().skipped and updater.version == 0, "there is no update to make"
    updater.accumulate([group])
    updater.apply()
    other = StreamedUpdater(once, _settings(**steps), MixSettings(), Sampling())
    other.accumulate([group])
    other.apply()
    for one, two in zip(once.model.parameters(), twice.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=0, rtol=0)


def test_running_out_of_memory_in_the_middle_begins_the_gradient_anew(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = exact(policy)
    groups = [_sampled(policy, question) for question in QUESTIONS]
    smooth, rough = copy.deepcopy(policy), copy.deepcopy(policy)
    expected = StreamedUpdater(smooth, _settings(), MixSettings(), Sampling())
    updater = StreamedUpdater(rough, _settings(), MixSettings(), Sampling())
    plain, calls = updater._gradient._backward, []

    def failing(rows: list) -> None:
        plain(rows)
        calls.append(len(rows))
        if len(calls) == 2:
            raise MemoryError("out of memory")

    monkeypatch.setattr(updater._gradient, "_backward", failing)
    for group in groups:
        expected.accumulate([group])
        updater.accumulate([group])
    assert updater.apply().figures["grad_norm"] == pytest.approx(expected.apply().figures["grad_norm"], rel=1e-9)


def test_a_loss_scale_that_overflows_loses_no_group(policy: Policy) -> None:
    policy.dtype = torch.float16
    smooth, rough = copy.deepcopy(policy), copy.deepcopy(policy)
    expected = StreamedUpdater(smooth, _settings(), MixSettings(), Sampling())
    updater = StreamedUpdater(rough, _settings(), MixSettings(), Sampling())
    updater._gradient._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for question in QUESTIONS:
        expected.accumulate([_sampled(policy, question)])
        updater.accumulate([_sampled(policy, question)])
    report = updater.apply()
    assert not report.skipped and updater.version == 1
    assert report.figures["train/num_sequences"] == len(QUESTIONS) * len(TEXTS)
    assert report.figures["grad_norm"] == pytest.approx(expected.apply().figures["grad_norm"], rel=0.05)


def test_what_a_follower_claims_moves_the_loss_only_so_far(policy: Policy) -> None:
    wild = _claiming(_sampled(policy, QUESTIONS[0]), -50.0)
    updater = StreamedUpdater(policy, _settings(objective="tis", loss={"ratio_cap": 1e9}), MixSettings(), Sampling())
    updater.accumulate([wild])
    report = updater.apply()
    assert report.figures["sampling/importance_sampling_ratio/max"] == pytest.approx(10.0, rel=1e-3)


def test_groups_that_this_policy_cannot_have_sampled_are_told_why(policy: Policy) -> None:
    updater = StreamedUpdater(policy, _settings(), MixSettings(), Sampling())
    good = _sampled(policy, QUESTIONS[0])
    first = good.group.completions[0]

    def with_first(completion: Completion) -> GradedGroup:
        return replace(good, group=replace(good.group, completions=(completion, *good.group.completions[1:])))

    assert updater.refusal(good) is None
    assert updater.refusal(with_first(replace(first, text="another"))) == "wrong_tokens"
    assert updater.refusal(with_first(replace(first, logprobs=()))) == "no_tokens"
    padding = policy.tokenizer.pad_token_id
    hidden = replace(first, token_ids=(padding, *first.token_ids), logprobs=(-20.0, *first.logprobs))
    assert policy.decode(list(hidden.token_ids)) == hidden.text
    assert updater.refusal(with_first(hidden)) == "hidden_tokens", "sampled in the middle once in a long while"
    assert updater.refusal(replace(good, prompt="x " * 5_000)) == "too_long"
    stranger = replace(good, group=replace(good.group, policy=PolicyId("random", "another", 0)))
    assert updater.refusal(stranger) == "other_policy"
    hot = replace(good, group=replace(good.group, sampling=replace(good.group.sampling, temperature=0.5)))
    assert updater.refusal(hot) == "other_sampling"
    cut = replace(good, group=replace(good.group, sampling=replace(good.group.sampling, top_p=0.9)))
    assert updater.refusal(cut) == "other_sampling"


def test_mixed_denominators_are_refused(policy: Policy) -> None:
    with pytest.raises(PolicyError, match="behaviour_kl"):
        StreamedUpdater(policy, _settings(objective="dapo", behaviour_kl=0.1), MixSettings(), Sampling())


def _auditor(policy: Policy, fraction: float = 1.0, num_kept: int = 3) -> SnapshotAuditor:
    return SnapshotAuditor(
        lambda: copy.deepcopy(policy), Sampling(), fraction=fraction, tolerance=0.05, num_kept=num_kept
    )


def _versions(policy: Policy, count: int) -> list[Policy]:
    """The policy after some updates that change what it says."""
    made = [copy.deepcopy(policy)]
    for _ in range(count - 1):
        twin = copy.deepcopy(made[-1])
        updater = StreamedUpdater(twin, _settings(), MixSettings(), Sampling())
        updater.accumulate([_sampled(twin, QUESTIONS[0])])
        updater.apply()
        made.append(twin)
    assert [each.version for each in made] == list(range(count))
    return made


def test_snapshots_are_what_was_trained(policy: Policy) -> None:
    updater = StreamedUpdater(policy, _settings(), MixSettings(), Sampling())
    updater.accumulate([_sampled(policy, QUESTIONS[0])])
    updater.apply()
    other = copy.deepcopy(policy)
    torch.nn.init.zeros_(next(iter(other.model.parameters())))
    swap_weights(other, unpacked(packed_by(updater)), updater.version)
    assert packed(other.weights) == packed(policy.weights)


def test_where_only_adapters_change_only_they_are_in_a_snapshot(policy: Policy) -> None:
    whole = len(packed(policy.weights))
    policy.adapters = Adapters(policy.model, LoraSettings(rank=2))
    sent = packed_by(StreamedUpdater(policy, _settings(), MixSettings(), Sampling()))
    assert set(unpacked(sent)) == set(policy.weights) and all(".lora_" in name for name in unpacked(sent))
    assert len(sent) < whole / 8


def test_an_honest_worker_passes_and_liars_are_told(policy: Policy) -> None:
    versions = _versions(policy, 3)
    auditor = _auditor(policy)
    for each in versions:
        auditor.keep(each.version, held(packed(each.weights)))
    honest = _sampled(versions[1], QUESTIONS[1])
    assert auditor.verdict(honest) is None
    assert auditor.verdict(_claiming(honest, -0.5)) == "wrong_logprobs"

    def naming(group: GradedGroup, version: int) -> GradedGroup:
        spans = tuple(replace(c, versions=(VersionSpan(version, len(c.token_ids)),)) for c in group.group.completions)
        return replace(group, group=replace(group.group, completions=spans))

    assert auditor.verdict(naming(_sampled(versions[0], QUESTIONS[1]), 2)) == "wrong_logprobs", "an old policy's"
    assert auditor.verdict(naming(honest, 7)) == "wrong_version"


def test_a_spot_check_is_split_to_fit_and_left_out_where_nothing_fits(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor = _auditor(policy)
    auditor.keep(0, held(packed(policy.weights)))
    honest = _sampled(policy, QUESTIONS[1])
    whole = auditor._compared(honest)[0]
    auditor._budget = TokenBudget(1)
    assert auditor._compared(honest)[0] == pytest.approx(whole, abs=1e-5), "row by row"

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(auditor, "_within", full)
    assert auditor.verdict(_claiming(honest, -0.5)) is None, "the learner goes on"


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_worker_is_judged_by_the_rounded_weights_that_it_was_sent(policy: Policy, precision: Precision) -> None:
    updater = StreamedUpdater(policy, _settings(), MixSettings(), Sampling(), precision=precision)
    sent = packed_by(updater)
    auditor = SnapshotAuditor(lambda: copy.deepcopy(policy), Sampling(), fraction=1.0, tolerance=1e-5, num_kept=1)
    auditor.keep(0, held(sent))
    worker = copy.deepcopy(policy)
    swap_weights(worker, unpacked(sent), 0)
    rounded = _sampled(worker, QUESTIONS[1])
    assert auditor.verdict(rounded) is None
    assert auditor.verdict(_sampled(policy, QUESTIONS[1])) == "wrong_logprobs", "they differ by the rounding"
    updater.accumulate([rounded])
    assert updater.apply().figures["sampling/sampling_logp_difference/mean"] > 1e-5, "which the update reports"


def test_tokens_are_checked_under_the_version_that_sampled_each(policy: Policy) -> None:
    versions = _versions(policy, 2)
    auditor = _auditor(policy)
    for each in versions:
        auditor.keep(each.version, held(packed(each.weights)))
    old, new = (_sampled(each, QUESTIONS[1]) for each in versions)
    mixed = []
    for first, second in zip(old.group.completions, new.group.completions, strict=True):
        cut = len(first.token_ids) // 2
        spans = (VersionSpan(0, cut), VersionSpan(1, len(first.token_ids) - cut))
        mixed.append(replace(first, logprobs=first.logprobs[:cut] + second.logprobs[cut:], versions=spans))
    group = replace(old, group=replace(old.group, completions=tuple(mixed)))
    assert auditor.verdict(group) is None
    swapped = [replace(c, versions=tuple(VersionSpan(1 - s.version, s.num_tokens) for s in c.versions)) for c in mixed]
    assert auditor._compared(group)[0] < 1e-4
    assert auditor._compared(replace(group, group=replace(group.group, completions=tuple(swapped))))[0] > 1e-2


def _three_versions(policy: Policy) -> tuple[list[Policy], SnapshotAuditor]:
    """Weights far apart, and an auditor that keeps them."""
    versions = [policy, *(_far_away(policy, seed) for seed in range(2))]
    auditor = SnapshotAuditor(lambda: copy.deepcopy(policy), Sampling(), fraction=1.0, tolerance=1e-3, num_kept=3)
    for version, each in enumerate(versions):
        auditor.keep(version, held(packed(each.weights)))
    return versions, auditor


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_weights_that_change_within_completions_make_nobody_a_liar(
    policy: Policy, kv: Literal["keep", "recompute"]
) -> None:
    """The versions differ so much that only tokens scored with the engine's own cache agree."""
    versions, auditor = _three_versions(policy)
    sampler, steps = copy.deepcopy(policy), iter(range(100))

    def between_steps() -> bool:
        if (step := next(steps)) in (2, 5):
            version = 1 if step == 2 else 2
            engine.swap(versions[version].weights, version)
        return False

    engine = TransformersEngine(sampler, GenerationSettings(kv=kv), between_steps)
    (answers,) = engine.generate([QUESTIONS[0]], 4, Sampling(max_new_tokens=8), 0)
    assert not isinstance(answers, Rejection) and max(len(each.versions) for each in answers) == 3
    identity = PolicyId("random", policy.tokenizer_hash, 0)
    group = GradedGroup(rollout_group(completions=answers, rewards=REWARDS, policy=identity), QUESTIONS[0], REWARDS)
    assert auditor.verdict(group) is None
    assert auditor.verdict(_claiming(group, -0.01)) == "wrong_logprobs"


@pytest.mark.parametrize("filters", [{"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.05}, {"top_p": 0.9, "top_k": 40}])
def test_filters_make_nobody_a_liar(policy: Policy, filters: dict[str, float]) -> None:
    """An engine reports the probabilities of what its filters leave."""
    sampler, steps = _far_away(policy, 0), iter(range(100))
    later = _far_away(policy, 1)
    sampling = Sampling(max_new_tokens=12, temperature=0.7, **filters)
    auditor = SnapshotAuditor(lambda: copy.deepcopy(policy), sampling, fraction=1.0, tolerance=1e-3, num_kept=2)
    auditor.keep(0, held(packed(sampler.weights)))
    auditor.keep(1, held(packed(later.weights)))

    def between_steps() -> bool:
        if next(steps) == 5:
            engine.swap(later.weights, 1)
        return False

    engine = TransformersEngine(sampler, GenerationSettings(), between_steps)
    (answers,) = engine.generate([QUESTIONS[0]], 4, sampling, 0)
    assert not isinstance(answers, Rejection) and max(len(each.versions) for each in answers) == 2
    group = rollout_group(
        completions=answers,
        rewards=REWARDS,
        policy=PolicyId("random", policy.tokenizer_hash, 0),
        sampling=sampling,
    )
    graded = GradedGroup(group, QUESTIONS[0], REWARDS)
    assert auditor.verdict(graded) is None
    assert auditor.verdict(_claiming(graded, -0.01)) == "wrong_logprobs"


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_weights_that_change_within_and_between_turns_make_nobody_a_liar(
    policy: Policy, kv: Literal["keep", "recompute"]
) -> None:
    """Turns 1 and 2 are kept; the second change comes within turn 3, and turn 4 begins with the new weights."""
    versions, auditor = _three_versions(policy)
    steps = iter(range(1000))

    def between_steps() -> bool:
        if (step := next(steps)) in (9, 20):
            version = 1 if step == 9 else 2
            engine.swap(versions[version].weights, version)
        return False

    engine = TransformersEngine(copy.deepcopy(policy), GenerationSettings(kv=kv), between_steps)
    game = Play(4)
    turns: dict[int, list[Completion]] = {}
    for turn, said in game.run(engine):
        turns.setdefault(turn.episode, []).append(said)
    shown = (SHOWN,) * 3
    completions = tuple(joined(turns[episode], shown) for episode in (0, 1))
    assert {span.version for c in completions for span in c.versions} == {0, 1, 2}
    assert any(len(each.versions) > 1 for episode in turns.values() for each in episode), "within a turn, too"
    identity = PolicyId("random", policy.tokenizer_hash, 0)
    group = rollout_group(completions=completions, rewards=REWARDS[:2], policy=identity)
    graded = GradedGroup(group, PROMPTS[0], REWARDS[:2], (shown, shown))
    assert auditor.verdict(graded) is None
    assert auditor.verdict(_claiming(graded, -0.01)) == "wrong_logprobs"


def _far_away(policy: Policy, seed: int) -> Policy:
    """Another policy of the same shape."""
    other = copy.deepcopy(policy)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.model.parameters():
            weight += weight.std() * torch.randn(weight.shape, generator=source)
    return other


def test_a_sample_is_checked_a_newcomer_at_once_and_a_liar_always(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor = _auditor(policy, fraction=0.1)
    auditor.keep(0, held(packed(policy.weights)))
    engine = TransformersEngine(policy, GenerationSettings())
    answers = engine.generate([QUESTIONS[0]] * 310, 2, Sampling(max_new_tokens=4), 0)
    identity = PolicyId("random", policy.tokenizer_hash, 0)
    good, *more = [
        GradedGroup(rollout_group(completions=each, rewards=REWARDS[:2], policy=identity), QUESTIONS[0], REWARDS[:2])
        for each in answers
        if not isinstance(each, Rejection)
    ]
    lie = _claiming(good, -1.0)
    assert auditor.verdict(lie) == "wrong_logprobs"
    assert auditor.verdict(lie) == "wrong_logprobs"
    for group in (good, *more[:9]):
        assert auditor.verdict(group) is None
    checked = readers.calls_of(monkeypatch, auditor, "_compared")
    for group in more[9:]:
        assert auditor.verdict(group) is None
    assert 10 <= len(checked) <= 60
    blind = _auditor(policy, fraction=0.0)
    blind.keep(0, held(packed(policy.weights)))
    checked = readers.calls_of(monkeypatch, blind, "_compared")
    assert blind.verdict(lie) is None and not checked


def test_what_was_published_before_the_snapshots_kept_cannot_be_judged(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor = _auditor(policy, num_kept=1)
    checked = readers.calls_of(monkeypatch, auditor, "_compared")
    group = _sampled(policy, QUESTIONS[0])
    assert auditor.verdict(group) is None, "a learner that was just restarted knows nothing"
    auditor.keep(4, held(packed(policy.weights)))
    auditor.keep(6, held(packed(policy.weights)))
    assert auditor.verdict(_claiming(group, -math.log(9))) is None
    assert not checked
