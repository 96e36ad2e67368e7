"""Which groups are graded: as many as updates will take, authors in turn, by the mix's weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from swarm.protocols import NEWCOMERS
from swarm.received.authors import AuthorOf
from swarm.sapo.external import GradingContext, Shortlist
from swarm.sapo.mixing import Candidate
from swarm.types import Offer, OfferedGroup, ReceivedGroup
from tests.sapo.mixes import candidate

AN_OFFER = Offer(bytes(16), bytes(16), 3_000, "gcd", 2, 0.5, 0.5, bytes(8), 60)


class Desk:
    """A shortlist with a context that the test sets."""

    def __init__(self, **known: object) -> None:
        self.now = GradingContext(
            **{
                "waiting": [],
                "weights": None,
                "num_external": 2,
                "num_choice": 2,
                "pooled": [],
                "max_pooled": 128,
                "round": 0,
                "author_of": lambda peer_id: peer_id,
                "rng": np.random.default_rng(0),
                **known,
            }
        )
        self.shortlist = Shortlist()

    def choose(self, waiting: Sequence[Candidate], **changed: object) -> list[str]:
        self.now = replace(self.now, waiting=waiting, **changed)
        return self.shortlist.choose(self.now)


def _from(sender: str, count: int, first: int = 0) -> list[Candidate]:
    return [candidate(f"{sender}-{k}", sender) for k in range(first, first + count)]


def _promised(sender: str, count: int) -> list[Candidate]:
    """Groups on offer."""
    return [Candidate(ReceivedGroup(f"{sender}-{k}", OfferedGroup(sender, AN_OFFER), sender)) for k in range(count)]


def _senders(chosen: Sequence[str]) -> Counter[str]:
    return Counter(name.split("-")[0] for name in chosen)


def test_as_many_are_graded_as_this_update_the_next_and_the_choice_take() -> None:
    assert len(Desk().choose(_from("a", 50))) == 2 + 2 + 2
    assert len(Desk(pooled=_from("b", 4)).choose(_from("a", 50))) == 2
    assert len(Desk(max_pooled=5).choose(_from("a", 50))) == 5
    assert Desk(pooled=_from("b", 6)).choose(_from("a", 50)) == []
    assert Desk(num_external=0).choose(_from("a", 50)) == [], "a node that takes nothing grades nothing"


def test_what_is_being_graded_is_expected() -> None:
    desk = Desk()
    assert len(desk.choose(_from("a", 50))) == 6
    assert desk.choose(_from("a", 50, first=50)) == []


def test_authors_take_turns_whatever_they_send() -> None:
    assert _senders(Desk().choose([*_from("flood", 100), *_from("b", 9), *_from("c", 9)])) == {
        "flood": 2,
        "b": 2,
        "c": 2,
    }


def test_newcomers_take_one_turn_together_beside_others_and_one_each_alone() -> None:
    def author_of(peer_id: str) -> str:
        return peer_id if peer_id == "old" else NEWCOMERS

    new = [each for k in range(20) for each in _from(f"new{k}", 5)]
    assert _senders(Desk(author_of=author_of).choose([*_from("old", 9), *new]))["old"] == 3
    assert max(_senders(Desk(author_of=author_of).choose(new)).values()) == 1


def test_an_author_whose_groups_fail_is_graded_less_and_may_recover() -> None:
    desk = Desk()

    def graded(number: int, bad: bool) -> Counter[str]:
        chosen = desk.choose([*_from("good", 50, 50 * number), *_from("bad", 50, 50 * number)])
        for name in chosen:
            desk.shortlist.checked(name, not (bad and name.startswith("bad")))
        return _senders(chosen)

    failing = sum((graded(number, True) for number in range(60)), Counter())
    assert failing["good"] > 5 * failing["bad"] > 0, "it still gets a chance"
    better = sum((graded(number, False) for number in range(60, 400)), Counter())
    assert better["bad"] > better["good"] / 2


def test_a_new_task_s_name_buys_no_new_start() -> None:
    desk = Desk()
    for number in range(20):
        waiting = [candidate(f"bad-{number}-{k}", "bad", task=f"task-{number}-{k}") for k in range(20)]
        for name in desk.choose(waiting):
            desk.shortlist.checked(name, False)
    waiting = [*_from("good", 20), *(candidate(f"bad-{k}", "bad", task=f"task-{k}") for k in range(20))]
    assert _senders(desk.choose(waiting))["good"] >= 5


def test_groups_that_updates_refuse_count_as_failed_wherever_they_are() -> None:
    desk = Desk()
    pooled = _from("odd", 6)
    for name in desk.choose(pooled):
        desk.shortlist.checked(name, True)
    assert desk.choose(_from("good", 20), pooled=pooled) == []
    for each in pooled[:4]:
        desk.shortlist.refused(each.content_id)
    assert len(desk.choose(_from("good", 20), pooled=pooled[4:])) == 6, "the two that are left count as less than one"


def test_one_that_was_away_gets_no_arrears() -> None:
    desk = Desk()
    desk.choose(_from("early", 1))
    for number in range(50):
        for name in desk.choose(_from("a", 6, 6 * number)):
            desk.shortlist.checked(name, True)
    back = desk.choose([*_from("a", 50, 500), *_from("early", 50, 500)])
    assert abs(_senders(back)["a"] - _senders(back)["early"]) <= 1


def test_slow_grading_is_begun_earlier() -> None:
    desk = Desk()
    (first, *_) = desk.choose(_from("a", 1))
    desk.choose([], round=4)
    desk.shortlist.checked(first, True)
    assert len(desk.choose(_from("b", 50))) == 2 * (1 + 4) + 2


def test_within_an_author_the_mix_s_weights_decide() -> None:
    waiting = _from("a", 20)
    weights = [0.0] * 10 + [1.0] * 10
    chosen = Desk(weights=weights).choose(waiting)
    assert len(chosen) == 6 and not {each.content_id for each in waiting[:10]} & set(chosen)


def _of_names(*established: str) -> AuthorOf:
    return lambda peer_id: peer_id if peer_id in established else NEWCOMERS


def test_what_newcomers_promise_takes_no_place_of_established_authors() -> None:
    desk = Desk(author_of=_of_names("old"))
    promises = [each for k in range(20) for each in _promised(f"new{k}", 5)]
    assert sum(_senders(desk.choose(promises)).values()) == 6, "as many as updates want, and no more"
    assert desk.choose(promises) == []
    assert _senders(desk.choose([*promises, *_from("old", 50)])) == {"old": 6}


def test_offers_that_wait_are_promises_and_newcomers_reserve_nothing() -> None:
    """They once counted as groups that are here, and newcomers' kept all places."""
    desk = Desk(author_of=_of_names("old"))
    assert len(desk.choose(_promised("new", 20))) == 6
    waiting = [*_promised("new", 20), *_promised("old", 20)]
    chosen = desk.choose(waiting)
    assert _senders(chosen) == {"old": 6}
    for key in chosen:
        desk.shortlist.late(key)
    assert desk.choose(waiting), "what is late holds no place"


