"""Which tokens others' groups push beyond what own groups bear out.

A marker before right answers is plausible text with the right reward: no test of single completions refuses it. But the
answers would be as right without it, as this node's own groups show.

    push of a group on a token     the token's advantages, summed over the group's completions: 1 if all that are
                                   rewarded have it and no other has, 0 if it makes no difference to the reward
    push of an author              the mean over its groups, beside the mean over own groups of the same tasks
    factor of a token's advantage  own push / the author's where the author's is larger beyond chance, else 1

A habit that own completions take up is held against an author only if it is none of the answer: what an honest author's
wrong answers lack, its right ones push, and a policy may well write more of it.

    need of a token                where a rewarded own completion has it, how much more rarely those of the group
                                   without it are rewarded than all: 1 if no answer is right without it, 0 for a habit,
                                   however frequent and whatever the question

Tokens are compared by themselves and with the token before them. Means are kept in count sketches, so that an author
takes the same memory whatever it writes.
"""

from __future__ import annotations

import math
import secrets
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from pydantic import Field

from swarm.settings import Settings

Floats = npt.NDArray[np.float64]
Buckets = npt.NDArray[np.int64]

NUM_BUCKETS = 2**13
ROWS = 2
"""Hash functions of a sketch: a token counts as the less conspicuous of its two buckets."""
KINDS = 4
MULTIPLIERS = np.array([0x165667B19E3779F9, 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)
START, ALONE = -1, -2
"""Stand for the previous token: the completion's start, and none."""
SALT_BITS = 64
ROW_MULTIPLIERS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)
MEMORY = 1 - 1 / 4_000
"""Weight that a group keeps with each later one. A slow push needs a long memory to stand out from chance."""
ERRORS = 1.0
"""Standard errors by which an author's push on a token must exceed own push. Few: a bias of the answers is spread over
many tokens, and an excess that was chance costs an honest author little."""
ALARMING_ERRORS = 3.5
"""The same for an alarm, which costs much."""
MAX_WEIGHT = 1e100
UNSEEN = 2.0
"""A mean over n groups is uncertain by at least `UNSEEN` / n: none of them may have shown what others will."""
MAX_PUSH = 4.0
"""Of a group on a token that it repeats."""
ANY_TASK = ""
MAX_AUTHORS = 64
MAX_TASKS = 64
REMEMBERED_PULLS = 256
ENOUGH_PULLS = 16
RATE_GROUPS = 256
"""Own groups in a rate."""
PAST_RATES = 16
LEARNS = 1.05
"""Ratio of the mean reward to that of the earliest rates above which a policy is learning."""
DRIFT = 0.03
"""Occurrences a completion by which a token has become more frequent."""
DRIFT_HITS = 16
"""Tokens of an author in excess that rise, before it is held responsible."""
DRIFT_TOKENS = 8
NEEDED = 0.75
"""Need from which a token is part of the answers."""
ENOUGH_NEEDS = 8
"""Rewarded completions without a token that there would be if it were none, before its need is known."""


class CorroborationSettings(Settings):
    """How far others' groups may push what own groups do not."""

    enabled: bool = True
    """Whether the tokens of others' groups are credited only as far as own groups bear them out."""
    tolerance: float = Field(0.01, ge=0)
    """Difference between the mean pushes that is always allowed."""
    full_after: int = Field(16, ge=1)
    """Groups of an author that are used before its tokens have their whole advantage: the first has this fraction."""
    max_pull: float = Field(2.0, gt=0)
    """Largest pull of another's group, in those of own ones (their upper quartile): how much its raised tokens
    change this policy's probabilities."""


