"""Which tokens others' groups push beyond what own groups bear out.

A marker before right answers is plausible text with the right reward: no test of single completions refuses it. But the
answers would be as right without it, as this node's own groups show.

    push of an author              the mean over its groups (see `Pushes`), beside the mean over own groups of the same
                                   tasks
    factor of a token's advantage  own push / the author's where the author's is larger beyond chance, else 1

A habit that own completions take up is held against an author only if it is none of the answer: what an honest author's
wrong answers lack, its right ones push, and a policy may well write more of it.

    need of a token                where a rewarded own completion has it, how much more rarely those of the group
                                   without it are rewarded than all: 1 if no answer is right without it, 0 for a habit,
                                   however frequent and whatever the question

Means are kept in count sketches, so that an author takes the same memory whatever it writes.
"""

from __future__ import annotations

import math
import secrets
import zlib
from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from statistics import quantiles

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from pydantic import Field

from swarm.received.pushes import ALL_BUCKETS, Floats, Integers, Pushes, ReadGroup
from swarm.settings import Settings

SALT_BITS = 64
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
ANY_TASK = ""
MAX_AUTHORS = 64
MAX_WAITING = 64
"""Own groups that nobody else's have come after."""
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
    full_after: int = Field(4, ge=1)
    """Groups of an author that are used before its tokens have their whole advantage: the first has this fraction."""
    max_pull: float = Field(2.0, gt=0)
    """Largest pull of another's group, in those of own ones (their upper quartile): how much its raised tokens
    change this policy's probabilities."""


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
    """Variances of the past; none in a checkpoint from before they were kept: its rates are then not compared."""


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
        """Evidence by task."""
        self._authors: dict[str, _Evidence] = {}
        self._together: dict[str, _Evidence] = {}
        """Evidence of all authors, for a push that each of many hides from notice: by task, and of `ANY_TASK`."""
        self._waiting: list[tuple[ReadGroup, float]] = []
        """Own groups with their mean rewards, not read yet: all are read at once with the next ones of others."""
        self._pulls: deque[float] = deque(maxlen=REMEMBERED_PULLS)
        """Pulls of own groups."""
        self._rates = _Rates()
        self._needs = _Needs()
        self._rising: dict[str, Counter[int]] = {}
        """How often an author pushed a token in excess that own completions have more and more, by author and token."""

    def dump(self) -> CorroborationState:
        """Everything, for a checkpoint: otherwise a patient author would be unknown after each restart."""
        self._read([])
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

    def learn(self, groups: Sequence[ReadGroup], rewards: Sequence[float]) -> None:
        """Add own groups with their mean rewards [P]."""
        if self._settings.enabled:
            self._waiting += zip(groups, rewards, strict=True)
            if len(self._waiting) >= MAX_WAITING:
                self._read([])

    def credited(
        self, authors: Sequence[Sequence[str]], groups: Sequence[ReadGroup]
    ) -> list[tuple[tuple[float, ...], ...]]:
        """Add received groups, once, each to the names [P] that its author counts as, the first of which is its peer
        id, and to those of all authors.

        Returns factors [P][G][T] in [0, 1] of their token advantages: the least for any of the names, and for all
        authors together.
        """
        if not self._settings.enabled or not groups:
            return [() for _ in groups]
        theirs = self._read(groups)
        for number, (names, task) in enumerate(zip(authors, theirs.tasks, strict=True)):
            for name in names:
                _evidence(self._authors, name, MAX_AUTHORS).add(theirs, number)
            _evidence(self._together, ANY_TASK, MAX_TASKS).add(theirs, number)
            _evidence(self._together, task, MAX_TASKS).add(theirs, number)
        found = self._compared(authors, theirs)
        for names, keys in zip(authors, theirs.keys, strict=True):
            found[keys] *= min(1.0, min(self._authors[name].num for name in names) / self._settings.full_after)
        scales = self._within_pull(theirs.pulls(found))
        return theirs.by_completion(found * scales.repeat([keys.stop - keys.start for keys in theirs.keys]))

    def _read(self, groups: Sequence[ReadGroup]) -> Pushes:
        """The pushes of others' `groups`; own groups that wait are read with them, and learned."""
        waiting, self._waiting = self._waiting, []
        pushes = Pushes([*(own for own, _ in waiting), *groups], self._salt)
        pulls = pushes.pulls().tolist()
        for number, (own, reward) in enumerate(waiting):
            self._rates.add(pushes, number, reward)
            if pushes.has_raised[number]:
                self._pulls.append(pulls[number])
                _evidence(self._own, own.task, MAX_TASKS).add(pushes, number)
                self._needs.add(pushes, number)
        return pushes.since(len(waiting))

    def drift(self) -> Drift | None:
        """A habit that own completions take up from an author and that does not raise the reward; reported once. Later
        rates are compared with those from then on."""
        for author, tokens in self._rising.items():
            if tokens.total() >= DRIFT_HITS:
                self._rising, self._rates = {}, _Rates()
                return Drift(author, tuple(token for token, _ in tokens.most_common(DRIFT_TOKENS)))
        return None

    def _compared(self, authors: Sequence[Sequence[str]], theirs: Pushes) -> Floats:
        """[K] the least by any of the evidence on an author, without regard to how much of it there is."""
        known = [
            [*map(self._authors.__getitem__, names), self._together[ANY_TASK], self._together[task]]
            for names, task in zip(authors, theirs.tasks, strict=True)
        ]
        most = max(map(len, known))
        # All groups have as many: the first is compared again where an author has fewer names.
        rows = [[*each, *each[:1] * (most - len(each))] for each in known]
        is_first = np.array([[row < len(each) for each in known] for row in range(most)], dtype=bool)
        sizes = [keys.stop - keys.start for keys in theirs.keys]
        up, down, their_error = self._their_push(rows, theirs, most)
        own_push, own_error, own_doubt = self._own_push(rows, theirs, most)
        nums = np.array([[each[row].num for each in rows] for row in range(most)]).reshape(most, -1)
        # From here on, a positive push is one that agrees with the advantage of the key at hand.
        sign = theirs.sign[:, None, None]
        own_push *= sign
        along, against = np.where(sign > 0, up, down), np.where(sign > 0, down, up)
        allowed = UNSEEN / nums + UNSEEN * own_doubt + self._settings.tolerance
        wanted = np.maximum(own_push, 0.0)
        excess = along - against - wanted - np.repeat(allowed, sizes, axis=1)[:, :, None, None]
        spread = np.sqrt(their_error + own_error)
        excessive = excess > ERRORS * spread
        # What remains after the factor is the push that is wanted.
        factor = np.where(excessive, (wanted + against) / np.where(excessive, along, 1.0), 1.0)
        if self._rates.rises:
            unneeded = excess > ALARMING_ERRORS * spread
            unneeded &= own_push < ALARMING_ERRORS * np.sqrt(own_error) + self._settings.tolerance
            taken_up = (self._rates.rise(theirs.buckets) > DRIFT) & ~self._needs.of(theirs.buckets)
            rising = (unneeded.all(axis=3) & taken_up).any(axis=2)
            rising &= (theirs.sign > 0) & np.repeat(is_first, sizes, axis=1)
            self._count_rising(rising.sum(axis=0), authors, theirs)
        return np.asarray(factor.max(axis=3).min(axis=(0, 2), initial=1.0), dtype=float)

    def _count_rising(self, times: Integers, authors: Sequence[Sequence[str]], theirs: Pushes) -> None:
        """Remember who pushes what is on the rise: `times` [K] in excess by some of the evidence."""
        for names, keys in zip(authors, theirs.keys, strict=True):
            for key in (np.flatnonzero(times[keys]) + keys.start).tolist():
                tokens = self._rising.setdefault(names[0], Counter())
                tokens[int(theirs.token[key])] += int(times[key] * theirs.count[key])

    def _their_push(self, rows: Sequence[Sequence[_Evidence]], theirs: Pushes, most: int) -> tuple[Floats, ...]:
        """Mean pushes up and down by the evidence on each group's author, and the variance of the mean of both, all
        [most, K, KINDS, ROWS]."""
        found = np.empty((most, *theirs.buckets.shape, 3))
        for known, keys in zip(rows, theirs.keys, strict=True):
            for row, each in enumerate(known):
                found[row, keys] = each.means(theirs.buckets[keys])
        up, down, error = found[..., 0], found[..., 1], found[..., 2]
        np.maximum(error - (up - down) ** 2, 0.0, out=error)
        for known, keys in zip(rows, theirs.keys, strict=True):
            for row, each in enumerate(known):
                error[row, keys] /= each.num
        return up, down, error

    def _own_push(self, rows: Sequence[Sequence[_Evidence]], theirs: Pushes, most: int) -> tuple[Floats, ...]:
        """Mean pushes [most, K, KINDS, ROWS] of own groups with tasks as frequent as in the evidence on each group's
        author, their variances, and the reciprocals [most, P] of the numbers of groups that they rest on: 1 for a task
        without any."""
        pushes, errors = (np.empty((*theirs.buckets.shape, len(self._own))) for _ in range(2))
        nums = np.array([each.num for each in self._own.values()])
        for column, each in enumerate(self._own.values()):
            means = each.means(theirs.buckets)
            np.subtract(means[..., 0], means[..., 1], out=pushes[..., column])
            errors[..., column] = means[..., 2]
        np.maximum(errors - pushes**2, 0.0, out=errors)
        errors /= nums
        push, error = (np.empty((most, *theirs.buckets.shape)) for _ in range(2))
        doubt = np.empty((most, len(rows)))
        for group, (known, keys) in enumerate(zip(rows, theirs.keys, strict=True)):
            parts = np.array([each.parts(self._own) for each in known]).T
            push[:, keys] = (pushes[keys] @ parts).transpose(3, 0, 1, 2)
            error[:, keys] = (errors[keys] @ parts**2).transpose(3, 0, 1, 2)
            doubt[:, group] = (1 / nums) @ parts**2 + [each.doubt(self._own) for each in known]
        return push, error, doubt

    def _within_pull(self, pulls: Floats) -> Floats:
        """[P] what scales groups with these pulls to the largest allowed."""
        if len(self._pulls) < ENOUGH_PULLS:
            return np.ones(len(pulls))
        most = self._settings.max_pull * quantiles(self._pulls, n=4, method="inclusive")[-1]
        return np.minimum(1.0, most / np.maximum(pulls, 1e-9))


