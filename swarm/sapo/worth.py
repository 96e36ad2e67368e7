"""Is the swarm helping this node? An estimate from the gradients of its own updates, without a control.

Groups on different own questions agree only on the direction that raises this node's expected reward. With g the
gradient of one group of an update, as sketched by `swarm/training/sketches.py`:

    own product    a = E <g_i, g_j>    i, j own, i != j: the squared length of that direction, without noise
    cross product  c = E <g_k, g_j>    k external, j own: how far others' groups point along it
    worth of an external group         c / a, in own groups
    progress of updates with gradient g of mean a' along the direction:
                                       E a' / sqrt(E <g, g>)
    help                               progress of the updates as mixed / progress of updates on own groups alone

AdamW and clipping normalise the gradient's scale, therefore progress is divided by its root mean square, and a round's
products by the mean squared length of the own groups' gradients of about that time: gradients grow tenfold while a
sparse policy learns, and the noise of the longest would hide all others. A round without a group takes no step and
makes no progress, one of several steps makes that of each. "Alone" is the same node with all its informative groups,
at most I + J, at this moment. Unequal coordinates, momentum and the drift of the policy within the window are
neglected.

Own groups are compared with those of the same round and of earlier ones, because a node in need of help has few of
them. The interval is a bootstrap over blocks of consecutive rounds, whose comparisons share groups.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from swarm.protocols import GradientSketcher
from swarm.stopwatch import Stopwatch
from swarm.telemetry.intervals import percentile_interval
from swarm.types import Estimate, SwarmWorth
from swarm.types.runs import NEEDED_ROUNDS

Array = npt.NDArray[np.float64]
N = TypeVar("N", float, Array)
Sketches = npt.NDArray[np.float32]

OWN = 1.0
"""Worth of an own group."""
WINDOW_ROUNDS = 128
"""Measured rounds in an estimate."""
MOST_ROUNDS = 1_024
"""Measured rounds in an estimate where fewer say too little."""
PAST_GROUPS = 32
"""Own groups of earlier measured rounds, at least, that are compared with a round's: few rounds where each has many."""
MIN_GROUPS = 16
"""Groups of a sender before its worth is known."""
MAX_WIDTH = 1.0
"""The worth of groups is known if its interval is narrower than this or excludes 1."""
MAX_HELP_WIDTH = 2.0
"""The same for help, which decides nothing and is shown with its interval."""
KNOWN_EVERY = 4
"""Once help is known, one of so many measurements is made: they cost a part of the update."""
BLOCK_ROUNDS = 4
MEASURED_EVERY = 16
NUM_DRAWS = 1_000
PACE_ROUNDS = 256
"""Rounds whose times are remembered."""
MIN_PACE_ROUNDS = 16
"""Rounds before their times say anything."""
FOR_OTHERS = ("share", "receive", "mix")
"""Stages that a lone node does without."""
MAX_UNUSABLE = 0.025
"""Fraction of draws without a positive own product above which the direction itself is not known."""
Z_USABLE = 1.96
"""Standard errors by which a mean is positive in all but that fraction of draws."""


class Sums(NamedTuple, Generic[N]):
    """Numbers of one round; summed over rounds, [draws]. A "part" is a fraction of the update's groups."""

    rounds: N
    steps: N
    own_part: N
    others_part: N
    own_squares: N
    """Weight of an own group's squared length in the squared length of the mean gradient."""
    own_pairs: N
    others_squares: N
    others_pairs: N
    cross_pairs: N
    alone_steps: N
    """Steps alone: none in a round without own groups."""
    alone_inverse: N
    """1 / number of own groups of each of these steps."""
    compared: N
    """Rounds with the products below."""
    own: N
    """Mean product of two own groups: a."""
    cross: N
    """Mean product of an external and an own group: c."""
    own_square: N
    """Mean squared length of an own group's gradient."""
    others_square: N
    paired: N
    """Rounds with `others`."""
    others: N
    """Mean product of two external groups."""


class MeasuredRound(NamedTuple):
    """One round in numbers."""

    sums: Sums[float]
    senders: dict[str, tuple[int, float]]
    """(groups, sum of their products with own groups) of each author."""


class _Own(NamedTuple):
    """The own groups of a round."""

    total: Sketches
    """Their sum."""
    groups: int
    squares: float
    """Sum of their squared lengths."""


class _Times(NamedTuple):
    """Seconds of one round."""

    together: float
    alone: float


