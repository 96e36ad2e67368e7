"""Each mixing policy on planted candidates and histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from swarm.algorithms.advantages import find_advantage
from swarm.groups.credit import Credit
from swarm.received.plausibility import Plausibility, PlausibilitySettings
from swarm.received.screening import CandidateScorer
from swarm.sapo.mixing import Candidate, Decision, History, Mixer, MixRound, MixSettings
from swarm.sapo.mixing.policies import Auto
from swarm.types import Completion, GradedGroup, ReadTurn, ReceivedGroup, StepReward, Text, Turn
from tests.example_groups import rollout_group
from tests.sapo.mixes import Opinion, candidate, history, names, own_round
from tests.sapo.pupil import Pupil, as_read


def _decide(policy: str, told: History, candidates: Sequence[Candidate] = (), **settings) -> Decision:
    return MixSettings(policy=policy, settings=settings).settings(told, candidates)


def _drawn(candidates: Sequence[Candidate], policy: str, num: int = 500, **settings) -> Counter[str]:
    """How often each candidate is drawn in `num` updates with J = 1."""
    mixer = Mixer(MixSettings(local=0, external=1, policy=policy, settings=settings))
    drawn: Counter[str] = Counter()
    for seed in range(num):
        drawn.update(names(mixer.mix(own_round(), [], candidates, Opinion(), np.random.default_rng(seed)).drawn))
    return drawn


TEN = [candidate(str(k)) for k in range(10)]


def test_advantage_weighs_by_the_mean_magnitude_that_the_update_computes() -> None:
    half, rare = candidate("half", "a", (1.0, 1.0, 0.0, 0.0)), candidate("rare", "b", (1.0, 0.0, 0.0, 0.0))
    drawn = _drawn([half, rare], "advantage")
    # Opinion's advantages are r - mean: 1/2 against 3/8 on average.
    assert abs(drawn["half"] - 500 * 4 / 7) < 50

    class Grpo(Pupil):
        def advantages(self, rewards: Sequence[float]) -> list[float]:
            import torch

            return find_advantage("grpo")(torch.tensor([rewards])).tolist()[0]

    appraisal = CandidateScorer(Grpo(), Plausibility(PlausibilitySettings()))
    assert appraisal.advantages(half.rewards) == pytest.approx((0.866, 0.866, -0.866, -0.866), abs=1e-3)


def test_edge_prefers_what_this_node_solves_half_of_the_time() -> None:
    candidates = [
        candidate("mastered", "a", (1.0, 1.0, 1.0, 0.0), "gcd"),
        candidate("at the edge", "b", (1.0, 0.0, 1.0, 0.0), "lcm"),
        candidate("too hard", "c", (1.0, 0.0, 0.0, 0.0), "primes"),
        candidate("never asked", "d", (1.0, 0.0, 0.0, 0.0), "sums"),
    ]
    told = history(own_round(tasks={"gcd": (95.0, 100), "lcm": (50.0, 100), "primes": (0.0, 100)}))
    found = _decide("edge", told, candidates)
    # p: 0.85, 0.5, 0.125, and 0.25, the group's own, where nothing else is known
    assert found.weights == pytest.approx([0.51, 1.0, 0.4375, 0.75])
    assert (found.local, found.external) == (4, 4)


def test_edge_follows_recent_success() -> None:
    before, now = own_round(tasks={"gcd": (0.0, 10)}), own_round(tasks={"gcd": (10.0, 10)})
    (weight,) = _decide("edge", history(before, *[now] * 3), [candidate()], window_rounds=3).weights
    assert weight == pytest.approx(4 * 0.75 * 0.25)


def test_novelty_prefers_improbable_but_plausible_texts_and_scores_few() -> None:
    candidates = [candidate(f"{k}", f"peer-{k % 20}") for k in range(100)]
    surprisals = {f"{k}": 3.0 if k % 2 else 0.3 for k in range(100)} | {"1": None}
    mixer = Mixer(MixSettings(local=0, external=2, policy="novelty", settings={"oversample": 3, "power": 2}))
    drawn: Counter[str] = Counter()
    for seed in range(300):
        opinion = Opinion(surprisals)
        mixed = mixer.mix(own_round(), [], candidates, opinion, np.random.default_rng(seed))
        assert len(opinion.scored) == 6 and len(mixed.external) == 2
        assert set(names(mixed.drawn)) <= set(opinion.scored)
        drawn.update(names(mixed.drawn))
        assert names(mixed.refused) == tuple({"1"} & set(opinion.scored)), "what is implausible leaves the pool"
    assert drawn["1"] == 0, "refused by the screen"
    surprising = sum(count for name, count in drawn.items() if int(name) % 2)
    assert surprising > 0.9 * drawn.total()


class Reader(Pupil):
    """A policy that knows each text's log-probability, and counts what it scores."""

    def __init__(self) -> None:
        super().__init__()
        self.num_scored: Counter[str] = Counter()
        self.wanted: list[list[bool]] = []

    def read(
        self, groups: Sequence[GradedGroup], wanted: Sequence[Sequence[bool]] | None = None
    ) -> list[list[list[ReadTurn]]]:
        assert wanted is not None
        self.num_scored.update(each.prompt for each in groups)
        self.wanted += [list(flags) for flags in wanted]
        found = as_read([[[[-float(index + 1)] * 4] for index in range(len(each.rewards))] for each in groups])
        return [
            [
                turns if flag else [turn._replace(logprobs=()) for turn in turns]
                for turns, flag in zip(*each, strict=True)
            ]
            for each in zip(found, wanted, strict=True)
        ]