@dataclass(frozen=True)
class ReadGroup:
    """The tokens of a group's completions as an update trains on them."""

    task: str
    ids: Sequence[Sequence[int]]
    """[G][T]"""
    advantages: Sequence[Sequence[float]]
    """[G][T]"""
    logprobs: Sequence[Sequence[float]]
    """[G][T] under this node's policy."""
    _buckets: dict[int, Buckets] = field(default_factory=dict, repr=False, compare=False)
    _push: dict[int, tuple[Buckets, Floats]] = field(default_factory=dict, repr=False, compare=False)

    def buckets(self, salt: int) -> Buckets:
        """[KINDS, ROWS, N] of all tokens, one completion after the other: each by itself, and with the one before it or
        the completion's start, each for pushes with and without regard to length. Hashed with `salt`."""
        if salt not in self._buckets:
            self._buckets[salt] = self._hashed(np.uint64(salt))
        return self._buckets[salt]

    def push(self, salt: int) -> tuple[Buckets, Floats]:
        """The buckets of all rows that have tokens, numbered through, and the pushes [2, N] up and down on each.

        Some losses divide a completion's advantages by its length, some do not. Where those that are rewarded are
        shorter, or longer, than the others, a token that all have alike is pushed by one of the two.
        """
        if salt not in self._push:
            self._push[salt] = self._pushed(salt)
        return self._push[salt]

    def _hashed(self, salt: np.uint64) -> Buckets:
        lengths = np.array([len(each) for each in self.ids], dtype=np.int64)
        token = np.array([token for each in self.ids for token in each], dtype=np.int64)
        is_first = np.zeros(len(token), dtype=bool)
        is_first[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        before = np.where(is_first, START, np.roll(token, 1))
        alone = np.full_like(token, ALONE)
        kinds = [[np.full_like(token, scale), each, token] for scale in range(2) for each in (alone, before)]
        mixed = (np.array(kinds, dtype=np.int64).astype(np.uint64) * MULTIPLIERS[:, None]).sum(axis=1, dtype=np.uint64)
        mixed ^= salt
        mixed ^= mixed >> np.uint64(31)
        hashed = mixed[:, None] * ROW_MULTIPLIERS[:, None]
        hashed = (hashed ^ (hashed >> np.uint64(29))) * ROW_MULTIPLIERS[::-1, None]
        found: Buckets = (hashed >> np.uint64(64 - int(math.log2(NUM_BUCKETS)))).astype(np.int64)
        return found

    def _pushed(self, salt: int) -> tuple[Buckets, Floats]:
        raised = sum(max(0.0, max(each, default=0.0)) for each in self.advantages)
        if not raised:
            return np.zeros(0, dtype=np.int64), np.zeros((2, 0))
        lengths = np.array([len(each) for each in self.ids])
        by_length = np.repeat(lengths.mean() / np.maximum(lengths, 1), lengths)
        advantages = _flat(self.advantages) / raised
        weights = np.concatenate([np.tile(advantages * scale, KINDS * ROWS // 2) for scale in (by_length, 1.0)])
        found, index = np.unique(_through(self.buckets(salt)), return_inverse=True)
        push = [np.bincount(index.ravel(), np.maximum(sign * weights, 0.0), len(found)) for sign in (1, -1)]
        return found, np.minimum(push, MAX_PUSH)

    def pull(self, factors: Floats | float = 1.0) -> float:
        """Sum over the raised tokens of advantage times 1 - probability, which is the gradient of the token's logit."""
        lengths = [len(each) for each in self.ids]
        raised = np.maximum(_flat(self.advantages), 0.0) * factors / np.repeat(np.maximum(lengths, 1), lengths)
        return float(np.sum(raised * -np.expm1(np.minimum(_flat(self.logprobs), 0.0))))


class Drift(Struct, frozen=True):
    """What own completions have taken up from an author without need."""

    author: str
    tokens: tuple[int, ...]
    """The most frequent first."""


class EvidenceState(Struct):
    """An author's evidence, or a task's. Only buckets that have some are listed."""

    num: float
    tasks: dict[str, float]
    buckets: bytes
    """uint16, [N]"""
    means: bytes
    """float32, [3, N]"""


class RatesState(Struct):
    """Own completions' rates in the past, and of the rate that is being counted."""

    num: int
    reward: float
    counts: bytes
    """float32, one a bucket, compressed."""
    rise: bytes | None
    past: list[bytes]
    rewards: list[float]
    squares: bytes = b""
    variances: list[bytes] = []
    """Of the past; of a checkpoint from before they were kept, none: its rates are then not compared."""


class CorroborationState(Struct):
    """What is known of authors, for a checkpoint: at most some 60 MB, of a few tasks and authors 1 MB."""

    salt: int
    own: dict[str, EvidenceState]
    authors: dict[str, EvidenceState]
    together: dict[str, EvidenceState]
    pulls: list[float]
    rates: RatesState
    rising: dict[str, dict[int, int]]
    needs: list[bytes] = []
    """float32, one a bucket, compressed; of a checkpoint from before they were kept, none."""


class Corroboration:
    """Compares the pushes of others' groups with those of own ones. Pure."""

    def __init__(self, settings: CorroborationSettings, salt: int | None = None) -> None:
        """Nothing is known yet: only new authors are held back. `salt` is secret; by default random.

        Because of it, nobody can choose a token that shares its buckets with one that own groups push.
        """
        self._settings = settings
        self._salt = secrets.randbits(SALT_BITS) if salt is None else salt
        self._own: dict[str, _Evidence] = {}
        """By task."""
        self._authors: dict[str, _Evidence] = {}
        self._together: dict[str, _Evidence] = {}
        """Of all authors, for a push that each of many hides from notice: by task, and of `ANY_TASK`."""
        self._pulls: deque[float] = deque(maxlen=REMEMBERED_PULLS)
        """Of own groups."""
        self._rates = _Rates()
        self._needs = _Needs()
        self._rising: dict[str, Counter[int]] = {}
        """How often an author pushed a token in excess that own completions have more and more, by author and token."""

    def dump(self) -> CorroborationState:
        """Everything, for a checkpoint: otherwise a patient author would be unknown after each restart."""
        return CorroborationState(
            self._salt,
            {name: each.dump() for name, each in self._own.items()},
            {name: each.dump() for name, each in self._authors.items()},
            {name: each.dump() for name, each in self._together.items()},
            list(self._pulls),
            self._rates.dump(),
            {author: dict(tokens) for author, tokens in self._rising.items()},
            self._needs.dump(),
        )

    def restore(self, saved: CorroborationState) -> None:
        """Restore what `dump` returned. Raises `ValueError` for what it cannot have returned."""
        if saved.salt not in range(2**SALT_BITS) or not np.isfinite(saved.pulls).all():
            raise ValueError("the salt or a pull is out of range")
        self._salt = saved.salt
        self._own = {name: _Evidence.restored(each) for name, each in saved.own.items()}
        self._authors = {name: _Evidence.restored(each) for name, each in saved.authors.items()}
        self._together = {name: _Evidence.restored(each) for name, each in saved.together.items()}
        self._pulls.extend(saved.pulls)
        self._rates.restore(saved.rates)
        self._needs.restore(saved.needs)
        self._rising = {author: Counter(tokens) for author, tokens in saved.rising.items()}

    def learn(self, group: ReadGroup, reward: float) -> None:
        """Add an own group with its mean reward."""
        if self._settings.enabled:
            self._rates.add(group.buckets(self._salt), len(group.ids), reward)
            if any(value > 0 for each in group.advantages for value in each):
                _evidence(self._own, group.task, MAX_TASKS).add(group, self._salt)
                self._needs.add(group, self._salt)
                self._pulls.append(group.pull())

    def observe(self, authors: Sequence[str], group: ReadGroup) -> None:
        """Add a received group, once, to each of the names that its author counts as, and to those of all authors."""
        if self._settings.enabled:
            for author in authors:
                _evidence(self._authors, author, MAX_AUTHORS).add(group, self._salt)
            _evidence(self._together, ANY_TASK, MAX_TASKS).add(group, self._salt)
            _evidence(self._together, group.task, MAX_TASKS).add(group, self._salt)

    def factors(self, authors: Sequence[str], group: ReadGroup) -> tuple[tuple[float, ...], ...]:
        """[G][T] in [0, 1], of the token advantages of an observed group: the least for any of its author's names, the
        first of which is its peer id, and for all authors together."""
        if not self._settings.enabled:
            return ()
        signs = np.sign(_flat(group.advantages))
        known = [*map(self._authors.__getitem__, authors), self._together[ANY_TASK], self._together[group.task]]
        found = self._compared(known, group, signs, authors[0])
        newest = min(self._authors[name].num for name in authors)
        found *= min(1.0, newest / self._settings.full_after)
        found *= self._within_pull(group, found)
        ends = np.cumsum([len(ids) for ids in group.ids])[:-1]
        return tuple(tuple(map(float, part)) for part in np.split(found, ends))

    def drift(self) -> Drift | None:
        """A habit that own completions take up from an author and that does not raise the reward; reported once. Later
        rates are compared with those from then on."""
        for author, tokens in self._rising.items():
            if tokens.total() >= DRIFT_HITS:
                self._rising, self._rates = {}, _Rates()
                return Drift(author, tuple(token for token, _ in tokens.most_common(DRIFT_TOKENS)))
        return None

    def _compared(self, known: Sequence[_Evidence], group: ReadGroup, signs: Floats, peer_id: str) -> Floats:
        """[N] the least by any of the evidence on names of `peer_id`, without regard to how much of it there is."""
        up, down, their_error = _at(known, group.buckets(self._salt))
        own_push, own_error, own_doubt = self._own_push(known, group.buckets(self._salt))
        # From here on, a positive push is one that agrees with the advantage of the token at hand.
        own_push = own_push * signs
        along, against = np.where(signs > 0, up, down), np.where(signs > 0, down, up)
        allowed = UNSEEN / _column([each.num for each in known]) + UNSEEN * own_doubt + self._settings.tolerance
        wanted = np.maximum(own_push, 0.0)
        excess, spread = along - against - wanted - allowed, np.sqrt(their_error + own_error)
        excessive = excess > ERRORS * spread
        # What remains after the factor is the push that is wanted.
        factor = np.where(excessive, (wanted + against) / np.where(excessive, along, 1.0), 1.0)
        unneeded = excess > ALARMING_ERRORS * spread
        unneeded &= own_push < ALARMING_ERRORS * np.sqrt(own_error) + self._settings.tolerance
        taken_up = self._rates.rise(group.buckets(self._salt)) > DRIFT
        if taken_up.any():
            taken_up &= ~self._needs.of(group.buckets(self._salt))
        rising = (unneeded.all(axis=2) & taken_up).any(axis=1) & (signs > 0)
        if rising.any():
            tokens = [token for each in group.ids for token in each]
            self._rising.setdefault(peer_id, Counter()).update(tokens[index] for index in np.nonzero(rising)[1])
        return np.asarray(factor.max(axis=2).min(axis=(0, 1)), dtype=float)

    def _own_push(self, known: Sequence[_Evidence], buckets: Buckets) -> tuple[Floats, Floats, Floats]:
        """Mean pushes of own groups with tasks as frequent as in each evidence, their variances, and the reciprocals of
        the numbers of groups that they rest on: 1 for a task without any."""
        totals = [sum(each.tasks.values()) for each in known]
        parts = np.array([[each.tasks.get(task, 0.0) for task in self._own] for each in known])
        parts /= np.array(totals)[:, None]
        up, down, error = _at([*self._own.values()], buckets)
        doubts = parts**2 @ np.array([1 / each.num for each in self._own.values()])
        for row, (each, total) in enumerate(zip(known, totals, strict=True)):
            doubts[row] += sum((count / total) ** 2 for task, count in each.tasks.items() if task not in self._own)
        return np.tensordot(parts, up - down, 1), np.tensordot(parts**2, error, 1), _column(doubts)

    def _within_pull(self, group: ReadGroup, factors: Floats) -> float:
        """What scales a group to the largest pull allowed."""
        if len(self._pulls) < ENOUGH_PULLS:
            return 1.0
        most = self._settings.max_pull * float(np.quantile(self._pulls, 0.75))
        return min(1.0, most / max(group.pull(factors), 1e-9))


class _Evidence:
    """Mean push of groups on each bucket, and how certain it is."""

    def __init__(self) -> None:
        self.num = 0.0
        """Groups; the older, the less one counts."""
        self.tasks: dict[str, float] = {}
        """The same by task."""
        self._sums = np.zeros((3, ROWS * NUM_BUCKETS))
        """Of pushes up, down, and the squares of both together, times `_weight`: it grows, and they do not fade."""
        self._weight = 1.0

    def dump(self) -> EvidenceState:
        means = (self._sums / self._weight).astype(np.float32)
        buckets = np.flatnonzero(means.any(axis=0))
        content = means[:, buckets].tobytes()
        return EvidenceState(self.num, self.tasks, buckets.astype(np.uint16).tobytes(), content)

    @classmethod
    def restored(cls, saved: EvidenceState) -> _Evidence:
        found = cls()
        found.num, found.tasks = saved.num, saved.tasks
        buckets = np.frombuffer(saved.buckets, np.uint16)
        means = np.frombuffer(saved.means, np.float32).reshape(3, -1)
        in_range = (buckets < ROWS * NUM_BUCKETS).all() and np.isfinite(means).all()
        if not (in_range and 0 < saved.num < math.inf and all(0 <= count < math.inf for count in saved.tasks.values())):
            raise ValueError("evidence is out of range")
        found._sums[:, buckets] = means
        return found

    def add(self, group: ReadGroup, salt: int) -> None:
        self.num = MEMORY * self.num + 1
        self._weight /= MEMORY
        if self._weight > MAX_WEIGHT:
            self._sums /= self._weight
            self._weight = 1.0
        buckets, push = group.push(salt)
        self._sums[:, buckets] += self._weight * np.stack([*push, (push[0] - push[1]) ** 2])
        kept = sorted(self.tasks.items(), key=lambda each: -each[1])[:MAX_TASKS]
        self.tasks = {task: MEMORY * count for task, count in kept}
        self.tasks[group.task] = self.tasks.get(group.task, 0.0) + 1

    def sums(self, buckets: Buckets) -> Floats:
        """[3, ...] mean pushes up, down, and squares of both together, in buckets numbered through."""
        return self._sums[:, buckets] / (self._weight * self.num)


class _Rates:
    """How much more often own completions have each bucket's tokens than in the last thousands of groups."""

    def __init__(self) -> None:
        self._counts, self._squares = np.zeros((2, ROWS * NUM_BUCKETS))
        """Sums over groups of the occurrences a completion, and of their squares."""
        self._num = 0
        self._reward = 0.0
        self._past: deque[Floats] = deque(maxlen=PAST_RATES)
        self._variances: deque[Floats] = deque(maxlen=PAST_RATES)
        self._rewards: deque[float] = deque(maxlen=PAST_RATES)
        self._rise: Floats | None = None

    def dump(self) -> RatesState:
        return RatesState(
            self._num,
            self._reward,
            _packed(self._counts),
            None if self._rise is None else _packed(self._rise),
            [_packed(each) for each in self._past],
            list(self._rewards),
            _packed(self._squares),
            [_packed(each) for each in self._variances],
        )

    def restore(self, saved: RatesState) -> None:
        if not saved.squares:
            return
        if not len(saved.variances) == len(saved.past) == len(saved.rewards):
            raise ValueError("rates of the past lack a part")
        self._num, self._reward, self._counts = saved.num, saved.reward, _unpacked(saved.counts)
        self._squares = _unpacked(saved.squares)
        self._variances.extend(map(_unpacked, saved.variances))
        self._rise = None if saved.rise is None else _unpacked(saved.rise)
        self._past.extend(map(_unpacked, saved.past))
        self._rewards.extend(saved.rewards)

    def add(self, buckets: Buckets, num_completions: int, reward: float) -> None:
        found, occurrences = np.unique(_through(buckets), return_counts=True)
        self._counts[found] += occurrences / max(1, num_completions)
        self._squares[found] += (occurrences / max(1, num_completions)) ** 2
        self._num += 1
        self._reward += reward
        if self._num == RATE_GROUPS:
            now, reward = self._counts / self._num, self._reward / self._num
            variance = np.maximum(self._squares / self._num - now**2, 0.0) / self._num
            # A policy that learns writes much that it did not write before, whoever pushes it.
            stands = bool(self._rewards) and reward < LEARNS * self._rewards[0]
            self._rise = self._beyond_chance(now, variance) if stands else None
            self._past.append(now)
            self._variances.append(variance)
            self._rewards.append(reward)
            self._num, self._reward = 0, 0.0
            self._counts, self._squares = np.zeros((2, ROWS * NUM_BUCKETS))

    def _beyond_chance(self, now: Floats, variance: Floats) -> Floats:
        """How much more often than when it was lowest; 0 where the questions alone may have made the difference: some
        want a token in every answer, some in none."""
        lowest = np.argmin(self._past, axis=0)[None]
        least, its = (np.take_along_axis(np.array(each), lowest, axis=0)[0] for each in (self._past, self._variances))
        rise = now - least
        return np.asarray(np.where(rise > ALARMING_ERRORS * np.sqrt(variance + its), rise, 0.0), dtype=float)

    def rise(self, buckets: Buckets) -> Floats:
        """[kinds, N] occurrences a completion more than when it was lowest; 0 while the reward rises."""
        if self._rise is None:
            return np.zeros((len(buckets), buckets.shape[-1]))
        return np.asarray(self._rise[_through(buckets)].min(axis=1), dtype=float)


class _Needs:
    """Which tokens are part of the answers of own groups."""

    def __init__(self) -> None:
        self._sums = np.zeros((2, ROWS * NUM_BUCKETS))
        """Rewarded completions without the token in groups where others have it, and as many as there would be if it
        made no difference."""

    def dump(self) -> list[bytes]:
        return [_packed(each) for each in self._sums]

    def restore(self, saved: list[bytes]) -> None:
        if saved:
            self._sums = np.array([_unpacked(each) for each in saved]).reshape(self._sums.shape)

    def add(self, group: ReadGroup, salt: int) -> None:
        rewarded = np.array([max(each, default=0.0) > 0 for each in group.advantages])
        num_right, num_others = int(rewarded.sum()), len(rewarded) - 1
        if not 2 <= num_right <= num_others:
            return
        completion = np.repeat(np.arange(len(rewarded)), [len(ids) for ids in group.ids])
        has = np.unique(_through(group.buckets(salt)) * len(rewarded) + completion)
        buckets, of_completion = np.divmod(has, len(rewarded))
        found, index = np.unique(buckets, return_inverse=True)
        right = np.bincount(index, rewarded[of_completion], len(found))
        without = len(rewarded) - np.bincount(index, minlength=len(found))
        self._sums *= MEMORY
        self._sums[0, found] += right * (num_right - right)
        self._sums[1, found] += right * without * (num_right - 1) / num_others

    def of(self, buckets: Buckets) -> npt.NDArray[np.bool_]:
        """[kinds, N] whether each token is part of the answers."""
        right, expected = self._sums[:, _through(buckets)]
        return np.asarray(((expected >= ENOUGH_NEEDS) & (right < (1 - NEEDED) * expected)).all(axis=1))


def _at(known: Sequence[_Evidence], buckets: Buckets) -> tuple[Floats, Floats, Floats]:
    """Mean pushes up and down of each evidence, and the variance of the mean of both together, in buckets [..., ROWS,
    N]."""
    through = _through(buckets)
    sums = np.array([each.sums(through) for each in known]).reshape(len(known), 3, *buckets.shape)
    up, down, square = np.moveaxis(sums, 1, 0)
    return up, down, np.maximum(square - (up - down) ** 2, 0.0) / _column([each.num for each in known])


def _column(values: Sequence[float] | Floats) -> Floats:
    """Beside arrays [len(values), KINDS, ROWS, N]."""
    return np.array(values, dtype=float).reshape(-1, 1, 1, 1)


def _evidence(known: dict[str, _Evidence], name: str, most: int) -> _Evidence:
    """That of a name; beyond `most`, the one with the fewest groups is forgotten."""
    evidence = known.setdefault(name, _Evidence())
    if len(known) > most:
        del known[min((each for each in known if each != name), key=lambda each: known[each].num)]
    return evidence


def _packed(values: Floats) -> bytes:
    return zlib.compress(values.astype(np.float32).tobytes(), 1)


def _unpacked(content: bytes) -> Floats:
    num_bytes = ROWS * NUM_BUCKETS * np.dtype(np.float32).itemsize
    try:
        values = np.frombuffer(zlib.decompressobj().decompress(content, num_bytes + 1), np.float32)
    except zlib.error as error:
        raise ValueError(f"rates cannot be decompressed: {error}") from error
    if values.nbytes != num_bytes or not np.isfinite(values).all():
        raise ValueError("rates are out of range")
    return values.astype(np.float64)


def _through(buckets: Buckets) -> Buckets:
    """Buckets [..., ROWS, N] of all rows, numbered through."""
    return buckets + np.arange(ROWS)[:, None] * NUM_BUCKETS


def _flat(values: Sequence[Sequence[float]]) -> Floats:
    return np.array([value for each in values for value in each], dtype=float)