class Pace:
    """How long a node's rounds take, and about how long they would take alone: no groups of others.

    An update is taken to need time in proportion to its groups: the estimates are within 15% of controls' times, for
    the embedded policy and for SmolLM2-135M on a CPU. What other processes of this node do for the swarm is in both
    sides' times.
    """

    def __init__(self) -> None:
        self._rounds: deque[_Times] = deque(maxlen=PACE_ROUNDS)

    def add(self, seconds: Mapping[str, float], trained: int, alone: int) -> None:
        """Add a round with `seconds` by stage, whose update had `trained` groups; alone it would have had `alone`."""
        saved = sum(seconds.get(stage, 0.0) for stage in FOR_OTHERS)
        if trained:
            saved += seconds.get("update", 0.0) * (1 - alone / trained)
        together = sum(seconds.values())
        self._rounds.append(_Times(together, together - saved))

    @property
    def time_alone(self) -> float | None:
        """Time of the rounds alone over their time with others; None before `MIN_PACE_ROUNDS`."""
        together = sum(each.together for each in self._rounds)
        if len(self._rounds) < MIN_PACE_ROUNDS or together <= 0:
            return None
        return sum(each.alone for each in self._rounds) / together


class WorthEstimator:
    """Measured rounds of one node; pure apart from its sketcher."""

    def __init__(self, sketcher: GradientSketcher, every_rounds: int, num_groups: int, num_steps: int = 1) -> None:
        """Measure every Nth round; `num_groups` is I + J, the most groups of an update alone, `num_steps` its most
        optimizer steps."""
        self._sketcher = sketcher
        self._every_rounds = every_rounds
        self._num_groups = num_groups
        self._num_steps = num_steps
        self.rounds: deque[MeasuredRound] = deque(maxlen=MOST_ROUNDS)
        """The measured rounds that count, oldest first."""
        self._past: deque[_Own] = deque()
        """Own groups of earlier rounds."""
        self._measured: dict[str, Estimate] = {}
        self._measured_at = 0
        """Rounds ever added, at the last of them that `measured` looked at."""
        self._num_added = 0
        self._blocks = np.empty((NUM_DRAWS + 1, 0))
        self._estimated: SwarmWorth | None = None
        """What the rounds say; None until someone asks."""
        self._pace = Pace()
        self._spent = Stopwatch(["worth"])
        self._reported = 0.0
        """Seconds that earlier figures contain."""

    @property
    def refusal(self) -> str | None:
        """Why this node cannot measure."""
        return self._sketcher.refusal

    @property
    def worth(self) -> SwarmWorth | None:
        """What is known; None when this node cannot measure."""
        return None if self.refusal else replace(self._known(), time_alone=self._pace.time_alone)

    def worth_of(self, peer_id: str) -> float | None:
        """Worth of a group by this author, in own groups, as near to that of an own group as its interval allows; None
        while unknown.

        The estimate would be too low: whoever seems to be worth little is drawn no more, and nothing corrects it.
        """
        known = self._known().senders.get(peer_id)
        return None if known is None else min(max(OWN, known.low), known.high)

    def measured(self) -> dict[str, Estimate]:
        """Worth of authors' groups over all rounds that are remembered, for others: it knows more authors than `worth`,
        whose shorter window follows the policy. Up to `MEASURED_EVERY` measured rounds old."""
        if not self._measured_at or self._num_added - self._measured_at >= MEASURED_EVERY:
            with self._spent("worth"):
                self._measured_at, self._measured = self._num_added, self._authors()
        return self._measured

    def figures(self) -> dict[str, float]:
        """What is known, and the seconds spent on it since the last call, by conventional name."""
        known = {"worth/help": self._known().help, "worth/external": self._known().each}
        found = {
            f"{name}{suffix}": value
            for name, estimate in known.items()
            if estimate is not None
            for suffix, value in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high))
        }
        spent = self._spent.seconds["worth"] + self._sketcher.seconds
        cost, self._reported = spent - self._reported, spent
        if self.refusal:
            return found
        if (time_alone := self._pace.time_alone) is not None:
            found["worth/time_alone"] = time_alone
        return {**found, "worth/cost_s": cost}

    def begin(self, number: int) -> bool:
        """Whether round `number`, whose update comes next, is measured: more rarely once `help` is known."""
        every = self._every_rounds * (1 if self._known().help is None else KNOWN_EVERY)
        due = self.refusal is None and number % every == 0
        if due:
            self._sketcher.begin_sketches()
        return due

    def end(self, num_local: int, senders: Sequence[str], num_informative: int) -> None:
        """Add the measured round after its update on so many local groups and on external ones by these authors.

        `num_informative`: own groups with signal, drawn for the update or not.
        """
        with self._spent("worth"):
            sketches = self._taken(num_local + len(senders))
            if sketches is not None:
                self.add(sketches, senders, min(num_informative, self._num_groups))

    def timed(self, seconds: Mapping[str, float], num_trained: int, num_informative: int) -> None:
        """Add the time of a round, measured or not, with `seconds` by stage and so many groups in its update."""
        self._pace.add(seconds, num_trained, min(num_informative, self._num_groups))

    def _taken(self, num_groups: int) -> Sketches | None:
        """The sketches of the update; None if one is missing or not finite."""
        if num_groups == 0:
            return np.empty((0, 1), np.float32)
        sketches = self._sketcher.take_sketches()
        if sketches is None or len(sketches) != num_groups or not np.isfinite(sketches).all():
            return None
        return sketches

    def add(self, sketches: Sketches, senders: Sequence[str], num_alone: int) -> None:
        """Add a round: sketches [groups, numbers], the external ones last, and their authors.

        `num_alone`: groups of the update without others.
        """
        own, others = np.split(sketches, [len(sketches) - len(senders)])
        recent = [*self._past, _Own(own.sum(axis=0), len(own), float((own * own).sum()))]
        count = sum(each.groups for each in recent)
        length = math.sqrt(sum(each.squares for each in recent) / max(1, count)) or 1.0
        own, others = own / length, others / length
        total: Sketches = sum((each.total for each in self._past), recent[-1].total) / length
        crosses = (others @ total / max(1, count)).astype(np.float64) if len(others) else np.zeros(0)
        products = _products(own, others, crosses, total, count)
        parts = _parts(len(own), len(others), num_alone, self._num_steps)
        per_sender: dict[str, tuple[int, float]] = {}
        for sender, cross in zip(senders, crosses, strict=True) if count else ():
            groups, product = per_sender.get(sender, (0, 0.0))
            per_sender[sender] = (groups + 1, product + float(cross))
        self.rounds.append(MeasuredRound(Sums(*parts, *products), per_sender))
        self._num_added += 1
        if len(own):
            self._past.append(recent[-1])
        while len(self._past) > 1 and sum(each.groups for each in self._past) - self._past[0].groups >= PAST_GROUPS:
            self._past.popleft()
        self._estimated = None

    def _known(self) -> SwarmWorth:
        if self._estimated is None:
            with self._spent("worth"):
                self._estimated = self._estimate()
        return self._estimated

    def _estimate(self) -> SwarmWorth:
        """The worth in the last rounds, or in more of them while these say too little."""
        window = WINDOW_ROUNDS
        while (found := self._over(list(self.rounds)[-window:])).help is None and window < len(self.rounds):
            window *= 2
        return found

    def _over(self, rounds: Sequence[MeasuredRound]) -> SwarmWorth:
        compared = int(sum(each.sums.compared for each in rounds))
        if compared < NEEDED_ROUNDS:
            left = self._until(rounds, compared, NEEDED_ROUNDS)
            return SwarmWorth(len(rounds), compared=compared, rounds_left=left)
        sums = Sums(*self._drawn([each.sums for each in rounds]).T)
        with np.errstate(divide="ignore", invalid="ignore"):
            products = sums.own / sums.compared
            own = np.where(sums.own > 0, products, np.nan)
            each = _known(sums.cross / sums.compared / own)
            ratios = _progress_together(sums, own) / _progress_alone(sums, own)
            found = _known(ratios, MAX_HELP_WIDTH)
            left = None if found else self._until(rounds, compared, compared * _times_longer(products, ratios))
            return SwarmWorth(len(rounds), found, each, self._senders(rounds, own), compared, left)

    def _authors(self) -> dict[str, Estimate]:
        rounds = list(self.rounds)
        if sum(each.sums.compared for each in rounds) < NEEDED_ROUNDS:
            return {}
        sums = Sums(*self._drawn([each.sums for each in rounds]).T)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._senders(rounds, np.where(sums.own > 0, sums.own / sums.compared, np.nan))

    def _until(self, rounds: Sequence[MeasuredRound], compared: int, needed: float) -> int | None:
        """Rounds until so many more are compared as `needed` says, of those with own and others' groups at the rate of
        the last ones; None if they do not come, or are more than an estimate takes."""
        if not compared or needed * len(rounds) > compared * MOST_ROUNDS:
            return None
        more = max(1, math.ceil((needed - compared) * len(rounds) / compared))
        return more * self._every_rounds

    def _senders(self, rounds: Sequence[MeasuredRound], own: Array) -> dict[str, Estimate]:
        groups = Counter[str]()
        for measured in rounds:
            groups.update({sender: count for sender, (count, _) in measured.senders.items()})
        known: dict[str, Estimate] = {}
        for sender, count in groups.items():
            if count >= MIN_GROUPS:
                drawn = self._drawn([measured.senders.get(sender, (0, 0.0)) for measured in rounds])
                if (worth := _known(drawn[:, 1] / drawn[:, 0] / own)) is not None:
                    known[sender] = worth
        return known

    def _drawn(self, rounds: Sequence[tuple[float, ...]]) -> Array:
        """Sums [draws + 1, fields] over all rounds, then over blocks of them drawn with replacement; always the same
        draws."""
        blocks = np.add.reduceat(np.array(rounds), np.arange(0, len(rounds), BLOCK_ROUNDS), axis=0)
        if self._blocks.shape[1] != len(blocks):
            rng = np.random.default_rng(0)
            drawn = rng.multinomial(len(blocks), np.full(len(blocks), 1 / len(blocks)), size=NUM_DRAWS)
            self._blocks = np.vstack([np.ones(len(blocks)), drawn])
        found: Array = self._blocks @ blocks
        return found