class ByTurn(Pupil):
    """One that finds the second episode's first turn improbable."""

    def read(self, groups: Sequence[GradedGroup], wanted: object = None) -> list[list[list[ReadTurn]]]:
        return as_read([[[[-0.1] * 8, [-0.1] * 8], [[-9.0] * 8, [-0.1] * 8], [[-0.1] * 8, [-0.1] * 8]] for _ in groups])


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_an_improbable_turn_that_an_update_pushes_down_does_not_count_against_its_episode(credit: Credit) -> None:
    """Nor for its surprisal. What makes it improbable is often what makes it bad."""
    earned, rewards = (0.9, 0.0, 0.9), (1.0, 0.5, 1.0)
    completions = tuple(Completion("ab", "stop", turns=(Turn(1, 0, "stop"), Turn(1, 0, "stop"))) for _ in earned)
    group = rollout_group(completions=completions, rewards=rewards)
    graded = GradedGroup(group, "question", rewards, tuple(((Text("go on"), StepReward(each)),) for each in earned))
    plausibility = Plausibility(PlausibilitySettings())
    for _ in range(8):
        plausibility.learn([[-0.1] * 8, [-0.2] * 8], [1.0, 0.0])
    appraisal = CandidateScorer(ByTurn(), plausibility, credit)
    assert appraisal.screen([ReceivedGroup("id", graded)]) == [graded]
    assert appraisal.surprisals([ReceivedGroup("id", graded)]) == [pytest.approx(0.1)]


def test_what_novelty_scored_is_not_scored_again_by_the_screen() -> None:
    reader = Reader()
    candidates = [candidate(str(k), f"peer-{k}") for k in range(30)]
    candidates = [
        Candidate(ReceivedGroup(each.content_id, GradedGroup(each.graded.group, each.content_id, (1.0, 0.0))))
        for each in candidates
    ]
    mixer = Mixer(MixSettings(local=0, external=4, policy="novelty"))
    appraisal = CandidateScorer(reader, Plausibility(PlausibilitySettings()))
    mixed = mixer.mix(own_round(), [], candidates, appraisal, np.random.default_rng(0))
    assert len(mixed.external) == 4
    assert reader.num_scored.total() == 12 == len(reader.num_scored)


def test_surprisal_is_of_plausible_rewarded_completions() -> None:
    appraisal = CandidateScorer(Reader(), Plausibility(PlausibilitySettings()))
    first, second, without_signal = (
        candidate("first", rewards=(1.0, 0.0, 0.0)),
        candidate("second", rewards=(0.0, 1.0, 1.0)),
        candidate("without", rewards=(1.0, 1.0)),
    )
    assert appraisal.surprisals([first, second, without_signal]) == [1.0, 2.5, 0.0]
    strict = Plausibility(PlausibilitySettings(fence=0, slack_nats=0))
    strict.learn([[-1.5] * 4] * 8, [1.0, 0.0] * 4)
    appraisal = CandidateScorer(Reader(), strict)
    assert appraisal.surprisals([first, second]) == [1.0, None], "the rewarded ones of the second are implausible"
    kept, refused = appraisal.screen([first, second])
    assert kept == first.graded and refused is None


def test_what_an_update_would_raise_without_the_implausible_is_screened_too() -> None:
    strict = Plausibility(PlausibilitySettings(fence=0, slack_nats=0))
    strict.learn([[-1.5] * 4] * 8, [1.0, 0.0] * 4)
    reader = Reader()
    appraisal = CandidateScorer(reader, strict)
    # Only the first text is plausible. Without the third, the second one's reward is above the group's mean.
    hidden, harmless = candidate("hidden", rewards=(0.0, 0.4, 1.0)), candidate("harmless", rewards=(0.4, 0.0, 1.0))
    refused, kept = appraisal.screen([hidden, harmless])
    assert refused is None
    assert kept is not None and kept.rewards == (0.4, 0.0)
    assert reader.wanted[:2] == [[False, False, True]] * 2, "only what an update would raise is computed"
    assert reader.wanted[2:] == [[False, True], [True, False]], "and what it would without the implausible"


def test_worth_weighs_senders_once_their_worth_is_known() -> None:
    unknown = [candidate("a", "a"), candidate("b", "b")]
    assert _decide("worth", history(), unknown).weights == [1.0, 1.0]
    known = [candidate("a", "a", worth=1.6), candidate("b", "b", worth=-0.5), candidate("c", "c")]
    found = _decide("worth", history(), known)
    assert found.weights == [1.6, 0.0, 1.0] and found.reason == "worth of 2 senders known"
    assert _decide("worth", history(), known, floor=0.1, unknown=0.5).weights == [1.6, 0.1, 0.5]
    drawn = _drawn(known, "worth")
    assert drawn["b"] == 0 and abs(drawn["a"] - 500 * 1.6 / 2.6) < 50


