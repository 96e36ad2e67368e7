"""Updates on episodes: the policy's tokens are trained on, the environment's are only read."""

from __future__ import annotations

import copy

import pytest
import torch
from msgspec.structs import replace

from swarm.groups.episodes import joined
from swarm.policy.loading import Policy
from swarm.received.plausibility import Plausibility, PlausibilitySettings
from swarm.received.screening import CandidateScorer
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.rows import RowReader
from swarm.training.updater import PolicyUpdater
from swarm.types import (
    Completion,
    GradedGroup,
    Observation,
    Past,
    PolicyId,
    ReceivedGroup,
    Step,
    StepReward,
    Text,
    Turn,
)
from tests.example_groups import rollout_group
from tests.policy.exact import exact
from tests.sapo.pupil import as_read

PROMPT = "Guess my number from 1 to 7."
HIGHER, LOWER = (Text("higher"),), (Text("lower"),)
EPISODES: tuple[tuple[tuple[str, ...], tuple[Observation, ...]], ...] = (
    (("4", "2", "3"), (LOWER, HIGHER)),
    (("it is 3",), ()),
    (("1", "12"), (HIGHER,)),
)
REWARDS = (1.0, 1.0, 0.0)


def context(policy: Policy, turns: list[list[int]], observations: tuple[Observation, ...]) -> list[int]:
    """What the engine continues after these turns."""
    steps = tuple(Step(tuple(turn), shown) for turn, shown in zip(turns, observations, strict=True))
    return policy.encode(Past(PROMPT, steps) if steps else PROMPT)


def turn_logprobs(policy: Policy, past: list[int], turn: list[int]) -> torch.Tensor:
    """[T] of one turn after its past, without cache, padding or packing; with gradient."""
    logits = policy.model(torch.tensor([[*past, *turn]])).logits[0, len(past) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(turn)[:, None])[:, 0]


def episode_logprobs(policy: Policy, index: int) -> list[torch.Tensor]:
    """Of each turn, one after another."""
    texts, observations = EPISODES[index]
    turns: list[list[int]] = []
    found = []
    for number, text in enumerate(texts):
        turn = policy.encode_completions([Completion(text, "stop")])[0]
        found.append(turn_logprobs(policy, context(policy, turns, observations[:number]), turn))
        turns.append(turn)
    return found


def group_of(policy: Policy, ids: bool) -> GradedGroup:
    completions = []
    for index, (texts, observations) in enumerate(EPISODES):
        turns = []
        for text, logprobs in zip(texts, episode_logprobs(policy, index), strict=True):
            tokens = tuple(policy.encode_completions([Completion(text, "stop")])[0]) if ids else ()
            turns.append(Completion(text, "stop", tokens, tuple(logprobs.tolist()) if ids else ()))
        completions.append(joined(turns, observations))
    group = rollout_group(
        completions=tuple(completions), rewards=REWARDS, policy=PolicyId("random", policy.tokenizer_hash, 0)
    )
    return GradedGroup(group, PROMPT, REWARDS, tuple(observations for _, observations in EPISODES))


def paying(group: GradedGroup) -> GradedGroup:
    """The same episodes, whose first turns also earn a quarter of the reward; the last one is over without more."""
    observations = tuple((shown[0] + (StepReward(0.25),), *shown[1:]) if shown else () for shown in group.observations)
    return GradedGroup(group.group, PROMPT, (1.0, 1.0, 0.25), observations)


def updater_of(policy: Policy, **settings: object) -> PolicyUpdater:
    mix = MixSettings(external_old_logprobs="behaviour", external_negative_weight=1.0)
    return PolicyUpdater(policy, UpdateSettings(learning_rate=1e-3, max_grad_norm=1e9, **settings), mix, 1.0)


def gradients(updater: PolicyUpdater, policy: Policy) -> list[list[torch.Tensor]]:
    """The gradient of each of the optimizer's steps from now on."""
    steps: list[list[torch.Tensor]] = []
    updater.optimizer.register_step_pre_hook(
        lambda *_: steps.append([p.grad.clone() for p in policy.trained if p.grad is not None])
    )
    return steps


def assert_only_gradient(steps: list[list[torch.Tensor]], expected: Policy) -> None:
    """There was one step, with the gradient that another copy of the policy has."""
    (found,) = steps
    wanted = [p.grad for p in expected.trained if p.grad is not None]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize("batching", ["padded", "packed"])
@pytest.mark.parametrize("sender", ["own", "another's text", "another's tokens"])
def test_the_gradient_is_that_of_a_loop_over_the_turns(policy: Policy, batching: str, sender: str) -> None:
    policy = exact(policy)
    group = group_of(policy, ids=sender != "another's text")
    twin = copy.deepcopy(policy)
    updater = updater_of(policy, batching=batching, micro_batch_tokens=100)
    steps = gradients(updater, policy)
    local, external = ([group], []) if sender == "own" else ([], [group])
    report = updater.update(local, external)
    advantages = updater.advantages(REWARDS)
    per_episode = [torch.cat(episode_logprobs(twin, index)) for index in range(len(EPISODES))]
    loss = -sum(a * values.mean() for a, values in zip(advantages, per_episode, strict=True)) / len(EPISODES)
    loss.backward()
    assert report.figures["train/num_tokens"] == sum(map(len, per_episode))
    assert_only_gradient(steps, twin)


