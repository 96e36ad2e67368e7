from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from swarm.groups.credit import has_signal
from swarm.protocols import NEWCOMERS
from swarm.sapo.mixing import Candidate, Decision, Mix, MixSettings, mix
from swarm.types import GradedGroup, ReceivedGroup
from tests.example_groups import graded
from tests.sapo.mixes import names

J4 = Decision(0, 4)


def test_signal_is_a_difference_between_rewards() -> None:
    assert has_signal([0.0, 0.0, 1.0])
    assert not has_signal([1.0, 1.0, 1.0])
    assert not has_signal([0.5])


def test_rounding_is_no_signal() -> None:
    assert not has_signal([0.3, 0.1 + 0.2])
    assert not has_signal([0.0, 0.1 + 0.2 - 0.3]) and not has_signal([3e6, 3e6 * (1 + 1e-15)])
    assert has_signal([0.3, 0.3 + 1e-6])
    assert not has_signal([])


@given(
    num_local=st.integers(0, 12),
    num_external=st.integers(0, 12),
    wanted_local=st.integers(0, 6),
    wanted_external=st.integers(1, 6),
    fill=st.sampled_from(["none", "local"]),
)
def test_what_is_missing_is_reported_and_filled_only_when_asked(
    num_local: int, num_external: int, wanted_local: int, wanted_external: int, fill: str
) -> None:
    local = [graded("me", k) for k in range(num_local)]
    external = [Candidate(ReceivedGroup(f"id-{k}", graded("other", k))) for k in range(num_external)]
    mixed = mix(local, external, Decision(wanted_local, wanted_external), np.random.default_rng(0), fill=fill)
    assert len(mixed.external) == min(num_external, wanted_external)
    assert mixed.external_shortfall == wanted_external - len(mixed.external)
    assert mixed.local_shortfall == max(0, wanted_local - num_local)
    extra = mixed.external_shortfall if fill == "local" else 0
    assert len(mixed.local) == min(num_local, wanted_local + extra)
    assert mixed.filled == max(0, len(mixed.local) - wanted_local)
    assert len({id(group) for group in mixed.local}) == len(mixed.local), "no group twice"
    by_id = {candidate.content_id: candidate.graded for candidate in external}
    assert [by_id[content_id] for content_id in names(mixed.drawn)] == list(mixed.external)


def test_sampling_is_uniform_and_repeatable() -> None:
    external = [Candidate(ReceivedGroup(str(k), graded("other", k))) for k in range(10)]
    counts = dict.fromkeys((str(k) for k in range(10)), 0)
    for seed in range(2_000):
        chosen = names(mix([], external, J4, np.random.default_rng(seed)).drawn)
        assert chosen == names(mix([], external, J4, np.random.default_rng(seed)).drawn)
        for content_id in chosen:
            counts[content_id] += 1
    # 2000 draws of 4 of 10: 800 each, standard deviation sqrt(2000 * 0.4 * 0.6) = 22
    assert all(abs(count - 800) < 110 for count in counts.values()), counts


def test_a_mix_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 1"):
        MixSettings(local=0, external=0)


def _at_hand(**counts: int) -> list[Candidate]:
    return [
        Candidate(ReceivedGroup(f"{peer}-{k}", graded(peer, k))) for peer, count in counts.items() for k in range(count)
    ]


