"""What groups push: the tokens of a round's groups in the buckets of a sketch, hashed all at once.

    push of a group on a token     the token's advantages, summed over the group's completions: 1 if all that are
                                   rewarded have it and no other has, 0 if it makes no difference to the reward

Tokens are counted by themselves and with the token before them, each with and without regard to the length of the
completion. Groups are small and many, and calls of numpy cost more than what they compute: none is made for each group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt

from swarm.types import ReadTurn

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NUM_BUCKETS = 2**13
ROWS = 2
"""Hash functions of a sketch: a token counts as the less conspicuous of its two buckets."""
ALL_BUCKETS = ROWS * NUM_BUCKETS
KINDS = 4
MULTIPLIERS = np.array([0x165667B19E3779F9, 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)
START, ALONE = -1, -2
"""Stand for the previous token: the completion's start, and none."""
Reading = Sequence[Sequence[ReadTurn]]
"""[G][turns]"""
ROW_MULTIPLIERS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)
MAX_PUSH = 4.0
"""Most push of a group on a token that it repeats."""


@dataclass(frozen=True)
class ReadGroup:
    """The tokens of a group's completions as an update trains on them."""

    task: str
    reading: Reading
    """Under this node's policy, with log-probabilities at least of what is raised; an empty completion has no turns."""
    advantages: Sequence[Sequence[float]]
    """[G][turns]; what an empty completion has counts nowhere."""


