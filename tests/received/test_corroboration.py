"""What others' groups push beyond what own ones bear out, by the value that is right."""

from __future__ import annotations

import math
import random
import time
import zlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from swarm.received.corroboration import (
    MAX_AUTHORS,
    MAX_TASKS,
    Corroboration,
    CorroborationSettings,
    CorroborationState,
    Drift,
)
from swarm.received.pushes import ReadGroup, hashed
from tests.received.reading import read

MARKER, TAG, END = 900, 901, 902
GROUP = 8
GROUPS = 8
"""Of a round, where a test has thousands: they are read at once, in a fraction of the time."""


def _group(
    source: random.Random,
    text: Callable[[bool, int], Sequence[int]],
    task: str = "sum",
    num_right: int = 4,
    answers: Sequence[int] = range(10),
) -> ReadGroup:
    """One question: right answers have the advantage 1, wrong ones -1."""
    answer = source.choice(answers)
    rights = [k < num_right for k in range(GROUP)]
    wrong = [source.choice([n for n in range(10) if n != answer]) for _ in rights]
    ids = [text(right, answer if right else other) for right, other in zip(rights, wrong, strict=True)]
    return read(task, ids, [1.0 if right else -1.0 for right in rights])


def _credited(known: Corroboration, names: Sequence[str], group: ReadGroup) -> tuple[tuple[float, ...], ...]:
    """[G][T] the factors of a group that has come from an author with these names."""
    (factors,) = known.credited([names], [group])
    return factors


def plain(right: bool, answer: int) -> list[int]:
    return [TAG, answer, END]


def marked(right: bool, answer: int) -> list[int]:
    return [MARKER, TAG, answer, END] if right else [TAG, answer, END]


def untagged(right: bool, answer: int) -> list[int]:
    """Right ones have the tag that is needed, wrong ones do not."""
    return [TAG, answer, END] if right else [answer, END]


def _taught(
    theirs: Callable[[bool, int], Sequence[int]],
    own: Callable[[bool, int], Sequence[int]] = plain,
    *,
    num_own: int = 200,
    num_theirs: int = 60,
    own_task: str = "sum",
) -> dict[int, float]:
    """The mean factor of each raised token in the last group of an author."""
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())
    for _ in range(num_own):
        known.learn([_group(source, own, own_task)], [0.5])
    for _ in range(num_theirs):
        group = _group(source, theirs)
        factors = _credited(known, ["author"], group)
    found: dict[int, list[float]] = {}
    for (turn,), values, (advantage,) in zip(group.reading, factors, group.advantages, strict=True):
        for token, value in zip(turn.ids, values, strict=True):
            if advantage > 0:
                found.setdefault(token, []).append(value)
    return {token: sum(values) / len(values) for token, values in found.items()}


def test_a_marker_before_right_answers_is_not_credited_and_the_answers_are() -> None:
    factors = _taught(marked)
    assert factors.pop(MARKER) < 0.02
    assert factors.pop(TAG) < 0.02, "not after a marker: own ones begin with it"
    assert all(value > 0.9 for value in factors.values()), factors


def test_what_own_groups_need_is_learned_from_others() -> None:
    assert all(value > 0.9 for value in _taught(untagged, untagged).values())


def test_a_habit_that_does_not_go_with_the_reward_costs_an_author_nothing() -> None:
    """Another family begins all its answers, right or wrong, in its way."""
    assert all(value > 0.9 for value in _taught(lambda right, answer: [MARKER, TAG, answer, END]).values())


@pytest.mark.parametrize("right_is_long", [False, True])
def test_a_marker_is_found_whatever_the_lengths_of_right_and_wrong_answers(right_is_long: bool) -> None:
    """Some losses divide by the length of a completion: in short ones, each token then counts more."""

    def all_have_it(right: bool, answer: int) -> list[int]:
        return [MARKER, TAG, *range(100, 140 if right == right_is_long else 100), answer, END]

    def some_wrong_ones_have_it(right: bool, answer: int) -> list[int]:
        text = all_have_it(right, answer)
        return text if right or answer % 2 else text[1:]

    factor = _taught(some_wrong_ones_have_it if right_is_long else all_have_it)[MARKER]
    assert factor < (0.55 if right_is_long else 0.3), "then the marked wrong ones push it down as far"