def _parts(own: int, others: int, alone: int, most_steps: int) -> tuple[float, ...]:
    """The fields `rounds` to `alone_inverse` of a round with these numbers of groups, dealt to at most `most_steps`
    steps; parts, squares and pairs are sums over the steps."""
    groups = max(1, own + others)
    steps, steps_alone = min(most_steps, own + others), min(most_steps, alone)
    square = steps / groups  # weight of all groups' squares in a step's squared mean; the rest is that of their pairs
    each_pair = (1 - square) / max(1, groups * (groups - 1))
    pairs = (own * (own - 1), others * (others - 1), 2 * own * others)
    of_own, of_others, of_both = (steps * each_pair * count for count in pairs)
    return (
        1.0,
        float(steps),
        steps * own / groups,
        steps * others / groups,
        steps * square * own / groups,
        of_own,
        steps * square * others / groups,
        of_others,
        of_both,
        float(steps_alone),
        steps_alone**2 / alone if alone else 0.0,
    )


def _products(own: Sketches, others: Sketches, crosses: Array, total: Sketches, count: int) -> tuple[float, ...]:
    """The fields `compared` to `others`; zeros when own groups have none to be compared with.

    `total` is the sum of the `count` own groups of this round and of earlier ones; `crosses` are the mean products of
    the external groups with them.
    """
    if not (len(own) and len(others) and count > 1):
        return (0.0,) * 7
    own_squares, others_squares = (own * own).sum(axis=1), (others * others).sum(axis=1)
    others_total = others.sum(axis=0)
    num_pairs = len(others) * (len(others) - 1)
    pairs = float(others_total @ others_total - others_squares.sum()) / num_pairs if num_pairs else 0.0
    return (
        1.0,
        float((own @ total - own_squares).mean()) / (count - 1),
        float(crosses.mean()),
        float(own_squares.mean()),
        float(others_squares.mean()),
        float(num_pairs > 0),
        pairs,
    )