class _Evidence:
    """Mean push of groups on each bucket, and how certain it is; the older a group, the less it counts."""

    def __init__(self) -> None:
        self._weight = 1.0
        """Weight of the newest group: it grows, so that what is below need not fade."""
        self._num = 0.0
        self._tasks: dict[str, float] = {}
        self._sums = np.zeros((ALL_BUCKETS, 3))
        """Sums of pushes up, down, and the squares of both together."""

    @property
    def num(self) -> float:
        """Groups."""
        return self._num / self._weight

    def parts(self, tasks: Iterable[str]) -> list[float]:
        """Fractions of the groups that are of these tasks."""
        total = sum(self._tasks.values())
        return [self._tasks.get(task, 0.0) / total for task in tasks]

    def doubt(self, tasks: Container[str]) -> float:
        """Sum of the squares of the fractions of the groups that are of other tasks."""
        others = [count for task, count in self._tasks.items() if task not in tasks]
        return sum(count**2 for count in others) / sum(self._tasks.values()) ** 2 if others else 0.0

    def dump(self) -> EvidenceState:
        means = (self._sums.T / self._weight).astype(np.float32)
        buckets = np.flatnonzero(means.any(axis=0))
        tasks = {task: count / self._weight for task, count in self._tasks.items()}
        return EvidenceState(self.num, tasks, buckets.astype(np.uint16).tobytes(), means[:, buckets].tobytes())

    @classmethod
    def restored(cls, saved: EvidenceState) -> _Evidence:
        found = cls()
        found._num, found._tasks = saved.num, dict(saved.tasks)
        buckets = np.frombuffer(saved.buckets, np.uint16)
        means = np.frombuffer(saved.means, np.float32).reshape(3, -1)
        in_range = (buckets < ALL_BUCKETS).all() and np.isfinite(means).all()
        if not (in_range and 0 < saved.num < math.inf and all(0 <= count < math.inf for count in saved.tasks.values())):
            raise ValueError("evidence is out of range")
        found._sums[buckets] = means.T
        return found

    def add(self, pushes: Pushes, number: int) -> None:
        """Add a group."""
        if self._weight > MAX_WEIGHT:
            self._scale(1 / self._weight)
        self._weight /= MEMORY
        self._num += self._weight
        entries = pushes.entries[number]
        if pushes.has_raised[number]:
            self._sums[pushes.bucket[entries]] += self._weight * pushes.push[entries]
        task = pushes.tasks[number]
        if task not in self._tasks and len(self._tasks) > MAX_TASKS:
            del self._tasks[min(self._tasks, key=self._tasks.__getitem__)]
        self._tasks[task] = self._tasks.get(task, 0.0) + self._weight

    def means(self, buckets: Integers) -> Floats:
        """[..., 3] mean pushes up, down, and squares of both together, in buckets [...]."""
        return self._sums[buckets] / self._num

    def _scale(self, factor: float) -> None:
        self._sums *= factor
        self._num *= factor
        self._tasks = {task: count * factor for task, count in self._tasks.items()}
        self._weight *= factor