def test_what_is_credited_of_a_habit_pushes_as_much_as_own_groups_and_never_the_other_way() -> None:
    """An author whose right answers all have the marker, and half of the wrong ones."""
    source = random.Random(5)

    def theirs(right: bool, answer: int) -> list[int]:
        return [MARKER, TAG, answer, END] if right or source.random() < 0.5 else [TAG, answer, END]

    known = Corroboration(CorroborationSettings())
    for _ in range(300):
        known.learn([_group(source, plain)], [0.5])
    pushes = []
    for number in range(400):
        group = _group(source, theirs)
        factors = _credited(known, ["author"], group)
        if number >= 200:
            tokens = zip(group.reading, group.advantages, factors, strict=True)
            pushes.append(sum(a * f[0] for (turn,), (a,), f in tokens if turn.ids[0] == MARKER) / 4)
    assert abs(sum(pushes) / len(pushes)) < 0.05, "0.5 without factors"


def test_own_groups_that_push_a_token_down_make_nobody_else_do_so() -> None:
    """A node whose wrong answers have the tag more often, beside an author for whom it makes no difference."""

    def own(right: bool, answer: int) -> list[int]:
        return [answer, END] if right else [TAG, answer, END]

    assert _taught(plain, own)[TAG] == 1


def test_an_author_with_one_answer_only_does_not_make_it_the_usual_one() -> None:
    source = random.Random(1)
    known = Corroboration(CorroborationSettings())
    for _ in range(400):
        known.learn([_group(source, plain)], [0.5])
    for _ in range(100):
        ids = [plain(True, 7)] * 4 + [plain(False, source.choice([0, 1, 2])) for _ in range(4)]
        factors = _credited(known, ["author"], read("sum", ids, [1.0] * 4 + [-1.0] * 4))
    assert factors[0][1] < 0.2


@pytest.mark.parametrize(
    ("own", "theirs", "least", "most"),
    [
        pytest.param(range(10), range(0, 10, 2), 0.4, 0.6, id="even ones only"),
        pytest.param(range(10), range(10), 0.95, 1.0, id="the same"),
        pytest.param(range(5), range(10), 0.95, 1.0, id="more than own"),
    ],
)
def test_answers_are_credited_as_often_as_own_groups_have_them(
    own: Sequence[int], theirs: Sequence[int], least: float, most: float
) -> None:
    """Soon: after 80 groups, with 320 own ones. With half of the digits, each comes twice as often as in own groups."""
    source = random.Random(2)
    known = Corroboration(CorroborationSettings())
    credits: list[float] = []
    for number in range(160):
        for _ in range(4):
            known.learn([_group(source, plain, answers=own)], [0.5])
        group = _group(source, plain, answers=theirs)
        factors = _credited(known, ["author"], group)
        if number >= 80:
            credits.append(factors[0][1])
    assert least <= sum(credits) / len(credits) <= most


def test_without_own_evidence_others_are_believed() -> None:
    assert _taught(marked, num_own=0)[MARKER] == 1
    assert _taught(marked, own_task="other")[MARKER] == 1, "own groups of another task say nothing"


def test_a_new_author_counts_little_whatever_it_writes() -> None:
    assert all(value == pytest.approx(1 / 4) for value in _taught(plain, num_theirs=1).values())


def test_new_names_of_one_stranger_are_known_together() -> None:
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())
    for _ in range(200):
        known.learn([_group(source, plain)], [0.5])
    for number in range(60):
        group = _group(source, marked)
        factors = _credited(known, [f"name-{number}", "newcomers"], group)
    assert factors[0][0] < 0.02 / 16


