"""The seam: a policy decides, one draw serves all, and what must be remembered survives a restart."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from swarm.config import load_config
from swarm.errors import ConfigError
from swarm.received.pool import PoolSettings
from swarm.sapo.mixing import (
    Candidate,
    Decision,
    History,
    Mix,
    Mixer,
    MixPolicy,
    MixSettings,
    MixState,
    mix_figures,
)
from swarm.sapo.worth import WorthEstimator
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import TrainingState
from swarm.types import Completion, GradedGroup, ReceivedGroup
from tests.example_groups import graded
from tests.sapo.mixes import Opinion, candidate, names, own_round
from tests.sapo.test_round import Swarm
from tests.sapo.test_worth import Planted

EXAMPLES = Path(__file__).parents[2] / "examples"
LOCAL = [graded("me", index) for index in range(9)]


def _mixed(mixer: Mixer, candidates: Sequence[Candidate], seed: int = 0, **how) -> Mix:
    local, appraiser = how.pop("local", LOCAL), how.pop("appraiser", Opinion())
    return mixer.mix(own_round(), local, candidates, appraiser, np.random.default_rng(seed), **how)


def _wishes(mixer: Mixer, *candidates: Candidate):
    return mixer.wishes(candidates, Opinion())


def test_before_the_first_round_a_mix_wishes_for_what_is_configured() -> None:
    wishes = _wishes(Mixer(MixSettings(external=3, policy="auto")), candidate())
    assert (wishes.num_external, wishes.num_choice, wishes.weights) == (3, 3, None)


@pytest.mark.parametrize("policy", ["edge", "advantage", "auto"])
def test_a_policy_weighs_what_nobody_has_graded_by_what_is_claimed(policy: str) -> None:
    mixer = Mixer(MixSettings(policy=policy))
    mixer.record(own_round(), _mixed(mixer, [candidate(str(k), rewards=(1.0, 0.0)) for k in range(9)]))
    wishes = _wishes(mixer, candidate(rewards=(1.0, 1.0, 1.0, 1.0)), candidate(rewards=(1.0, 1.0, 0.0, 0.0)))
    assert wishes.weights is not None and wishes.weights[0] < wishes.weights[1]


def test_a_policy_that_scores_wishes_for_that_many_to_score_and_weighs_none_unscored() -> None:
    mixer = Mixer(MixSettings(external=2, policy="novelty"))
    mixer.record(own_round(), _mixed(mixer, [candidate()]))
    wishes = _wishes(mixer, candidate())
    assert (wishes.num_external, wishes.num_choice, wishes.weights) == (2, 6, None)


@pytest.mark.parametrize(("weight", "has_penalty", "part"), [(0.0, False, 0.25), (0.25, False, 1.0), (0.0, True, 1.0)])
def test_a_round_remembers_how_much_of_others_groups_was_computed(
    weight: float, has_penalty: bool, part: float
) -> None:
    mixer = Mixer(MixSettings(external_negative_weight=weight), has_penalty=has_penalty)
    mixer.record(own_round(), _mixed(mixer, [candidate(str(k), rewards=(1.0, 0.0, 0.0, 0.0)) for k in range(3)]))
    assert mixer.dump().rounds[-1].external_part == part
    mixer.record(own_round(), _mixed(mixer, []))
    assert mixer.dump().rounds[-1].external_part == 1.0


def test_a_round_remembers_that_equal_completions_are_computed_once() -> None:
    mixer = Mixer(MixSettings())
    texts = ("right", "right", "right", "wrong", "false", "false")
    group = graded("other", rewards=(1.0, 1.0, 1.0, 0.0, 0.0, 0.0), completions=_completions(texts))
    mixed = _mixed(mixer, [Candidate(ReceivedGroup("id", group))], local=[group])
    mixer.record(own_round(), mixed)
    assert mixer.dump().rounds[-1].external_part == pytest.approx(1 / 6), "what is right, once"
    assert mixer.dump().rounds[-1].local_part == pytest.approx(3 / 6)


def test_a_policy_knows_what_an_update_would_compute_of_each_candidate() -> None:
    mixer = Mixer(MixSettings(policy=f"{__name__}:Parts"))
    rewards = (1.0, 1.0, 1.0, 0.0)
    alike = graded("other", rewards=rewards, completions=_completions(("a", "a", "a", "b")))
    candidates = [Candidate(ReceivedGroup("alike", alike)), candidate("unlike", rewards=rewards)]
    assert _mixed(mixer, candidates).decision.weights == pytest.approx([1 / 4, 3 / 4])
    claimed = ReceivedGroup("claimed", replace(alike.group, rewards=rewards))
    mixer.record(own_round(), _mixed(mixer, []))
    assert _wishes(mixer, Candidate(claimed)).weights == pytest.approx([3 / 4]), "its texts may not have come yet"


def _completions(texts: Sequence[str]) -> tuple[Completion, ...]:
    return tuple(Completion(text, "stop") for text in texts)


class Parts(MixPolicy):
    """Weighs candidates by their parts."""

    needs_advantages = True

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        return Decision(1, 1, [each.part for each in candidates])


class Planned(MixPolicy):
    """I and J by round."""

    plan: tuple[tuple[int, int, int], ...]

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        _, local, external = [each for each in self.plan if each[0] <= history.rounds[-1].round][-1]
        return Decision(local, external)


def test_a_round_wishes_for_what_the_next_one_will_use() -> None:
    mixer = Mixer(MixSettings(external=0, policy=f"{__name__}:Planned", settings={"plan": [[1, 8, 0], [20, 4, 4]]}))
    wanted = {}
    for number in range(9, 20):
        this = own_round(number)
        mixer.record(this, mixer.mix(this, LOCAL, [], Opinion(), np.random.default_rng(0)))
        wanted[number + 1] = _wishes(mixer).num_external
    assert wanted == {**dict.fromkeys(range(10, 19), 0), 19: 4, 20: 4}


def test_wishes_remember_the_largest_j_of_the_last_rounds() -> None:
    mixer = Mixer(MixSettings(policy=f"{__name__}:Planned", settings={"plan": [[1, 0, 8], [2, 8, 0]]}))
    wanted = []
    for number in range(1, 12):
        this = own_round(number)
        mixer.record(this, mixer.mix(this, LOCAL, [], Opinion(), np.random.default_rng(0)))
        wanted.append(_wishes(mixer).num_external)
    assert wanted[:8] == [8] * 8 and wanted[-1] == 0


def _reference_draw(
    candidates: Sequence[Candidate], num_local: int, num_external: int, rng: np.random.Generator, refused: str
) -> tuple[list[str], list[GradedGroup]]:
    """The uniform draw in fair parts, place by place."""
    waiting = [candidates[place] for place in rng.permutation(len(candidates))]
    chosen: list[Candidate] = []
    for _ in range(4):
        authors = {each.sender for each in [*waiting, *chosen]}
        fair = math.ceil(num_external / max(1, len(authors)))
        drawn: list[Candidate] = []
        for each in waiting:
            if len(chosen) + len(drawn) == num_external:
                break
            if sum(other.sender == each.sender for other in [*chosen, *drawn]) < fair:
                drawn.append(each)
        waiting = [each for each in waiting if each not in drawn]
        if any(each.sender == refused for each in drawn):
            waiting = [each for each in waiting if each.sender != refused]
        chosen += [each for each in drawn if each.sender != refused]
    places = range(len(LOCAL)) if len(LOCAL) <= num_local else rng.choice(len(LOCAL), num_local, replace=False)
    return [each.content_id for each in chosen], [LOCAL[place] for place in places]


@given(
    seed=st.integers(0, 2**32),
    counts=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8)),
    num_local=st.integers(0, 10),
    num_external=st.integers(1, 10),
    refused=st.sampled_from("ax"),
)
def test_fixed_is_the_uniform_draw_in_fair_parts(
    seed: int, counts: dict[str, int], num_local: int, num_external: int, refused: str
) -> None:
    candidates = [candidate(f"{peer}-{k}", peer) for peer, count in counts.items() for k in range(count)]
    ids, local = _reference_draw(candidates, num_local, num_external, np.random.default_rng(seed), refused)
    mixer = Mixer(MixSettings(local=num_local, external=num_external))
    mixed = _mixed(mixer, candidates, seed, appraiser=Opinion(refused=refused))
    assert list(names(mixed.drawn)) == ids
    assert [id(group) for group in mixed.local] == [id(group) for group in local]


class Recording(MixPolicy):
    """Counts rounds in its state, and asks for one external group more each time."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        asked = history.state.get("asked", 0.0) + 1
        return Decision(1, int(asked), reason=f"round {len(history.rounds)}", state={"asked": asked})