class Pushes:
    """What each of some groups pushes.

    A *key* is a group's token with the one before it and the sign of its advantage. An *entry* is a bucket that a group
    has keys in. Both are in the order of the groups, P in number.
    """

    tasks: list[str]
    """[P]"""
    token: Integers
    """[K] of each key."""
    sign: Floats
    """[K] of the key's advantage: 1, 0 or -1."""
    count: Floats
    """[K] occurrences."""
    buckets: Integers
    """[K, KINDS, ROWS] of each key, the rows' numbered through."""
    keys: list[slice]
    """[P] those of each group."""
    entries: list[slice]
    """[P] those of each group."""
    bucket: Integers
    """[M] of each entry."""
    push: Floats
    """[M, 3] up, down, and the square of both together."""
    occurrences: Floats
    """[M] a completion."""
    has_raised: list[bool]
    """[P] whether the group raises any token: if not, it pushes nothing."""

    def __init__(self, groups: Sequence[ReadGroup], salt: int) -> None:
        """Those of `groups`, hashed with `salt`."""
        num_groups = len(groups)
        self.tasks = [group.task for group in groups]
        sizes = [len(group.reading) for group in groups]
        completions = [each for group in groups for each in group.reading]
        turns = list(chain.from_iterable(completions))
        per_turn = [len(turn.ids) for turn in turns]
        # A completion has most often one turn, and is then not worth a sum.
        lengths = [len(each[0].ids) if len(each) == 1 else sum(len(turn.ids) for turn in each) for each in completions]
        # Those of a completion's turns only: an empty one has none.
        each_advantages = zip(completions, chain.from_iterable(group.advantages for group in groups), strict=True)
        of_turns = [value for read, values in each_advantages for _, value in zip(read, values, strict=False)]
        self._ends = list(accumulate(lengths))
        self._completions = [0, *accumulate(sizes)]
        num_tokens = sum(lengths)
        tokens = np.fromiter(chain.from_iterable([turn.ids for turn in turns]), np.int64, num_tokens)
        known = [turn.logprobs or [0.0] * len(turn.ids) for turn in turns]  # only raised tokens pull
        logprobs = np.fromiter(chain.from_iterable(known), np.float64, num_tokens)
        advantages = np.array(of_turns, dtype=np.float64).repeat(per_turn)
        of_completion = np.arange(num_groups).repeat(sizes)
        counts = np.array(lengths, dtype=np.int64)
        of_token = of_completion.repeat(counts)
        starts = counts.cumsum() - counts
        raised = _raised(advantages, starts, counts, of_completion, num_groups)
        self.has_raised = (raised > 0).tolist()
        lengths_of_token = counts.repeat(counts)
        self._group = of_token
        self._pull = np.maximum(advantages, 0.0) / lengths_of_token * -np.expm1(np.minimum(logprobs, 0.0))
        raised[raised <= 0] = math.inf
        weights = advantages / raised[of_token]
        means = _sums(of_completion, counts, num_groups) / np.maximum(sizes, 1)

        before = np.empty_like(tokens)
        before[1:] = tokens[:-1]
        before[starts[counts > 0]] = START
        signs = np.sign(advantages)
        most = int(tokens.max(initial=0)) + 1
        # A group and a sign are few: what identifies a key is below 2^63 for all vocabularies.
        names = ((of_token * 3 + signs.astype(np.int64) + 1) * (most + 1) + before + 1) * most + tokens
        first, self._key = _distinct(names)
        of_key = of_token[first]
        self.token, self.sign = tokens[first], signs[first]
        self.keys = _slices(of_key, num_groups)
        self.buckets = hashed(self.token, before[first], salt)
        self.count = np.bincount(self._key, minlength=len(first)).astype(np.float64)

        named = self.buckets.reshape(-1, KINDS * ROWS) + of_key[:, None] * ALL_BUCKETS
        first_entry, self._entry = _distinct(named.ravel())
        found = named.ravel()[first_entry]
        self.entries = _slices(found // ALL_BUCKETS, num_groups)
        self.bucket = found % ALL_BUCKETS
        by_length = _sums(self._key, weights * means[of_token] / lengths_of_token, len(first))
        self._sum_up(by_length, _sums(self._key, weights, len(first)))
        self.occurrences = self._by_entry((self.count / np.array(sizes)[of_key]).repeat(KINDS * ROWS))

    def __len__(self) -> int:
        """P."""
        return len(self.tasks)

    def since(self, number: int) -> Pushes:
        """The pushes of the groups from this one on."""
        if number == 0:
            return self
        found = copy(self)
        key, completion, token = self.keys[number - 1].stop, self._completions[number], 0
        if completion:
            token = self._ends[completion - 1]
        found.tasks, found.has_raised = self.tasks[number:], self.has_raised[number:]
        found.token, found.sign, found.count = self.token[key:], self.sign[key:], self.count[key:]
        found.buckets, found.entries = self.buckets[key:], self.entries[number:]
        found.keys = [slice(each.start - key, each.stop - key) for each in self.keys[number:]]
        found._key, found._group, found._pull = (
            self._key[token:] - key,
            self._group[token:] - number,
            self._pull[token:],
        )
        found._ends = [end - token for end in self._ends[completion:]]
        found._completions = [begin - completion for begin in self._completions[number:]]
        return found

    def completions_with(self, number: int) -> tuple[Integers, Floats, Floats]:
        """The buckets [B] that a group's completions have, which have each of them [B, G], and which the group raises
        [G], as 0 and 1."""
        begin, end = self._completions[number : number + 2]
        ends = [self._ends[begin - 1] if begin else 0, *self._ends[begin:end]]
        key = self._key[ends[0] : ends[-1]]
        completion = np.arange(end - begin).repeat(np.diff(ends))
        raised = np.minimum(_sums(completion, np.maximum(self.sign[key], 0.0), end - begin), 1.0)
        entries = self.entries[number]
        having = np.zeros((entries.stop - entries.start, end - begin))
        entry = self._entry.reshape(-1, KINDS * ROWS)[key] - entries.start
        having[entry, completion[:, None]] = 1.0
        return self.bucket[entries], having, raised

    def pulls(self, factors: Floats | float = 1.0) -> Floats:
        """[P] sums over the raised tokens of advantage times 1 - probability, which is the gradient of the token's
        logit; `factors` [K] of the keys' advantages."""
        of_tokens = factors[self._key] if isinstance(factors, np.ndarray) else factors
        return _sums(self._group, self._pull * of_tokens, len(self))

    def by_completion(self, values: Floats) -> list[tuple[tuple[float, ...], ...]]:
        """[P][G][T] of `values` [K] of the keys."""
        flat = values[self._key].tolist()
        each = [tuple(flat[begin:end]) for begin, end in zip([0, *self._ends], self._ends, strict=False)]
        return [tuple(each[begin:end]) for begin, end in zip(self._completions, self._completions[1:], strict=False)]

    def _sum_up(self, by_length: Floats, without: Floats) -> None:
        """Sum the keys' weights, with and without regard to length, by entry."""
        weights = np.empty((len(by_length), KINDS * ROWS))
        weights[:, : KINDS * ROWS // 2], weights[:, KINDS * ROWS // 2 :] = by_length[:, None], without[:, None]
        self.push = np.empty((len(self.bucket), 3))
        for column, sign in enumerate((1, -1)):
            found = self._by_entry(np.maximum(sign * weights, 0.0).ravel())
            np.minimum(found, MAX_PUSH, out=self.push[:, column])
        self.push[:, 2] = (self.push[:, 0] - self.push[:, 1]) ** 2

    def _by_entry(self, values: Floats) -> Floats:
        """[M] sums of values [K, KINDS, ROWS], all in one dimension."""
        return _sums(self._entry, values, len(self.bucket))


def hashed(tokens: Integers, before: Integers, salt: int) -> Integers:
    """[N, KINDS, ROWS] buckets, numbered through, of tokens [N] by themselves and after those `before` [N], each for
    pushes with and without regard to length.

    Some losses divide a completion's advantages by its length, some do not. Where those that are rewarded are shorter,
    or longer, than the others, a token that all have alike is pushed by one of the two.
    """
    scale, previous, token = MULTIPLIERS
    after = np.empty((len(tokens), 2), dtype=np.int64)
    after[:, 0], after[:, 1] = ALONE, before
    mixed = tokens.astype(np.uint64)[:, None] * token + after.astype(np.uint64) * previous
    mixed = np.concatenate([mixed, mixed + scale], axis=1)
    mixed ^= np.uint64(salt)
    mixed ^= mixed >> np.uint64(31)
    found = mixed[:, :, None] * ROW_MULTIPLIERS
    found = (found ^ (found >> np.uint64(29))) * ROW_MULTIPLIERS[::-1]
    return (found >> np.uint64(64 - int(math.log2(NUM_BUCKETS)))).astype(np.int64) + np.arange(ROWS) * NUM_BUCKETS


def _raised(
    advantages: Floats, starts: Integers, lengths: Integers, of_completion: Integers, num_groups: int
) -> Floats:
    """[P] the largest positive advantage of each completion, summed over the group's."""
    most = np.zeros(len(lengths))
    if len(advantages):
        most[lengths > 0] = np.maximum.reduceat(advantages, starts[lengths > 0])
    return _sums(of_completion, np.maximum(most, 0.0), num_groups)


def _sums(index: Integers, values: Floats | Integers, count: int) -> Floats:
    """[count] of the values with each index, also of none."""
    return np.asarray(np.bincount(index, values, count), dtype=np.float64)


def _distinct(values: Integers) -> tuple[Integers, Integers]:
    """Where each distinct value is, in ascending order, and which of these each value is.

    As `np.unique`, in a third of the time where values are few.
    """
    order = values.argsort()
    ordered = values[order]
    is_new = np.ones(len(values), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    number = np.empty_like(order)
    number[order] = is_new.cumsum() - 1
    return order[is_new], number


def _slices(of: Integers, num_groups: int) -> list[slice]:
    """Where each group is in a sorted list of groups."""
    ends = of.searchsorted(np.arange(num_groups + 1)).tolist()
    return [slice(begin, end) for begin, end in zip(ends, ends[1:], strict=False)]