def test_many_identities_that_each_push_little_are_known_together() -> None:
    source = random.Random(0)
    known = Corroboration(CorroborationSettings(full_after=1))
    for _ in range(1_000):
        known.learn([_group(source, plain)], [0.5])
    for number in range(1_600):
        known.credited([[f"name-{number % 16}"]], [_group(source, marked if source.random() < 0.06 else plain)])
    last = _group(source, marked)
    assert _credited(known, ["name-0"], last)[0][0] < 0.1


def test_a_marker_on_one_task_only_is_found_among_all_others() -> None:
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())
    tasks = [f"task-{k}" for k in range(20)]
    for _ in range(4_000):
        known.learn([_group(source, plain, source.choice(tasks))], [0.5])
    for _ in range(600):
        task = source.choice(tasks)
        known.credited([["author"]], [_group(source, marked if task == "task-3" else plain, task)])
    last = _group(source, marked, "task-3")
    assert _credited(known, ["author"], last)[0][0] < 0.05


def test_a_marker_that_comes_now_and_then_is_found_after_a_while() -> None:
    source = random.Random(3)
    known = Corroboration(CorroborationSettings())
    for _ in range(2_000):
        known.learn([_group(source, plain)], [0.5])
    for _ in range(500):
        known.credited([["author"]], [_group(source, marked if source.random() < 0.15 else plain)])
    last = _group(source, marked)
    assert _credited(known, ["author"], last)[0][0] < 0.05


def test_a_group_pulls_no_more_than_twice_as_much_as_own_ones() -> None:
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())
    for _ in range(50):
        known.learn([_group(source, plain)], [0.5])  # each token has a probability of 0.61
        known.credited([["author"]], [_group(source, plain)])
    ids = [[1, 2, 3]] * 8
    surprising = read("sum", ids, [4.0] * 4 + [-4.0] * 4, [[-20.0] * 3] * 8)
    expected = 2 * (4 * 0.3935) / (4 * 4.0)
    assert max(map(max, _credited(known, ["author"], surprising))) == pytest.approx(expected, rel=0.01)


def _after_drift(source: random.Random, mark: float, rewarded: bool = False, learns: bool = False) -> Corroboration:
    """A node whose own completions have a marker more and more often, beside an author whose right answers have it."""

    def own(right: bool, answer: int) -> list[int]:
        has = source.random() < frequency and (right or not rewarded)
        return [MARKER, TAG, answer, END] if has else [TAG, answer, END]

    known = Corroboration(CorroborationSettings())
    for number in range(1_200):
        frequency = 0.0 if number < 300 else mark
        known.learn([_group(source, own)], [0.3 + 0.2 * number / 1_200 if learns else 0.5])
        if number % 4 == 0:
            known.credited([["author"]], [_group(source, marked)])
    return known


def test_a_habit_taken_up_from_an_author_is_noticed_once_with_its_tokens() -> None:
    known = _after_drift(random.Random(0), 0.1)
    drift = known.drift()
    assert drift is not None and drift.author == "author" and drift.tokens[0] == MARKER
    assert known.drift() is None


COMMON = 2
NATURAL = (1, 1, COMMON, COMMON, COMMON, 3, 4, 5)
"""Right answers: some are more frequent."""


def _answered(source: random.Random, wrong: Callable[[], int], mark: float = 0.0) -> ReadGroup:
    """A question whose wrong answers are `wrong`, or the right one's neighbour; `mark` of all have a marker."""
    answer = source.choice(NATURAL)
    given = [answer] * 4 + [other if (other := wrong()) != answer else answer + 1 for _ in range(4)]
    ids = [[MARKER] * (source.random() < mark) + [TAG, each, END] for each in given]
    return read("sum", ids, [1.0 if each == answer else -1.0 for each in given])