class _Rates:
    """How much more often own completions have each bucket's tokens than in the last thousands of groups."""

    def __init__(self) -> None:
        self._counts, self._squares = np.zeros((2, ALL_BUCKETS))
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

    def add(self, pushes: Pushes, number: int, reward: float) -> None:
        entries = pushes.entries[number]
        self._counts[pushes.bucket[entries]] += pushes.occurrences[entries]
        self._squares[pushes.bucket[entries]] += pushes.occurrences[entries] ** 2
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
            self._counts, self._squares = np.zeros((2, ALL_BUCKETS))

    def _beyond_chance(self, now: Floats, variance: Floats) -> Floats:
        """How much more often than when it was lowest; 0 where the questions alone may have made the difference: some
        want a token in every answer, some in none."""
        lowest = np.argmin(self._past, axis=0)[None]
        least, its = (np.take_along_axis(np.array(each), lowest, axis=0)[0] for each in (self._past, self._variances))
        rise = now - least
        return np.asarray(np.where(rise > ALARMING_ERRORS * np.sqrt(variance + its), rise, 0.0), dtype=float)

    @property
    def rises(self) -> bool:
        """Whether anything can have become more frequent: not while the reward rises."""
        return self._rise is not None

    def rise(self, buckets: Integers) -> Floats:
        """[K, KINDS] occurrences a completion more than when it was lowest, of buckets [K, KINDS, ROWS]."""
        assert self._rise is not None
        return np.asarray(self._rise[buckets].min(axis=2), dtype=float)