RECORDING = MixSettings(policy=f"{__name__}:Recording")


def _play(mixer: Mixer, rounds: range) -> list[tuple[int, str]]:
    told = []
    for number in rounds:
        this = own_round(number)
        mixed = mixer.mix(this, LOCAL, [candidate("a", "a"), candidate("b", "b")], Opinion(), np.random.default_rng(0))
        mixer.record(this, mixed)
        told.append((mixed.decision.external, mixed.decision.reason))
    return told


def test_what_a_policy_remembers_survives_a_checkpoint() -> None:
    unbroken, first = Mixer(RECORDING), Mixer(RECORDING)
    expected = _play(unbroken, range(1, 7))
    _play(first, range(1, 4))
    state = TrainingState("12D3", "tiny", 3, 3, 24, [], Ledger().snapshot(), 99, mix=first.dump())
    restored = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=TrainingState)
    second = Mixer(RECORDING)
    assert restored.mix is not None
    second.restore(restored.mix)
    assert _play(second, range(4, 7)) == expected[3:] == [(4, "round 4"), (5, "round 5"), (6, "round 6")]
    assert second.dump() == unbroken.dump()


def test_an_older_checkpoint_has_no_mix_and_resumes() -> None:
    state = TrainingState("12D3", "tiny", 3, 3, 24, [], Ledger().snapshot(), 99)
    older = {name: value for name, value in msgspec.to_builtins(state).items() if name != "mix"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=TrainingState).mix is None


