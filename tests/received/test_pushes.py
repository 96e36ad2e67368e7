"""Pushes of a round's groups computed at once, against the same one token after the other."""

from __future__ import annotations

import random

import numpy as np
import pytest

from swarm.received.corroboration import Corroboration, CorroborationSettings
from swarm.received.pushes import Pushes, ReadGroup, hashed
from swarm.types import ReadTurn
from tests.received.plain_corroboration import PlainCorroboration, pull, push, tokens

TASKS = ("sum", "gcd", "lcm")
VOCABULARY = 7
SALT = 4


def _random_group(source: random.Random) -> ReadGroup:
    """Of a few turns, with empty completions, and sometimes with the same reward for all."""
    reading, advantages = [], []
    bias = source.choice([0, 3, 6])
    flat = source.random() < 0.15
    for _ in range(source.randrange(1, 7)):
        advantage = 0.0 if flat else source.choice([1.5, 0.5, 0.0, -1.0])
        turns = []
        for _ in range(source.choice([0, 1, 1, 1, 2])):
            ids = [source.randrange(bias if advantage > 0 else 0, VOCABULARY) for _ in range(source.randrange(1, 9))]
            turns.append(ReadTurn(ids, [-4 * source.random() for _ in ids]))
        reading.append(turns)
        advantages.append([advantage + (0.25 if flat is False and k else 0.0) for k in range(max(1, len(turns)))])
    return ReadGroup(source.choice(TASKS), reading, advantages)


def test_no_two_keys_of_these_tests_share_a_bucket() -> None:
    """Otherwise exact counts would be no reference."""
    before, token = np.array([(before, token) for before in range(-1, VOCABULARY) for token in range(VOCABULARY)]).T
    buckets = hashed(token, before, SALT)
    for row in range(2):
        num_buckets = len(set(buckets[:, :, row].ravel().tolist()))
        assert num_buckets == 2 * (len(token) + VOCABULARY)


@pytest.mark.parametrize("seed", range(6))
def test_factors_are_those_of_exact_counts(seed: int) -> None:
    source = random.Random(seed)
    known, plain = Corroboration(CorroborationSettings(), SALT), PlainCorroboration()
    num_lowered = 0
    for _ in range(14):
        own = [_random_group(source) for _ in range(source.randrange(0, 7))]
        known.learn(own, [0.5] * len(own))
        for group in own:
            plain.learn(group)
        names = [source.choice([["a"], ["b", "new"], ["c", "new"]]) for _ in range(source.randrange(0, 5))]
        theirs = [_random_group(source) for _ in names]
        found = known.credited(names, theirs)
        for name, group in zip(names, theirs, strict=True):
            plain.observe(name, group)
        for name, group, factors in zip(names, theirs, found, strict=True):
            expected = plain.factors(name, group)
            assert [len(each) for each in factors] == [sum(len(t.ids) for t in turns) for turns in group.reading]
            assert [each for part in factors for each in part] == pytest.approx(expected, rel=1e-9)
            num_lowered += sum(value < 0.9 for value in expected)
    assert num_lowered > 20, "the reference has something to say"


def test_pushes_and_pulls_of_a_group_do_not_depend_on_the_others_beside_it() -> None:
    source = random.Random(9)
    groups = [_random_group(source) for _ in range(12)]
    together = Pushes(groups, SALT)
    pulls = together.pulls()
    for number, group in enumerate(groups):
        assert pulls[number] == pytest.approx(pull(group, [1.0] * sum(1 for _ in tokens(group))))
        raised = any(advantage > 0 for _, _, _, advantage, _, _ in tokens(group))
        assert together.has_raised[number] == raised
        if raised:
            entries = together.entries[number]
            found = dict(zip(together.bucket[entries].tolist(), together.push[entries, :2].tolist(), strict=True))
            for (scale, before, token), expected in push(group).items():
                kind = 2 * (scale == "plain") + (before is not None)
                bucket = hashed(np.array([token]), np.array([-1 if before is None else before]), SALT)[0, kind]
                least = min((found[place] for place in bucket.tolist()), key=sum)
                assert least == pytest.approx(list(expected))
    for first in (0, 5, 12):
        part = together.since(first)
        assert part.pulls().tolist() == pytest.approx(pulls[first:].tolist())
        assert part.tasks == [group.task for group in groups[first:]]


def test_no_groups_and_groups_without_tokens_push_nothing() -> None:
    assert len(Pushes([], SALT)) == 0
    empty = Pushes([ReadGroup("sum", [[], []], [[1.0], [-1.0]])], SALT)
    assert empty.has_raised == [False] and empty.pulls().tolist() == [0.0]
    assert Corroboration(CorroborationSettings(), SALT).credited([["a"]], [ReadGroup("sum", [[]], [[1.0]])]) == [((),)]