def _authors(mixed: Mix) -> Counter[str]:
    return Counter(group.group.peer_id for group in mixed.external)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"flood": 100, "a": 3}, {"flood": 2, "a": 2}),
        ({"flood": 100, "a": 3, "b": 3}, None),
        ({"flood": 100, "a": 1, "b": 1, "c": 1}, {"flood": 1, "a": 1, "b": 1, "c": 1}),
        ({"friend": 9}, {"friend": 4}),
        ({"flood": 100, "a": 1}, {"flood": 2, "a": 1}),
    ],
)
def test_no_author_has_more_than_its_fair_part(counts: dict[str, int], expected: dict[str, int] | None) -> None:
    for seed in range(20):
        taken = _authors(mix([], _at_hand(**counts), J4, np.random.default_rng(seed)))
        assert max(taken.values()) <= -(-4 // len(counts))
        assert expected is None or taken == expected


def test_identities_without_standing_are_one_author_together() -> None:
    crowd = {f"made-{k}": 5 for k in range(50)}
    for seed in range(20):
        mixed = mix(
            [],
            _at_hand(**crowd, a=3, b=3),
            J4,
            np.random.default_rng(seed),
            author_of=lambda peer: NEWCOMERS if peer.startswith("made") else peer,
        )
        made = sum(count for peer, count in _authors(mixed).items() if peer.startswith("made"))
        assert made <= 2 and len(mixed.external) == 4


def test_where_there_are_only_newcomers_each_has_its_own_part() -> None:
    everybody = {f"new-{k}": 9 for k in range(4)}
    taken = _authors(mix([], _at_hand(**everybody), J4, np.random.default_rng(0), author_of=lambda peer: NEWCOMERS))
    assert set(taken.values()) == {1} and len(taken) == 4


def test_what_is_refused_leaves_its_place_to_others() -> None:
    def screen(drawn: Sequence[ReceivedGroup]) -> list[GradedGroup | None]:
        return [None if each.peer_id == "poisoner" else each.graded for each in drawn]

    mixed = mix([], _at_hand(poisoner=50, friend=9), J4, np.random.default_rng(0), screen=screen)
    assert _authors(mixed) == {"friend": 4}
    assert len(names(mixed.refused)) == 2 and all(name.startswith("poisoner") for name in names(mixed.refused))
    alone = mix([], _at_hand(poisoner=50), J4, np.random.default_rng(0), screen=screen)
    assert (len(names(alone.refused)), alone.external_shortfall) == (4, 4), "no more of it is looked at"


def test_the_share_of_others_can_be_less_for_a_while() -> None:
    local = [graded("me", k) for k in range(9)]
    for share, expected in [(0.0, 0), (0.2, 0), (0.5, 2), (1.0, 4)]:
        mixed = mix(local, _at_hand(a=5, b=5), Decision(2, 4), np.random.default_rng(0), fill="local", share=share)
        assert len(mixed.external) == expected
        assert len(mixed.local) == 6 - expected, "own groups fill what others leave, where that is asked for"


def test_draws_are_in_proportion_to_weights() -> None:
    candidates = _at_hand(a=1, b=1, c=1, d=1)
    counts = Counter(
        names(mix([], candidates, Decision(0, 1, weights=[6.0, 3.0, 1.0, 0.0]), np.random.default_rng(seed)).drawn)
        for seed in range(1_000)
    )
    # 1000 draws: 600, 300 and 100, standard deviations at most 15.5
    assert abs(counts[("a-0",)] - 600) < 75 and abs(counts[("b-0",)] - 300) < 75
    assert abs(counts[("c-0",)] - 100) < 50 and ("d-0",) not in counts


def test_the_second_place_is_drawn_in_proportion_to_what_is_left() -> None:
    """After a, whose weight is 6 of 10, b is three times as likely as c."""
    candidates = _at_hand(friend=3)
    firsts, seconds = Counter(), Counter()
    for seed in range(1_000):
        decision = Decision(0, 2, weights=[6.0, 3.0, 1.0])
        first, second = names(mix([], candidates, decision, np.random.default_rng(seed)).drawn)
        firsts[first] += 1
        seconds[second] += first == "friend-0"
    assert abs(seconds["friend-1"] / firsts["friend-0"] - 0.75) < 0.08


def test_a_weight_cannot_take_more_than_a_fair_part() -> None:
    heavy = [1e300 if candidate.sender == "flood" else 1e-300 for candidate in _at_hand(flood=50, a=3, b=3)]
    for seed in range(20):
        taken = _authors(mix([], _at_hand(flood=50, a=3, b=3), Decision(0, 4, heavy), np.random.default_rng(seed)))
        assert taken["flood"] == 2 and taken["a"] + taken["b"] == 2


def test_what_has_no_weight_is_not_drawn_even_if_nothing_else_is_there() -> None:
    mixed = mix([], _at_hand(a=5), Decision(0, 4, [0.0] * 5), np.random.default_rng(0))
    assert mixed.external == () and mixed.external_shortfall == 4