def test_another_policy_starts_with_the_rounds_and_without_the_state() -> None:
    mixer = Mixer(RECORDING)
    mixer.restore(MixState("auto", [own_round(1), own_round(2)], {"asked": 7.0}))
    assert _play(mixer, range(3, 4)) == [(1, "round 3")]


def test_a_round_that_fails_leaves_nothing() -> None:
    mixer = Mixer(RECORDING)
    _mixed(mixer, [])
    assert mixer.dump() == MixState(RECORDING.policy, [], {})


def test_a_long_run_remembers_a_bounded_number_of_rounds() -> None:
    mixer = Mixer(MixSettings())
    _play(mixer, range(1, 400))
    rounds = mixer.dump().rounds
    assert (len(rounds), rounds[0].round, rounds[-1].round) == (256, 144, 399)
    assert (rounds[-1].num_local, rounds[-1].num_external, rounds[-1].senders) == (4, 2, {"a": 1, "b": 1})


def test_figures_of_a_decision() -> None:
    weighted = _mixed(Mixer(MixSettings(policy="worth")), [candidate("a", worth=1.0), candidate("b", worth=0.0)])
    assert mix_figures(weighted) == {"mix/local": 4, "mix/external": 4, "mix/weights_ess": 0.5}
    assert mix_figures(_mixed(Mixer(MixSettings()), []))["mix/weights_ess"] == 1


# A policy of the user's own