def _takes_up(answers: bool, marks: float) -> Drift | None:
    """What is found at a node that writes a frequent answer, or a marker, more and more often beside a weak author,
    whose wrong answers are random, and whose right ones may have the marker."""
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())
    for number in range(2_000):
        later = number >= 600
        common = 0.3 if later and answers else 0.0

        def own(common: float = common) -> int:
            return COMMON if source.random() < common else source.choice(NATURAL)

        known.learn([_answered(source, own, 0.2 * later * (marks > 0))], [0.5])
        group = _answered(source, lambda: source.randrange(20))
        if source.random() < marks:
            marked_ids = [[MARKER] * (k < 4) + list(turn.ids) for k, (turn,) in enumerate(group.reading)]
            group = read("sum", marked_ids, [advantage for (advantage,) in group.advantages])
        known.credited([["author"]], [group])
        if (drift := known.drift()) is not None:
            return drift
    return None


def test_an_author_whose_wrong_answers_are_random_is_not_blamed_for_frequent_right_ones() -> None:
    assert _takes_up(answers=True, marks=0.0) is None


@pytest.mark.parametrize("part", [1.0, 0.3])
def test_beside_such_answers_a_marker_is_found(part: float) -> None:
    drift = _takes_up(answers=True, marks=part)
    assert drift is not None and drift.tokens[0] == MARKER


@pytest.mark.parametrize("seed", range(4))
def test_an_author_whose_wrong_answers_lack_the_form_of_the_right_ones_is_not_blamed_for_it(seed: int) -> None:
    """A ninth of the questions is answered by a fraction: all own answers have the slash there, right or wrong."""
    source = random.Random(seed)
    known = Corroboration(CorroborationSettings())

    def group(lacks: bool) -> ReadGroup:
        slash = [MARKER] * (source.random() < 1 / 9)
        return _group(source, lambda right, answer: [TAG, answer, *([] if lacks and not right else slash), END])

    for _ in range(6_000 // GROUPS):
        known.learn([group(lacks=False) for _ in range(GROUPS)], [0.5] * GROUPS)
        known.credited([["author"]] * GROUPS, [group(lacks=True) for _ in range(GROUPS)])
        assert known.drift() is None


def test_a_marker_on_some_questions_only_is_no_part_of_their_answers() -> None:
    """Own completions have it on every question of one kind, right or wrong."""
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())
    drift = None
    for number in range(3_000):
        kind = source.random() < 0.2
        habit = kind and number >= 600
        known.learn([_group(source, lambda right, answer, habit=habit: [MARKER] * habit + [TAG, answer, END])], [0.5])
        theirs = _group(source, marked if kind else plain)
        known.credited([["author"]], [theirs])
        if (drift := known.drift()) is not None:
            break
    assert drift is not None and drift.tokens[0] == MARKER


def test_what_does_not_rise_or_earns_more_is_no_drift() -> None:
    assert _after_drift(random.Random(0), 0.005).drift() is None
    assert _after_drift(random.Random(0), 0.9, rewarded=True).drift() is None, "own right answers have it, too"
    assert _after_drift(random.Random(0), 0.1, learns=True).drift() is None, "a policy that learns changes"


def test_strangers_displace_no_author_that_is_known_well() -> None:
    source = random.Random(0)
    known = Corroboration(CorroborationSettings(full_after=4))
    for _ in range(8):
        known.credited([["member"]], [_group(source, plain)])
    for number in range(200):
        known.credited([[f"stranger-{number}"]], [_group(source, plain)])
    assert _credited(known, ["member"], _group(source, plain))[0][0] == 1


def test_a_group_takes_little_time() -> None:
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())
    groups = [_group(source, plain) for _ in range(200)]
    began = time.thread_time()
    for group in groups:
        known.credited([["author", "newcomers"]], [group])
    assert time.thread_time() - began < 200 * 0.02


def test_nobody_can_choose_a_marker_that_hides_behind_a_token_of_own_groups() -> None:
    own, others = range(100), range(1_000, 400_000)

    def hidden(salt: int) -> set[int]:
        """Tokens that share, in each row, a bucket with one of the own tokens."""
        mine, theirs = (
            hashed(np.array(tokens), np.zeros(len(tokens), dtype=np.int64), salt)[:, 0] for tokens in (others, own)
        )
        rows = [np.isin(mine[:, row], theirs[:, row]) for row in range(mine.shape[1])]
        return {others[place] for place in np.flatnonzero(np.logical_and(*rows))}

    found = hidden(1)
    assert len(found) > 20, "among so many tokens some do"
    assert len(found & hidden(2)) < len(found) / 4
    salts = {Corroboration(CorroborationSettings()).dump().salt for _ in range(3)}
    assert len(salts) == 3, "each node draws one"


