from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from swarm.algorithms.losses import LOSSES
from swarm.errors import NonFiniteUpdates
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer, Scores
from swarm.sapo.mixing import MixSettings
from swarm.training import rows, updater as updaters
from swarm.training.config import UpdateSettings
from swarm.training.forward import ForwardRunner
from swarm.training.gradient import Objective
from swarm.training.rows import Row
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup, PolicyId, Tools
from tests.algorithms import loops
from tests.example_groups import rollout_group
from tests.policy.completions import completion_logprobs
from tests.policy.exact import exact

PROMPT = "Calculate 12 + 7."
TEXTS = ("<answer>19</answer>", "19", "<answer>3</answer>", "a rather long completion that is wrong")


def _group(policy: Policy, rewards: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0), ids: bool = True) -> GradedGroup:
    completions = []
    for text in TEXTS:
        tokens = [*policy.tokenizer.encode(text), policy.tokenizer.eos_token_id] if ids else []
        logprobs = _logprobs(policy, tokens) if ids else ()
        completions.append(Completion(text, "stop", tuple(tokens), logprobs))
    group = rollout_group(
        completions=tuple(completions), rewards=rewards, policy=PolicyId("random", policy.tokenizer_hash, 0)
    )
    return GradedGroup(group, PROMPT, rewards)


def _logprobs(policy: Policy, tokens: list[int]) -> tuple[float, ...]:
    with torch.no_grad():
        return tuple(completion_logprobs(policy, [policy.encode_prompt(PROMPT)], [tokens], 1.0)[0].tolist())


def _row(**values: object) -> Row:
    return dataclasses.replace(Row([1], [2, 3], 0.0, None), **values)


def _updater(policy: Policy, mix: MixSettings | None = None, **settings: object) -> PolicyUpdater:
    return PolicyUpdater(policy, UpdateSettings(learning_rate=1e-3, **settings), mix or MixSettings(), 1.0)


def _likelihood(policy: Policy, text: str) -> float:
    return sum(_logprobs(policy, policy.encode_completions([Completion(text, "stop")])[0]))