class Hostile(MixPolicy):
    """Returns whatever it is given."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        return Hostile.answer(candidates)


def _answering(answer: object, candidates: Sequence[Candidate]) -> Mix:
    Hostile.answer = staticmethod(lambda _: answer)
    return _mixed(Mixer(MixSettings(policy=f"{__name__}:Hostile")), candidates)


PAIR = [candidate("a", "a"), candidate("b", "b")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((4, 4, None), "must return a swarm.sapo.mixing.Decision"),
        (Decision(-1, 4), "local must be a whole number of at least 0, got -1"),
        (Decision(4, math.nan), "external must be a whole number of at least 0, got nan"),
        (Decision(4, 4, [1.0]), "one number for each of 2 candidates"),
        (Decision(4, 4, [[1.0], [2.0]]), "one number for each of 2 candidates"),
        (Decision(4, 4, ["much", "little"]), "weights must be numbers"),
        (Decision(4, 4, state={"best": math.inf}), "finite numbers"),
        (Decision(4, 4, state={str(k): 0.0 for k in range(2_000)}), "at most 1024 finite numbers, got 2000"),
        (Decision(4, 4, state=SimpleNamespace()), "state must map names to numbers"),
    ],
)
def test_a_decision_that_cannot_be_used_is_named(answer: object, message: str) -> None:
    with pytest.raises(ConfigError, match="mix.policy tests.sapo.test_mixer:Hostile") as caught:
        _answering(answer, PAIR)
    assert message in str(caught.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_an_invalid_weight_is_none_and_people_are_told(bad: float) -> None:
    mixed = _answering(Decision(4, 4, [bad, 1.0], reason="x" * 50), PAIR)
    assert names(mixed.drawn) == ("b",)
    assert mixed.decision.reason.endswith("x; 1 invalid weights count as 0")


def test_a_decision_is_bounded_by_what_there_is() -> None:
    many = [candidate(str(k), f"peer-{k % 50}") for k in range(5_000)]
    weights = np.random.default_rng(0).lognormal(0, 50, len(many))
    mixed = _answering(Decision(10**9, 10**9, weights, reason="\x1b[2J" + "long " * 1_000), many)
    assert len(mixed.external) == 5_000 and len(mixed.local) == 9
    assert len(mixed.decision.reason) <= 160 and mixed.decision.reason.isprintable()
    msgspec.json.encode(mixed.decision)
    drawn = _answering(Decision(4, np.int64(8), weights), many)
    assert len(drawn.external) == 8 and len({group.group.peer_id for group in drawn.external}) == 8


class Curious(MixPolicy):
    """Keeps the candidates of its last decision."""

    seen: ClassVar[list[Candidate]] = []
    used: ClassVar[list[str]] = []

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        Curious.seen[:] = candidates
        Curious.used[:] = [each.content_id for each in candidates if each.uses]
        return Decision(0, 1)


class Known(WorthEstimator):
    """Has measured nothing, and knows these worths."""

    def __init__(self, worths: dict[str, float]) -> None:
        super().__init__(Planted(), 1, 8)
        self._worths = worths

    def begin(self, round: int) -> bool:
        return False

    def worth_of(self, peer_id: str) -> float | None:
        return self._worths.get(peer_id)


def test_a_policy_sees_what_the_pool_and_the_estimator_know() -> None:
    swarm = Swarm()
    senders = [swarm.node(seed) for seed in (1, 2, 3)]
    worths = {senders[0].peer_id: 1.6, senders[1].peer_id: math.nan}
    now = time.time()
    receiver = swarm.node(
        4,
        mix=MixSettings(policy=f"{__name__}:Curious"),
        pool=PoolSettings(max_uses=9),
        worth=Known(worths),
        clock=lambda: now,
    )
    for sender in senders:
        sender.run_round()
    first = receiver.run_round()
    now += 60
    second = receiver.run_round()
    assert len(first.mix.external) == 1 and second.figures["mix/external"] == 1
    known = {(each.sender, each.worth, each.task) for each in Curious.seen}
    assert known == {(sender.peer_id, worth, "gcd") for sender, worth in zip(senders, (1.6, None, None), strict=True)}
    assert {round(each.age_s, 3) for each in Curious.seen} == {60.0}
    assert tuple(Curious.used) == names(first.mix.drawn)


@pytest.fixture
def _examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.usefixtures("_examples_can_be_imported")
def test_the_example_takes_groups_of_unsolved_tasks() -> None:
    config = load_config(command_line=[("mix.policy", "own_mix:Unsolved"), ("mix.settings.solved", "0.6")]).config
    mixer = Mixer(config.mix)
    candidates = [
        candidate("easy", "a", task="gcd"),
        candidate("hard", "b", task="lcm"),
        candidate("new", "c", task="x"),
    ]
    this = own_round(tasks={"gcd": (7.0, 10), "lcm": (1.0, 10)})
    mixed = mixer.mix(this, LOCAL, candidates, Opinion(), np.random.default_rng(0))
    assert set(names(mixed.drawn)) == {"hard", "new"} and len(mixed.local) == 6
    assert mixed.decision.reason == "2 of 3 candidates of unsolved tasks"
    assert config.model_dump()["mix"]["settings"] == {"solved": 0.6}
    assert len((EXAMPLES / "own_mix.py").read_text().splitlines()) < 40


class Abstract(MixPolicy):
    """Decides nothing."""


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("greedy", "must be one of fixed, advantage, edge"),
        ("no_such_module:Mix", "install it, or name a file"),
        (f"{__name__}:Missing", "has no Missing"),
        (f"{__name__}:LOCAL", "must be a subclass of swarm.sapo.mixing.MixPolicy"),
        (f"{__name__}:Abstract", "must define __call__(self, history, candidates)"),
    ],
)
def test_a_policy_that_cannot_be_used_is_named(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match="mix.policy") as caught:
        load_config(command_line=[("mix.policy", path)])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "name", "value", "message"),
    [
        ("fixed", "window_rounds", "10", "there is no such field"),
        ("edge", "window_rounds", "0", "must be at least 1"),
        ("novelty", "oversample", "1000", "must be at most 16"),
        ("edge", "own", "1", "less than 1"),
        ("auto", "drop", "nan", "finite number"),
    ],
)
def test_each_policy_owns_its_settings(policy: str, name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"mix\.settings(\.{name})? .*{message}"):
        load_config(command_line=[("mix.policy", policy), (f"mix.settings.{name}", value)])