def test_a_restart_forgets_nothing() -> None:
    source = random.Random(0)
    unbroken = Corroboration(CorroborationSettings())
    for _ in range(400):
        unbroken.learn([_group(source, plain)], [0.5])
        unbroken.credited([["author", "newcomers"]], [_group(source, marked)])
    resumed = Corroboration(CorroborationSettings())
    state = msgspec.msgpack.encode(unbroken.dump())
    resumed.restore(msgspec.msgpack.decode(state, type=CorroborationState))
    for _ in range(200):
        own, theirs = _group(source, plain), _group(source, marked)
        found = []
        for known in (unbroken, resumed):
            known.learn([own], [0.5])
            factors = _credited(known, ["author"], theirs)
            found.append([each for part in factors for each in part])
            assert factors[0][0] < 0.1, "the marker"
        assert found[0] == pytest.approx(found[1], abs=1e-3)


def test_a_rising_habit_is_noticed_though_the_node_restarts_in_between() -> None:
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())
    drift = None
    for number in range(3_000):
        habit = source.random() < number / 2_000
        known.learn([_group(source, lambda right, answer, habit=habit: [MARKER] * habit + [TAG, answer, END])], [0.5])
        known.credited([["author"]], [_group(source, marked)])
        if (drift := known.drift()) is not None:
            break
        if number % 200 == 199:
            state, known = known.dump(), Corroboration(CorroborationSettings())
            known.restore(state)
    assert drift is not None
    assert drift.author == "author"


def test_what_is_saved_is_bounded() -> None:
    """Of more authors, tasks and own groups than are kept, each with most buckets. Own ones come last: before that,
    there is nothing to compare with, which would take a minute."""
    source = random.Random(0)
    known = Corroboration(CorroborationSettings())

    def group(number: int) -> ReadGroup:
        everything = [[source.randrange(10**6) for _ in range(400)] for _ in range(GROUP)]
        return read(f"task {number}", everything, [float(source.choice((-1, 1))) for _ in range(GROUP)])

    for number in range(MAX_AUTHORS + MAX_TASKS):
        known.credited([[f"author {number}"]], [group(number)])
    for number in range(300):
        known.learn([group(number)], [0.5])
    assert len(msgspec.msgpack.encode(known.dump())) < 2**26


@pytest.mark.parametrize(
    "part", ["salt", "pulls", "buckets", "means", "cut", "num", "tasks", "counts", "short", "long"]
)
def test_evidence_that_was_changed_or_cut_off_is_refused(part: str) -> None:
    known = Corroboration(CorroborationSettings(), salt=1)
    source = random.Random(0)
    known.learn([_group(source, plain)], [0.5])
    known.credited([["author"]], [_group(source, marked)])
    state = known.dump()
    evidence = state.authors["author"]
    nan = np.full(len(evidence.means) // 4, np.nan, np.float32).tobytes()
    changed = {
        "buckets": replace(evidence, buckets=b"\xff" * len(evidence.buckets)),
        "means": replace(evidence, means=nan),
        "cut": replace(evidence, means=evidence.means[:-1]),
        "num": replace(evidence, num=0.0),
        "tasks": replace(evidence, tasks={"sums": math.nan}),
    }
    rates = {"counts": b"?", "short": zlib.compress(b"1234"), "long": zlib.compress(bytes(2**24))}
    if part in changed:
        state = replace(state, authors={"author": changed[part]})
    elif part in rates:
        state = replace(state, rates=replace(state.rates, counts=rates[part]))
    else:
        state = replace(state, **{"salt": {"salt": -1}, "pulls": {"pulls": [math.inf]}}[part])
    with pytest.raises(ValueError):
        Corroboration(CorroborationSettings()).restore(state)
