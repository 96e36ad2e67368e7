"""Updates on workers' groups: a user's loss, experts, episodes, claims."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarm.config import load_config
from swarm.extras.learner.audit import SnapshotAuditor
from swarm.extras.learner.updater import StreamedUpdater
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import GradedGroup, Sampling
from tests.extras.learner.snapshot_files import held, packed_by
from tests.policy import test_episodes as episodes, test_routing as routing, test_updater as updates

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_learner_can_use_a_loss_of_a_file(policy: Policy) -> None:
    chosen = [("update.objective", f"{EXAMPLES / 'own_loss.py'}:Topr")]
    settings = load_config(command_line=chosen).config.update
    assert StreamedUpdater(policy, settings, MixSettings(), Sampling()).apply().skipped


def test_groups_that_come_one_by_one_meet_their_experts_as_all_at_once_do() -> None:
    experts, groups = routing.experts, routing.groups
    sampled = routing.sampled(experts())
    answers = [[replace(c, routing=routing._elsewhere(c.routing)) for c in group] for group in sampled]
    policy, followed = experts(), experts()
    expected = PolicyUpdater(policy, UpdateSettings(), MixSettings(), 1.0).update(groups(policy, answers), [])
    updater = StreamedUpdater(followed, UpdateSettings(), MixSettings(), Sampling())
    for group in groups(followed, answers):
        updater.accumulate([group])
    without = [[replace(c, routing=b"") for c in group] for group in answers]
    free = PolicyUpdater(experts(), UpdateSettings(), MixSettings(), 1.0).update(groups(policy, without), [])
    for report in (expected, updater.apply()):  # what a follower claims is bounded, so they are not the same
        mismatch = report.figures[routing.MISMATCH]
        assert mismatch > 10 * free.figures[routing.MISMATCH], "the records name other experts"


def test_a_learner_takes_workers_episodes_and_checks_them_with_its_own_observations(policy: Policy) -> None:
    group = episodes.group_of(policy, ids=True)
    learner = StreamedUpdater(policy, UpdateSettings(), MixSettings(), Sampling())
    assert learner.refusal(group) is None
    auditor = SnapshotAuditor(lambda: copy.deepcopy(policy), Sampling(), fraction=1.0, tolerance=1e-3, num_kept=1)
    auditor.keep(0, held(packed_by(learner)))
    assert auditor.verdict(group) is None
    higher, lower = episodes.HIGHER, episodes.LOWER
    elsewhere = GradedGroup(group.group, episodes.PROMPT, episodes.REWARDS, ((higher, lower), (), (lower,)))
    assert auditor.verdict(elsewhere) == "wrong_logprobs", "sampled after other observations"


def test_a_claim_of_certainty_weighs_no_more_than_one_of_ten_times_the_probability(policy: Policy) -> None:
    group = updates._group(policy)
    settings = UpdateSettings(learning_rate=1e-3, behaviour_kl=0.1)

    def gradient(nats: float) -> float:
        """Its norm, when the sampler claims to have been so much more certain than this policy."""
        completions = tuple(
            replace(each, logprobs=tuple(min(0.0, logprob + nats) for logprob in each.logprobs))
            for each in group.group.completions
        )
        learner = StreamedUpdater(copy.deepcopy(policy), settings, MixSettings(), Sampling())
        learner.accumulate([replace(group, group=replace(group.group, completions=completions))])
        return learner.apply().figures["grad_norm"]

    assert gradient(50.0) == pytest.approx(gradient(math.log(10)), rel=1e-3)
    assert gradient(math.log(10)) > gradient(1.0)
