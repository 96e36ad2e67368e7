"""How often a member may offer a group, so that what all members hear together stays the same however many they are.

    members  =  offers heard per second / rate at which a typical author offers, by its own word
    rate     =  offers per second that links carry / members

Each author has one word, and counts for a few members at most, however much it sends. What newcomers say and send
counts as far as their groups were usable here: strangers that give nothing take nothing of members' rate. Who lacks
groups (`Appetite`) offers more: a rate that lies or floods have lowered rises again where groups are wanted.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate

from msgspec import Struct

OFFERS_PER_S = 32.0
"""Of all members together: about what a thousand nodes with one group in 30 s make."""
WINDOW_S = 60.0
MAX_HEARD = 4_096
"""Records remembered of the window; of more, the latest."""
MAX_TIMES = 4.0
"""An author counts for at most so many typical ones, and for so many records more."""
MIN_SPAN_S = 1.0
MEMORY = 0.97
"""Weight that a newcomer's group keeps with each later one."""
MAX_APPETITE = 2.0**30
SATED = 0.9
"""Factor of each round whose update had enough."""


class _Heard(Struct, frozen=True):
    at: float
    author: str
    num: int
    per_s: float
    """0 of an author that does not say."""


class OfferRate:
    """Of the offers heard lately; may be used on any thread."""

    def __init__(self, most: float = OFFERS_PER_S, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody was heard. `most`: offers per second of all members together."""
        self._most = most
        self._clock = clock
        self._since = clock()
        self._heard: deque[_Heard] = deque(maxlen=MAX_HEARD)
        self._known: frozenset[str] = frozenset()
        self._newcomers = 1.0
        self._given = Usefulness()
        self._lock = threading.Lock()

    def heard(self, author: str, num: int, per_s: float) -> None:
        """An author made this many offers at once, and says that it makes `per_s` each second."""
        with self._lock:
            self._heard.append(_Heard(self._clock(), author, num, per_s))

    def trust(self, known: Collection[str], newcomers: float) -> None:
        """Count these authors in full, and all others by what they give, of which the fraction `newcomers` teaches."""
        with self._lock:
            self._known, self._newcomers = frozenset(known), newcomers

    def asked(self, author: str, gave: bool) -> None:
        """An author was asked for a group that it had offered."""
        with self._lock:
            if author not in self._known:
                self._given.update(gave)

    def per_s(self) -> float:
        """Offers per second that each member may make."""
        return self._most / max(1.0, self.num_members())

    def num_members(self) -> float:
        """Members of the run that share groups, as many as typical authors would be; 0 while none is heard."""
        with self._lock:
            now = self._clock()
            while self._heard and now - self._heard[0].at > WINDOW_S:
                self._heard.popleft()
            heard, known, newcomers = list(self._heard), self._known, self._newcomers * self._given.fraction
        # A full memory covers less than the window.
        began = heard[0].at if len(heard) == MAX_HEARD else max(self._since, now - WINDOW_S)
        weights = {each.author: 1.0 if each.author in known else newcomers for each in heard}
        return _num_typical(heard, weights, max(MIN_SPAN_S, now - began))


def _num_typical(heard: Collection[_Heard], weights: Mapping[str, float], span_s: float) -> float:
    counts: Counter[str] = Counter()
    for each in heard:
        counts[each.author] += each.num
    # Nobody is believed to offer far more than was heard of it.
    told = {each.author: min(each.per_s, (1 + counts[each.author]) / span_s) for each in heard if each.per_s > 0}
    if not sum(weights[author] for author in told):
        return 0.0
    typical = _median([(rate, weights[author]) for author, rate in told.items()])
    most_of_one = MAX_TIMES * (1 + typical * span_s)
    return sum(weights[author] * min(count, most_of_one) for author, count in counts.items()) / span_s / typical


def _median(weighted: Collection[tuple[float, float]]) -> float:
    """Of (value, weight): half of the weight is below it; the mean of two where they divide the weight in halves."""
    ranked = sorted(weighted)
    places = list(accumulate(weight for _, weight in ranked))
    half = places[-1] / 2
    low, high = bisect_left(places, half), min(bisect_right(places, half), len(ranked) - 1)
    return (ranked[low][0] + ranked[high][0]) / 2


class Usefulness:
    """The fraction of the newcomers' groups that they gave when asked, or of those graded that teach.

    A node chooses among newcomers by chance, so that this part of what they offer is what members could use.
    """

    def __init__(self) -> None:
        """Newcomers are believed until they are tried."""
        self.fraction = 1.0
        self._num = 1.0

    def update(self, usable: bool) -> None:
        """One more group; older ones fade."""
        self._num = MEMORY * self._num + 1
        self.fraction += (usable - self.fraction) / self._num


class Appetite:
    """How many times the common rate a node offers: more while its updates go short."""

    def __init__(self) -> None:
        """The common rate."""
        self.factor = 1.0

    def update(self, num_groups: int, num_wanted: int) -> None:
        """An update took this many of others' groups of those it wanted; less than half is too few."""
        short = 2 * num_groups < num_wanted
        self.factor = min(MAX_APPETITE, 2 * self.factor) if short else max(1.0, SATED * self.factor)