# auto


def _with_advantages(*candidates: Candidate) -> list[Candidate]:
    return [replace(each, advantages=Opinion().advantages(each.rewards)) for each in candidates]


MANY = _with_advantages(*(candidate(str(k), f"peer-{k}") for k in range(8)))


def _play(auto: Auto, rewards: Sequence[float], informative: int = 4, num_external: int = 4) -> list[Decision]:
    """One round for each reward, with others' groups in the updates."""
    rounds: list[MixRound] = []
    state: dict[str, float] = {}
    decisions = []
    for number, reward in enumerate(map(float, rewards), 1):
        this = own_round(number, reward, informative, 8 - informative, num_external=num_external)
        told = History(4, 4, (*rounds[-255:], this), state)
        decisions.append(auto(told, MANY))
        state = dict(decisions[-1].state)
        rounds.append(this)
    return decisions


def test_auto_fills_the_update_with_others_groups() -> None:
    for informative, external in [(0, 8), (1, 7), (4, 4), (8, 0), (20, 0)]:
        found = _play(Auto(), [0.01 * k for k in range(60)], informative)
        assert {(each.local, each.external) for each in found} == {(8 - external, external)}


def _external(own: int, *worths: float | None) -> int:
    """J for so many own groups and candidates of these worths."""
    candidates = _with_advantages(
        *(candidate(f"{k}", f"{k}", (1.0, 0.0), worth=worth) for k, worth in enumerate(worths))
    )
    return Auto()(history(own_round(informative=own, uninformative=8 - own)), candidates).external


def test_auto_takes_the_number_of_groups_that_promises_the_most_progress() -> None:
    """Against every number of others' groups, the best first."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        own, count = int(rng.integers(1, 8)), int(rng.integers(1, 8))
        worths = sorted(rng.uniform(0.01, 1, count), reverse=True)
        progress = [(own + sum(worths[:j])) / np.sqrt(own + j) for j in range(min(count, 8 - own) + 1)]
        assert _external(own, *worths) == np.argmax(progress)


def test_auto_prefers_groups_of_more_worth_than_its_own_up_to_a_limit() -> None:
    assert _external(8, *[2.0] * 20) == 6
    assert _external(8, 2.0, 0.9, 0.9) == 1
    assert _external(8, *[None] * 20) == 0, "unknown: as good as an own one"
    assert _external(4, 0.3, 0.3) == 0, "more noise than direction"
    assert _external(0, 0.3, 0.3) == 2, "better than no update"
    assert _external(0, -0.3) == 0


def test_auto_backs_off_on_drawdown_and_recovers() -> None:
    rng = np.random.default_rng(0)
    rewards = [*rng.normal(0.5, 0.02, 60), *rng.normal(0.3, 0.02, 160)]
    found = _play(Auto(window_rounds=10, recover_rounds=40), list(rewards))
    external = [each.external for each in found]
    assert set(external[:60]) == {4}, "no false alarm"
    fallen = external.index(2)
    assert 60 <= fallen < 75, "soon after the fall"
    assert "50% of them after a drawdown" in found[fallen].reason
    assert external[fallen : fallen + 9] == [2] * 9 and external[-1] == 4, "held, then back"
    assert min(external) == 2, "the lower level is no drawdown of its own"
    assert all(each.local + each.external == 8 for each in found)


def test_auto_blames_nobody_where_no_external_groups_were_used() -> None:
    rewards = [0.5] * 40 + [0.2] * 60
    assert {each.external for each in _play(Auto(window_rounds=10), rewards, num_external=0)} == {4}


def test_auto_is_rarely_alarmed_by_chance() -> None:
    """64 completions a round, one in ten right: the mean of a round varies by 0.04."""
    rng = np.random.default_rng(1)
    rewards = rng.binomial(64, 0.1, 1_000) / 64
    fallen = sum(each.state["num_rounds"] == 0 for each in _play(Auto(), list(rewards)))
    assert fallen == 0


def test_auto_weighs_by_difficulty_advantage_and_worth() -> None:
    candidates = _with_advantages(
        candidate("good", "a", (1.0, 1.0, 0.0, 0.0), worth=2.0),
        candidate("unknown", "b", (1.0, 1.0, 0.0, 0.0)),
        candidate("rare", "c", (1.0, 0.0, 0.0, 0.0)),
        candidate("harmful", "d", (1.0, 1.0, 0.0, 0.0), worth=-1.0),
    )
    told = history(own_round(informative=1, uninformative=7))
    found = Auto()(told, candidates)
    assert found.weights == pytest.approx([1.0, 0.5, 0.75 * 0.375, 0.0])
    assert (found.local, found.external) == (5, 3) and "3 of 4 others' wanted" in found.reason