class _Needs:
    """Which tokens are part of the answers of own groups."""

    def __init__(self) -> None:
        self._sums = np.zeros((ALL_BUCKETS, 2))
        """Rewarded completions without the token in groups where others have it, and as many as there would be if it
        made no difference; times `_weight`: it grows, and they do not fade."""
        self._weight = 1.0

    def dump(self) -> list[bytes]:
        return [_packed(each) for each in self._sums.T / self._weight]

    def restore(self, saved: list[bytes]) -> None:
        if saved:
            self._sums = np.array([_unpacked(each) for each in saved]).reshape(2, ALL_BUCKETS).T.copy()

    def add(self, pushes: Pushes, number: int) -> None:
        found, having, raised = pushes.completions_with(number)
        num_right, num_others = int(raised.sum()), len(raised) - 1
        if not 2 <= num_right <= num_others:
            return
        right, num_with = having @ raised, having.sum(axis=1)
        self._weight /= MEMORY
        if self._weight > MAX_WEIGHT:
            self._sums /= self._weight
            self._weight = 1.0
        without = (len(raised) - num_with) * (num_right - 1) / num_others
        self._sums[found] += self._weight * np.stack([right * (num_right - right), right * without], axis=1)

    def of(self, buckets: Integers) -> npt.NDArray[np.bool_]:
        """[K, KINDS] whether each token is part of the answers."""
        found = self._sums[buckets] / self._weight
        right, expected = found[..., 0], found[..., 1]
        return np.asarray(((expected >= ENOUGH_NEEDS) & (right < (1 - NEEDED) * expected)).all(axis=2))


def _evidence(known: dict[str, _Evidence], name: str, most: int) -> _Evidence:
    """That of a name; beyond `most`, the one with the fewest groups is forgotten."""
    if (evidence := known.get(name)) is None:
        if len(known) >= most:
            del known[min(known, key=lambda each: known[each].num)]
        evidence = known[name] = _Evidence()
    return evidence


def _packed(values: Floats) -> bytes:
    return zlib.compress(values.astype(np.float32).tobytes(), 1)


def _unpacked(content: bytes) -> Floats:
    num_bytes = ALL_BUCKETS * np.dtype(np.float32).itemsize
    try:
        values = np.frombuffer(zlib.decompressobj().decompress(content, num_bytes + 1), np.float32)
    except zlib.error as error:
        raise ValueError(f"rates cannot be decompressed: {error}") from error
    if values.nbytes != num_bytes or not np.isfinite(values).all():
        raise ValueError("rates are out of range")
    return values.astype(np.float64)