def _progress_together(sums: Sums[Array], own: Array) -> Array:
    """Mean over rounds of the mixed gradient along the wanted direction, over the gradient's root mean square."""
    cross = sums.cross / sums.compared
    others = np.where(sums.paired > 0, sums.others / np.maximum(1, sums.paired), 0)
    square = (
        sums.own_squares * sums.own_square / sums.compared
        + sums.own_pairs * own
        + sums.others_squares * sums.others_square / sums.compared
        + sums.others_pairs * others
        + sums.cross_pairs * cross
    ) / sums.steps
    along: Array = (sums.own_part * own + sums.others_part * cross) / sums.rounds
    return along / np.sqrt(square)


def _progress_alone(sums: Sums[Array], own: Array) -> Array:
    """The same for updates on own groups alone."""
    noise = sums.own_square / sums.compared - own
    square = own + noise * sums.alone_inverse / sums.alone_steps
    along: Array = own * sums.alone_steps / sums.rounds
    return along / np.sqrt(square)


def _known(draws: Array, max_width: float = MAX_WIDTH) -> Estimate | None:
    """The first value with the interval of the others; None while it says too little."""
    usable = draws[np.isfinite(draws)]
    if not np.isfinite(draws[0]) or len(usable) < (1 - MAX_UNUSABLE) * len(draws):
        return None
    low, high = percentile_interval(usable[1:])
    return Estimate(float(draws[0]), low, high) if high - low < max_width or not low <= 1 <= high else None


def _times_longer(products: Array, ratios: Array) -> float:
    """How many times the rounds it takes until the own products are clearly positive and the interval of `help` narrow
    enough: errors shrink with the square root of the rounds. Infinite where the products have no direction."""
    mean, drawn = float(products[0]), products[1:][np.isfinite(products[1:])]  # some draws hold no compared round
    if not mean > 0 or not len(drawn):
        return math.inf
    error = float(drawn.std())
    usable = ratios[np.isfinite(ratios)]
    low, high = percentile_interval(usable[1:]) if len(usable) > 1 else (0.0, 0.0)
    return max(Z_USABLE * error / mean, (high - low) / MAX_HELP_WIDTH, 1.0) ** 2