@pytest.mark.parametrize("batching", ["padded", "packed"])
@pytest.mark.parametrize("sender", ["own", "another's text"])
def test_turns_are_credited_with_what_they_and_later_ones_earn(policy: Policy, batching: str, sender: str) -> None:
    policy = exact(policy)
    group = paying(group_of(policy, ids=sender == "own"))
    twin = copy.deepcopy(policy)
    updater = updater_of(policy, batching=batching, micro_batch_tokens=100, credit="turn", advantage="dr_grpo")
    steps = gradients(updater, policy)
    local, external = ([group], []) if sender == "own" else ([], [group])
    updater.update(local, external)
    # Still to be earned: 1, 0.75, 0.75 with the turns of the first episode, 1 with that of the second, 0.25, 0.
    first = (1 + 1 + 0.25) / 3
    advantages = [(1 - first, 0.75 - 0.375, 0.0), (1 - first,), (0.25 - first, 0 - 0.375)]
    loss = torch.zeros((), dtype=torch.float64)
    for index, each in enumerate(advantages):
        turns = episode_logprobs(twin, index)
        total = sum(a * values.sum() for a, values in zip(each, turns, strict=True))
        loss = loss - total / sum(map(len, turns)) / len(EPISODES)
    loss.backward()
    assert_only_gradient(steps, twin)


def test_rewards_of_turns_change_nothing_where_the_episode_is_credited(policy: Policy) -> None:
    reader = RowReader(policy, MixSettings(), lambda rewards: rewards)
    plain, paid = group_of(policy, ids=True), paying(group_of(policy, ids=True))
    for one, other in zip(reader.local(plain, 0), reader.local(paid, 0), strict=True):
        assert (one.completion, one.inserts) == (other.completion, other.inserts), "no policy reads them"
        assert not other.turn_advantages


def test_rows_continue_what_the_engine_was_given(policy: Policy) -> None:
    group = group_of(policy, ids=True)
    rows = RowReader(policy, MixSettings(), lambda rewards: rewards).local(group, 0)
    for row, (texts, observations) in zip(rows, EPISODES, strict=True):
        turns = [policy.encode_completions([Completion(text, "stop")])[0] for text in texts]
        read = list(row.prompt)
        done = 0
        for insert in row.inserts:
            read += [*row.completion[done : insert.after], *insert.ids]
            done = insert.after
        assert read == context(policy, turns[:-1], observations)
        assert row.length == len(read) + len(turns[-1])


def test_ids_must_be_those_of_every_turn(policy: Policy) -> None:
    reader = RowReader(policy, MixSettings(external_old_logprobs="behaviour"), lambda rewards: rewards)
    group = group_of(policy, ids=True)
    first = group.group.completions[0]
    assert all(reader.same_tokens(completion) for completion in group.group.completions)
    assert [(turn.num_chars, turn.num_tokens) for turn in first.turns] == [(1, 2)] * 3
    moved = (Turn(1, 3, "stop"), Turn(1, 1, "stop"), Turn(1, 2, "stop"))
    assert not reader.same_tokens(replace(first, turns=moved)), "as a whole they still read the same"


def test_an_episode_that_only_its_observations_make_too_long_does_not_fit(policy: Policy) -> None:
    updater = updater_of(policy)
    group = group_of(policy, ids=False)
    assert updater.fits(group)
    long = (Text("x" * 600),)
    endless = GradedGroup(group.group, PROMPT, REWARDS, ((long, LOWER), (), (HIGHER,)))
    assert not updater.fits(endless)


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_episodes_keep_their_own_observations_when_others_of_their_group_are_improbable(
    policy: Policy, credit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded = replace(group_of(policy, ids=False), rewards=(1.0, 0.2, 0.0), parts={"won": (1.0, 0.2, 0.0)})
    plausibility = Plausibility(PlausibilitySettings())
    for _ in range(8):
        plausibility.learn([[-0.1] * 8, [-0.2] * 8], [1.0, 0.0])
    updater = updater_of(policy, credit=credit)
    scored = [[[each] * 8] * len(turns) for each, (turns, _) in zip((-9.0, -0.1, -9.0), EPISODES, strict=True)]
    monkeypatch.setattr(updater, "read", lambda groups, wanted: as_read([scored]))
    (kept,) = CandidateScorer(updater, plausibility, credit).screen([ReceivedGroup("id", graded)])
    assert kept is not None
    assert len(kept.group.completions) == 2, "the first one is rewarded and improbable, the last one only improbable"
    assert kept.observations == graded.observations[1:]
    assert kept.parts == {"won": (0.2, 0.0)}
    assert not updater.update([], [kept]).skipped