def test_the_updater_of_a_large_policy_on_a_cpu_keeps_freed_memory(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(updaters, "keep_free_memory", lambda: calls.append(updaters.LARGE))
    num_trained = sum(weight.numel() for weight in policy.trained)
    for large in (num_trained + 1, num_trained):
        monkeypatch.setattr(updaters, "LARGE", large)
        _updater(policy)
    assert policy.device.type == "cpu" and calls == [num_trained]


@pytest.mark.parametrize("external", [False, True])
def test_an_update_raises_what_was_rewarded_and_lowers_the_rest(policy: Policy, external: bool) -> None:
    group = _group(policy, ids=not external)
    before = [_likelihood(policy, text) for text in TEXTS]
    updater = _updater(policy)
    report = updater.update([], [group]) if external else updater.update([group], [])
    after = [_likelihood(policy, text) for text in TEXTS]
    assert not report.skipped and updater.version == 1
    assert report.figures["train/num_sequences"] == 4
    assert after[0] > before[0]
    assert after[3] < before[3]


def test_local_and_external_groups_of_the_same_text_give_the_same_gradient(policy: Policy) -> None:
    policy = exact(policy)
    twin = copy.deepcopy(policy)
    _updater(policy).update([_group(policy)], [])
    _updater(twin, MixSettings(external_negative_weight=1.0)).update([], [_group(twin, ids=False)])
    for ours, theirs in zip(policy.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_the_update_does_not_depend_on_the_micro_batch_size(policy: Policy) -> None:
    policy = exact(policy)
    results: list[tuple[float, float]] = []
    weights: list[list[torch.Tensor]] = []
    for budget in (1, 64, 100_000):
        twin = copy.deepcopy(policy)
        report = _updater(twin, micro_batch_tokens=budget).update([_group(twin)], [_group(twin, (0.0, 1.0, 1.0, 0.0))])
        results.append((report.figures["loss"], report.figures["grad_norm"]))
        weights.append(list(twin.model.parameters()))
    assert results[0] == pytest.approx(results[1], abs=1e-9)
    assert results[0] == pytest.approx(results[2], abs=1e-9)
    for one, other in zip(weights[0], weights[2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_clipping_acts_from_the_second_step_on(policy: Policy) -> None:
    once = _updater(copy.deepcopy(policy)).update([_group(policy)], [])
    often = PolicyUpdater(policy, UpdateSettings(learning_rate=2e-2, epochs=6), MixSettings(), 1.0)
    assert once.figures["clip_ratio/region_mean"] == 0
    assert often.update([], [_group(policy, ids=False)]).figures["clip_ratio/region_mean"] > 0


def test_without_old_logprobs_the_clip_never_acts(policy: Policy) -> None:
    mix = MixSettings(external_old_logprobs="none")
    updater = PolicyUpdater(policy, UpdateSettings(learning_rate=2e-2, epochs=6), mix, 1.0)
    assert updater.update([], [_group(policy, ids=False)]).figures["clip_ratio/region_mean"] == 0


def test_behaviour_logprobs_are_used_only_for_ids_that_mean_the_graded_text(policy: Policy) -> None:
    mix = MixSettings(external_old_logprobs="behaviour", external_negative_weight=0.25)
    group = _group(policy)
    # A sampler that claims to have been almost certain: the ratio falls below the clip where the advantage is < 0.
    certain = tuple(
        Completion(c.text, "stop", c.token_ids, tuple(-1e-3 for _ in c.logprobs)) for c in group.group.completions
    )
    claimed = GradedGroup(rollout_group(completions=certain, policy=group.group.policy), PROMPT, group.rewards)
    assert _updater(copy.deepcopy(policy), mix).update([], [claimed]).figures["clip_ratio/region_mean"] > 0.5
    doubting = tuple(Completion(c.text, "stop", c.token_ids, tuple(-60.0 for _ in c.logprobs)) for c in certain)
    doubts = GradedGroup(rollout_group(completions=doubting, policy=group.group.policy), PROMPT, group.rewards)
    assert abs(_updater(copy.deepcopy(policy), mix).update([], [doubts]).figures["loss"]) < 10, (
        "a claim cannot own the gradient"
    )
    padded = tuple(
        Completion(c.text, "stop", (*[policy.pad_id] * 400, *c.token_ids), (*[-1.0] * 400, *c.logprobs))
        for c in certain
    )
    padding = GradedGroup(rollout_group(completions=padded, policy=group.group.policy), PROMPT, group.rewards)
    assert _updater(copy.deepcopy(policy), mix).update([], [padding]).figures["train/num_tokens"] < 400
    lying = tuple(Completion(c.text, "stop", (7, *c.token_ids), (-1e-3, *c.logprobs)) for c in certain)
    lies = GradedGroup(rollout_group(completions=lying, policy=group.group.policy), PROMPT, group.rewards)
    assert _updater(copy.deepcopy(policy), mix).update([], [lies]).figures["clip_ratio/region_mean"] == 0


def test_negative_weight_scales_only_external_completions_with_negative_advantage(policy: Policy) -> None:
    only_positive = MixSettings(external_negative_weight=0.0)
    before = [_likelihood(policy, text) for text in TEXTS]
    report = _updater(policy, only_positive).update([], [_group(policy, ids=False)])
    assert report.figures["loss"] == pytest.approx(-1.5 / 4, abs=1e-5), (
        "-A of the one rewarded completion, over four rows"
    )
    assert _likelihood(policy, TEXTS[0]) > before[0]


@pytest.mark.parametrize("objective", LOSSES)
def test_completions_without_an_advantage_count_in_the_means_and_cost_no_pass(
    policy: Policy, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = exact(policy)
    groups = [_group(policy)], [_group(policy, (0.0, 1.0, 0.0, 0.0), ids=False)]
    passed: list[list[Row]] = []
    real = ForwardRunner.scores

    def counted(runner: ForwardRunner, rows: Sequence[Row]) -> Scores:
        passed.append(list(rows))
        return real(runner, rows)

    monkeypatch.setattr(ForwardRunner, "scores", counted)
    whole, part = copy.deepcopy(policy), copy.deepcopy(policy)
    report = _updater(part, objective=objective).update(*groups)
    assert sum(map(len, passed)) == 4 + 1, "the own group, and what was right of the other"
    monkeypatch.setattr(Objective, "has_gradient", lambda objective, row: True)
    full = _updater(whole, objective=objective).update(*groups)
    assert sum(map(len, passed)) == 5 + 8
    for name in ("loss", "grad_norm", "train/num_sequences", "train/num_tokens"):
        assert report.figures[name] == pytest.approx(full.figures[name], rel=1e-9), name
    for ours, theirs in zip(part.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("settings", [{}, {"micro_batch_tokens": 40}, {"batching": "padded", "epochs": 2}], ids=str)
@pytest.mark.parametrize("objective", LOSSES)
def test_equal_completions_are_computed_once(
    policy: Policy, objective: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = exact(policy)
    groups = [_again(_group(policy), (0, 1, 0, 2, 0, 1)), _again(_group(policy, ids=False), (0, 0, 3, 2))]
    mix = MixSettings(external_negative_weight=0.5)
    passes = _passes(monkeypatch)
    once, twin = copy.deepcopy(policy), copy.deepcopy(policy)
    report = _updater(once, mix, objective=objective, **settings).update(groups[:1], groups[1:])
    num_once = sum(len(row.completion) for rows, learns in passes if learns for row in rows)
    passes.clear()
    monkeypatch.setattr(ForwardRunner, "_input", lambda runner, row: id(row))
    expected = _updater(twin, mix, objective=objective, **settings).update(groups[:1], groups[1:])
    assert 0 < num_once < sum(len(row.completion) for rows, learns in passes if learns for row in rows)
    assert report.figures == pytest.approx(expected.figures, rel=1e-7, abs=1e-9, nan_ok=True)
    for ours, theirs in zip(once.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=0)


def test_what_others_wrote_alike_is_computed_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = _passes(monkeypatch)
    rewards = (1.0, 1.0, 1.0, 0.0)
    _updater(policy, minibatches=1).update([], [_again(_group(policy, rewards, ids=False), (0, 0, 1, 2, 3, 0))])
    lengths = [len(rows) for rows, _ in passes]
    assert lengths == [3], "five are right, three of them distinct; the wrong one counts for nothing"


def test_the_reference_computes_equal_completions_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count once in the tokens of a pass, which would else be larger than memory allows."""
    group = _again(_group(policy), (0, 1) * 8)
    passes = _passes(monkeypatch)
    settings = UpdateSettings(reference_kl=0.1, minibatches=1)
    PolicyUpdater(policy, settings, MixSettings(), 1.0, reference=copy.deepcopy(policy)).update([group], [])
    assert [(len(rows), learns) for rows, learns in passes] == [(2, False), (2, True)]


def _passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Row], bool]]:
    """Will hold the rows of each pass, and whether it is for a gradient."""
    found: list[tuple[list[Row], bool]] = []
    real = Scorer.__call__

    def counted(scorer: Scorer, rows: Sequence[Row]) -> Scores:
        found.append((list(rows), torch.is_grad_enabled()))
        return real(scorer, rows)

    monkeypatch.setattr(Scorer, "__call__", counted)
    return found


def _again(group: GradedGroup, indices: Sequence[int]) -> GradedGroup:
    """A group of these completions of another."""
    rewards = tuple(group.rewards[index] for index in indices)
    completions = tuple(group.group.completions[index] for index in indices)
    return replace(group, group=replace(group.group, completions=completions, rewards=rewards), rewards=rewards)


def test_log_probabilities_are_read_of_what_is_wanted_alone(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Row] = []
    real = ForwardRunner.logprobs

    def counted(runner: ForwardRunner, rows: Sequence[Row]) -> list[list[float]]:
        read.extend(rows)
        return real(runner, rows)

    monkeypatch.setattr(ForwardRunner, "logprobs", counted)
    group, wanted = _group(policy, ids=False), [True, False, False, True]
    (everything,) = _updater(policy).read([group])
    assert len(read) == 4
    (part,) = _updater(policy).read([group], [wanted])
    assert len(read) == 4 + 2
    for flag, (whole,), (found,) in zip(wanted, everything, part, strict=True):
        assert found.ids == whole.ids
        assert list(found.logprobs) == (pytest.approx(whole.logprobs, abs=1e-6) if flag else [])
    updater = _updater(policy, minibatches=2)
    updater.read([group], [[True, False, False, False]])
    assert len(read) == 6 + 1
    updater.update([], [group, _group(policy, (0.0, 1.0, 0.0, 0.0), ids=False)])
    assert len(read) == 7 + 1, "several steps need what is raised, and have what the screen has read"


@pytest.mark.parametrize("penalty", ["reference_kl", "behaviour_kl"])
def test_a_penalty_covers_completions_without_an_advantage(policy: Policy, penalty: str) -> None:
    taught = _row(advantage=0.0)
    assert not Objective(UpdateSettings()).has_gradient(taught)
    assert Objective(UpdateSettings(**{penalty: 0.1})).has_gradient(taught)


def test_a_row_has_a_gradient_if_one_of_its_tokens_has_an_advantage() -> None:
    has_gradient = Objective(UpdateSettings()).has_gradient
    assert has_gradient(_row(advantage=-0.5))
    assert has_gradient(_row(advantage=0.0, turn_advantages=(0.0, 0.5)))
    assert has_gradient(_row(advantage=0.0, added=(0.0, 0.1)))
    assert has_gradient(_row(advantage=1.0, token_factors=(0.0, 0.5)))
    assert not has_gradient(_row(advantage=1.0, token_factors=(0.0, 0.0)))
    assert not has_gradient(_row(advantage=0.0, turn_advantages=(0.0, 0.0)))


def test_an_update_of_completions_without_advantages_is_still_a_step(policy: Policy) -> None:
    read = policy.encode_completions([Completion(text, "stop") for text in TEXTS])
    group = replace(_group(policy, ids=False), factors=tuple((0.0,) * len(tokens) for tokens in read))
    report = _updater(policy).update([], [group])
    assert not report.skipped and report.figures["grad_norm"] == 0


def test_gdpo_weighs_the_advantages_of_named_rewards_of_own_groups(policy: Policy) -> None:
    parts = {"answer": (1.0, 0.0, 0.0, 0.0), "format": (0.0, 0.0, 1.0, 1.0), "silent": (0.0, 1.0, 0.0, 0.0)}
    group = replace(_group(policy), rewards=(0.75, 0.0, 0.25, 0.25), parts=parts)
    weights = {group.group.question.task: {"answer": 3.0, "format": 1.0, "silent": 0.0}}

    def advantages(advantage: str, given: GradedGroup, external: bool = False) -> list[float]:
        settings = UpdateSettings(advantage=advantage)
        updater = PolicyUpdater(policy, settings, MixSettings(external_negative_weight=1.0), 1.0, None, weights)
        rows = updater._reader.external(given) if external else updater._reader.local(given, 0)
        return [row.advantage for row in rows]

    answer, form = (loops.advantages("grpo", list(parts[name])) for name in ("answer", "format"))
    expected = [(3 * a + f) / 4 for a, f in zip(answer, form, strict=True)]
    assert advantages("gdpo", group) == pytest.approx(expected)
    assert advantages("grpo", group) == pytest.approx(loops.advantages("grpo", list(group.rewards)))
    without = replace(group, parts={})
    assert advantages("gdpo", without) == advantages("grpo", without)
    screened = advantages("grpo", group, external=True)
    assert advantages("gdpo", group, external=True) == screened, "no completion is raised that was not screened"


def test_gdpo_has_no_credit_by_turn() -> None:
    with pytest.raises(ValueError, match="credit must be episode with advantage gdpo"):
        UpdateSettings(advantage="gdpo", credit="turn")
    with pytest.raises(ValueError, match="credit must be episode with advantage maxrl"):
        UpdateSettings(advantage="maxrl", credit="turn")


@pytest.mark.parametrize("objective", sorted(LOSSES))
@pytest.mark.parametrize("external", [False, True])
def test_factors_scale_the_advantages_of_single_tokens(policy: Policy, objective: str, external: bool) -> None:
    policy = exact(policy)
    group = _group(policy)
    lengths = [len(completion.token_ids) for completion in group.group.completions]
    nothing = replace(group, factors=tuple((0.0,) * length for length in lengths))
    half = replace(group, factors=tuple((0.5,) * length for length in lengths))
    # Only the first completion's first token counts.
    first = replace(group, factors=((1.0, *(0.0,) * (lengths[0] - 1)), *nothing.factors[1:]))

    def gradient(given: GradedGroup) -> float:
        updater = _updater(copy.deepcopy(policy), objective=objective)
        report = updater.update([], [given]) if external else updater.update([given], [])
        return report.figures["grad_norm"]

    whole = gradient(group)
    assert gradient(nothing) == pytest.approx(0, abs=1e-12)
    assert gradient(half) == pytest.approx(whole / 2, rel=1e-6)
    assert 0 < gradient(first) < whole


def test_completions_of_others_are_scored_as_their_text_reads_here(policy: Policy) -> None:
    updater = _updater(policy)
    groups = [_group(policy, ids=False), _group(policy, (0.0, 1.0, 0.0, 0.0), ids=False)]
    scored = updater.read(groups)
    assert [len(each) for each in scored] == [4, 4] and updater.version == 0
    for text, (turn,) in zip(TEXTS, scored[1], strict=True):
        (ids,) = policy.encode_completions([Completion(text, "stop")])
        assert list(turn.ids) == list(ids)
        assert turn.logprobs == pytest.approx(_logprobs(policy, ids), abs=1e-4)
    cut = [Completion("", "length"), Completion("19", "stop")]
    empty = GradedGroup(rollout_group(completions=tuple(cut)), PROMPT, (0.0, 1.0))
    ((nothing, something),) = updater.read([empty])
    assert nothing == [] and len(something) == 1 and len(something[0].ids) > 0


def test_completions_of_others_are_scored_in_the_tokens_that_an_update_trains_on(policy: Policy) -> None:
    group = _group(policy)
    spelled = tuple(
        token for letter in TEXTS[0] for token in policy.tokenizer.encode(letter, add_special_tokens=False)
    ) + (policy.tokenizer.eos_token_id,)
    first = Completion(TEXTS[0], "stop", spelled, (-1.0,) * len(spelled))
    letters = replace(group, group=replace(group.group, completions=(first, *group.group.completions[1:])))
    believing = _updater(policy, MixSettings(external_old_logprobs="behaviour"))
    assert believing.read([letters])[0][0][0].logprobs == pytest.approx(_logprobs(policy, list(spelled)), abs=1e-4)
    assert _updater(policy).read([letters]) == _updater(policy).read([group]), "it trains on the text's tokens"


def test_an_update_of_several_steps_takes_what_the_screen_has_read(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' texts are tokenized once, and scored once between two changes of the weights."""
    tokenized: list[str] = []
    encode = Policy.encode_completions

    def counted(self: Policy, completions: Sequence[Completion], tools: Tools | None = None) -> list[list[int]]:
        tokenized.extend(each.text for each in completions)
        return encode(self, completions)

    monkeypatch.setattr(Policy, "encode_completions", counted)
    groups = [_group(policy, ids=False), _group(policy, (0.0, 1.0, 0.0, 0.0), ids=False)]
    fresh, reading = (_updater(exact(policy), minibatches=2) for _ in range(2))  # batches of different size round apart
    fresh.update([], groups)
    tokenized.clear()
    scored: list[int] = []
    logprobs = reading._runner.logprobs
    monkeypatch.setattr(reading._runner, "logprobs", lambda rows: scored.append(len(rows)) or logprobs(rows))
    assert all(reading.fits(group) for group in groups)
    before = reading.read(groups)
    reading.update([], groups)
    assert sorted(tokenized) == sorted(TEXTS)
    assert sum(scored) == len(TEXTS), "the second group has the same texts"
    ours, theirs = (each._policy.model.state_dict() for each in (reading, fresh))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-9) for name in theirs), "the same update"
    after = reading.read(groups)
    assert sum(scored) == 2 * len(TEXTS), "by other weights"
    assert after[0][0][0].logprobs[0] != before[0][0][0].logprobs[0]


def test_few_tokens_of_texts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_REMEMBERED_TOKENS", 6)
    asked: list[str] = []

    def encode(completions: Sequence[Completion], tools: Tools | None = None) -> list[list[int]]:
        asked.extend(each.text for each in completions)
        return [[ord(letter) for letter in each.text] for each in completions]

    remembered = rows.RememberedTokens(encode)
    first, second = Completion("abc", "stop"), Completion("defgh", "stop")
    assert remembered([first, first]) == [[97, 98, 99]] * 2 and asked == ["abc"]
    remembered([second])
    assert remembered([first, second]) == [[97, 98, 99], [100, 101, 102, 103, 104]]
    assert asked == ["abc", "defgh", "abc"], "the oldest is forgotten"
    endless = Completion("x" * 9, "stop")
    assert remembered([endless]) == [[120] * 9], "longer than all that may be remembered"


def test_nothing_to_learn_from_is_no_update(policy: Policy) -> None:
    updater = _updater(policy)
    assert updater.update([], []).skipped
    assert updater.version == 0


def test_non_finite_gradients_change_nothing_and_stop_after_a_while(policy: Policy) -> None:
    updater = _updater(policy, max_nonfinite_steps=2)
    group = _group(policy)
    poisoned = tuple(
        Completion(c.text, "stop", c.token_ids, tuple(math.nan for _ in c.logprobs)) for c in group.group.completions
    )
    bad = GradedGroup(rollout_group(completions=poisoned), PROMPT, group.rewards)
    before = copy.deepcopy(policy.model.state_dict())
    assert updater.update([bad], []).skipped
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())
    with pytest.raises(NonFiniteUpdates, match="learning_rate"):
        updater.update([bad], [])


def test_groups_longer_than_the_model_do_not_fit(policy: Policy) -> None:
    updater = _updater(policy)
    assert updater.fits(_group(policy, ids=False))
    endless = GradedGroup(rollout_group(texts=("x" * 600, "y")), PROMPT, (1.0, 0.0))
    assert not updater.fits(endless)


def test_a_text_that_no_tokens_could_cover_is_counted_and_not_read(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    encode = lambda completions, tools: [read.append(completion.text) or [1] for completion in completions]  # noqa: E731
    monkeypatch.setattr(policy, "encode_completions", encode)
    updater = _updater(policy)
    bomb = GradedGroup(rollout_group(texts=("short", "x" * (updater.max_chars + 1))), PROMPT, (1.0, 0.0))
    assert not updater.fits(bomb) and read == []
    assert updater.fits(GradedGroup(rollout_group(texts=("short",)), PROMPT, (1.0,))) and read == ["short"]


def test_a_claim_of_certainty_weighs_no_more_than_one_of_ten_times_the_probability(policy: Policy) -> None:
    group = _group(policy)
    settings = UpdateSettings(learning_rate=1e-3, behaviour_kl=0.1)

    def gradient(nats: float) -> float:
        """Its norm, when the sampler claims to have been so much more certain than this policy."""
        completions = tuple(
            replace(each, logprobs=tuple(min(0.0, logprob + nats) for logprob in each.logprobs))
            for each in group.group.completions
        )
        claimed = replace(group, group=replace(group.group, completions=completions))
        mix = MixSettings(external_old_logprobs="behaviour")
        return PolicyUpdater(copy.deepcopy(policy), settings, mix, 1.0).update([], [claimed]).figures["grad_norm"]

    assert gradient(50.0) == pytest.approx(gradient(math.log(10)), rel=1e-3)
    assert gradient(math.log(10)) > gradient(1.0)


@pytest.mark.parametrize("objective", ["grpo", "gepo"])
def test_absurd_claims_of_a_stranger_end_no_update(policy: Policy, objective: str) -> None:
    updater = _updater(policy, MixSettings(external_old_logprobs="behaviour"), objective=objective)
    honest = _group(policy)
    absurd = tuple(
        Completion(c.text, "stop", c.token_ids, (-1e308,) * len(c.token_ids)) for c in honest.group.completions
    )
    claimed = rollout_group(completions=absurd, policy=PolicyId("stranger", policy.tokenizer_hash, 0))
    assert not updater.update([honest], [GradedGroup(claimed, PROMPT, (1.0, 0.0, 0.0, 0.0))]).skipped


@pytest.mark.parametrize(("objective", "kl"), [*((each, 0.1) for each in LOSSES), ("grpo", 0.0)])
def test_no_objective_depends_on_the_micro_batch_size(policy: Policy, objective: str, kl: float) -> None:
    policy = exact(policy)
    local, external = _group(policy), _group(policy, (0.0, 1.0, 1.0, 0.0), ids=False)
    weights = []
    for budget in (1, 100_000):
        twin = copy.deepcopy(policy)
        updater = _updater(twin, objective=objective, behaviour_kl=kl, micro_batch_tokens=budget, epochs=2)
        assert not updater.update([local], [external]).skipped
        weights.append(list(twin.model.parameters()))
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("objective", LOSSES)
def test_every_objective_raises_what_was_rewarded(policy: Policy, objective: str) -> None:
    before = [_likelihood(policy, text) for text in TEXTS]
    report = _updater(policy, objective=objective, advantage="rloo").update([_group(policy)], [])
    assert report.figures["sampling/ess"] == pytest.approx(1.0, abs=1e-4)
    assert _likelihood(policy, TEXTS[0]) > before[0]
    assert _likelihood(policy, TEXTS[3]) < before[3]


@pytest.mark.parametrize(
    "settings",
    [{"batching": "padded"}, {"gradient_checkpointing": True}, {"gradient_checkpointing": True, "batching": "padded"}],
    ids=str,
)
def test_how_an_update_is_computed_changes_nothing_about_it(policy: Policy, settings: dict[str, object]) -> None:
    policy = exact(policy)
    results = []
    for changed in ({}, settings):
        twin = copy.deepcopy(policy)
        report = _updater(twin, epochs=2, **changed).update([_group(twin)], [_group(twin, (0.0, 1.0, 1.0, 0.0))])
        results.append([report.figures["loss"], report.figures["entropy"], *twin.model.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=0)


def test_gradient_checkpointing_leaves_no_trace_outside_of_updates(policy: Policy) -> None:
    replaced = {name for name, module in policy.model.named_modules() if "forward" in vars(module)}
    _updater(policy, gradient_checkpointing=True).update([_group(policy)], [])
    assert not policy.model.training
    assert {name for name, module in policy.model.named_modules() if "forward" in vars(module)} == replaced


def test_compiled_layers_learn_the_same(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced as ever, but not handed to the machine's compiler, which takes minutes.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    policy = exact(policy)
    reports = []
    for compiled in (False, True):
        twin = copy.deepcopy(policy)
        reports.append(_updater(twin, compile=compiled).update([_group(twin)], []))
    assert reports[1].figures["loss"] == pytest.approx(reports[0].figures["loss"], abs=1e-9)
    assert reports[1].figures["grad_norm"] == pytest.approx(reports[0].figures["grad_norm"], abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_learns_nearly_the_same(policy: Policy, dtype: torch.dtype) -> None:
    reports = []
    for computed_in in (torch.float32, dtype):
        twin = copy.deepcopy(policy)
        twin.dtype = computed_in
        reports.append(_updater(twin).update([_group(policy)], []))
        assert all(parameter.dtype == torch.float32 for parameter in twin.model.parameters())
    assert not reports[1].skipped
    assert reports[1].figures["grad_norm"] == pytest.approx(reports[0].figures["grad_norm"], rel=0.05)


def test_a_loss_scale_that_overflows_is_lowered_and_the_batch_not_lost(policy: Policy) -> None:
    policy.dtype = torch.float16
    updater = _updater(policy)
    updater._gradient._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    report = updater.update([_group(policy)], [])
    assert not report.skipped and updater.version == 1
    assert 1 < updater._gradient._scaler.get_scale() < 2.0**40


def test_the_learning_rate_follows_its_schedule(policy: Policy) -> None:
    updater = _updater(policy, schedule="linear", total_updates=4, warmup_updates=1)
    rates = []
    for _ in range(5):
        updater.update([_group(policy)], [])
        rates.append(updater.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3, 1e-3, 2e-3 / 3, 1e-3 / 3, 0.0])


def test_what_was_read_is_forgotten_beyond_a_bound(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    updater, group = _updater(policy), _group(policy, ids=False)
    first = updater.read([group])
    monkeypatch.setattr(updaters, "MOST_KNOWN_TOKENS", sum(map(len, updater._known.values())) - 1)
    other = replace(group, prompt="Calculate 2 + 7.")
    updater.read([other])
    assert len(updater._known) == len(TEXTS)
    assert updater.read([group]) == first