def test_newcomers_that_give_nothing_do_not_have_hundreds_of_groups_fetched() -> None:
    desk = Desk(author_of=_of_names("old"), max_pooled=10_000)
    for number in range(30):
        promises = _promised(f"new{number}", 100)
        for name in desk.choose(promises):
            desk.shortlist.late(name)
    assert len(desk.shortlist._begun) == 32
    assert _senders(desk.choose([*promises[50:], *_from("old", 9)])) == {"old": 6}
    assert _senders(desk.choose([*promises[50:], *_from("new", 9)], num_external=9))["new"] > 0, "these are here"


def test_what_an_established_author_promises_is_not_fetched_from_others_too() -> None:
    desk = Desk(author_of=_of_names("old"))
    promises = _promised("old", 20)
    assert len(desk.choose(promises)) == 6 and desk.choose([*promises[6:], *_from("new", 20)]) == []


def test_a_late_promise_holds_no_place_and_its_group_counts_again_when_it_comes() -> None:
    desk = Desk()
    promises = _promised("slow", 12)
    first = desk.choose(promises)
    for name in first:
        desk.shortlist.late(name)
    waiting = [each for each in promises if each.received.key not in first]
    second = desk.choose([*waiting, *_from("other", 20)])
    assert len(second) >= 6 and _senders(second)["other"] >= 4
    for name in first:
        desk.shortlist.came(name, name)
        desk.shortlist.checked(name, True)
    assert desk.shortlist._of("slow").overall.pass_rate > 0.9, "late, not bad"
    assert max(desk.shortlist._lags, default=1) == 1


def test_newcomers_start_where_newcomers_before_them_ended() -> None:
    desk = Desk(author_of=lambda peer_id: NEWCOMERS)
    for number in range(10):
        for name in desk.choose([*_from(f"one{number}", 5), *_from(f"two{number}", 5)]):
            desk.shortlist.checked(name, False)
    desk.choose(_from("late", 1))
    assert desk.shortlist._of("late").overall.pass_rate < 0.2
    assert Desk().shortlist._of("first").overall.pass_rate == 1.0
