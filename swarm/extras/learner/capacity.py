"""How many rollouts a learner needs, the cheapest workers that supply them, and the staleness bound.

Pure functions. A learner trains on R rollouts per step in `train_s`, and publishes a snapshot every kappa steps;
`broadcast_s` later the workers have installed it. The learner never waits while a publication period covers both: kappa
R / mu + broadcast_s <= kappa train_s, where mu is the total rollouts per second of all workers.

Source: arXiv:2602.02192, sections 3.3 to 3.5 and appendix A.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from swarm.errors import ConfigError
from swarm.following import publish_every

SEARCHED = 20_000
"""Sets of workers examined for the cheapest: a few hundredths of a second."""
ROUNDING = 1e-9
"""Tolerance for ratios of measured times that are rounded up: an exact multiple must not round up by one."""


@dataclass(frozen=True)
class Demand:
    """A learner's demand for rollouts."""

    rollouts: int
    """R: rollouts per learner step."""
    train_s: float
    """Seconds of a learner step that does not wait for rollouts."""
    broadcast_s: float
    """Seconds from publication until the workers have installed a snapshot."""
    publish_every: int
    """kappa: learner steps between snapshots."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for values out of range."""
        if self.rollouts < 1 or self.publish_every < 1:
            raise ValueError(
                f"rollouts and publish_every must be at least 1, got {self.rollouts} and {self.publish_every}"
            )
        if not 0 < self.train_s < math.inf or not 0 <= self.broadcast_s < math.inf:
            raise ValueError(
                f"train_s must be positive and broadcast_s not negative, got {self.train_s} and {self.broadcast_s}"
            )


@dataclass(frozen=True)
class Worker:
    """One worker's rate and price."""

    name: str
    rate: float
    """mu: rollouts per second, delivered and rewarded."""
    price: float = 0.0
    """Price per hour, in any currency."""
    availability: float = 1.0
    """Fraction of the time that it is present by its heartbeats, in [0, 1]."""

    @property
    def effective_rate(self) -> float:
        """Expected rollouts per second."""
        return self.availability * self.rate


def period_s(demand: Demand, rate: float) -> float:
    """Seconds for workers of this rate to sample a publication period's rollouts and to receive the next snapshot."""
    return demand.publish_every * demand.rollouts / rate + demand.broadcast_s if rate > 0 else math.inf


def required_rate(demand: Demand) -> float | None:
    """mu_min = R / (train_s - broadcast_s / kappa); None when the broadcast alone fills the period.

    From this rate on, generation and broadcast fit into a publication period, and the learner never waits. Source:
    arXiv:2602.02192, eq. 1 and 2.
    """
    spare_s = demand.train_s - demand.broadcast_s / demand.publish_every
    return demand.rollouts / spare_s if spare_s > 0 else None


def rate_within(demand: Demand, max_staleness: int) -> float | None:
    """The least rate with which `staleness_bound` is within S; None when no rate suffices."""
    spare_s = longest_wait_s(demand, max_staleness) - demand.broadcast_s
    return demand.rollouts / spare_s if spare_s > 0 else None


def longest_wait_s(demand: Demand, max_staleness: int) -> float:
    """The most seconds from a publication until R rollouts of it, with which `staleness_bound` is within S."""
    return (max_staleness - demand.publish_every + 1) * demand.train_s


def smallest_feasible_period(demand: Demand, rate: float) -> int | None:
    """The least kappa at which workers of this rate keep the learner busy; None when there is none."""
    spare_s = demand.train_s - demand.rollouts / rate if rate > 0 else 0.0
    if spare_s <= 0:
        return None
    return max(1, math.ceil(demand.broadcast_s / spare_s - ROUNDING))


def pool_rate(workers: Iterable[Worker]) -> float:
    """Expected rollouts per second: the sum of availability times measured rate.

    Source: arXiv:2602.02192, eq. 4.
    """
    return sum(worker.effective_rate for worker in workers)


def cheapest(workers: Sequence[Worker], rate: float) -> tuple[Worker, ...] | None:
    """A cheap set of workers with at least this total rate; None when all workers together do not reach it.

    Greedy: take workers by rising price per rollout; after each, consider completing the set with one other worker. The
    cheapest such set, without its redundant members, costs at most twice the minimum. A bounded search then looks for
    cheaper sets, which is exhaustive for small pools.

    Source: arXiv:2602.02192, eq. 3, its greedy rule; completion: Csirik et al. 1991, for minimum knapsack.
    """
    ranked = sorted((each for each in workers if each.effective_rate > 0), key=_unit_price)
    greedy = _greedy(ranked, rate)
    return None if greedy is None else _cheaper(greedy, _search(ranked, rate, _hourly(greedy)) or greedy)


def _greedy(ranked: Sequence[Worker], rate: float) -> tuple[Worker, ...] | None:
    """The best of all prefixes of `ranked`, each completed by at most one other worker."""
    best: tuple[Worker, ...] | None = None
    for taken in range(len(ranked) + 1):
        missing = rate - pool_rate(ranked[:taken])
        if missing <= rate * ROUNDING:
            return _cheaper(best, _without_spares(ranked[:taken], rate))
        able = [each for each in ranked[taken:] if each.effective_rate >= missing]
        if able:
            last = min(able, key=lambda each: (each.price, each.name))
            best = _cheaper(best, _without_spares([*ranked[:taken], last], rate))
    return best


def _search(ranked: Sequence[Worker], rate: float, price: float) -> tuple[Worker, ...] | None:
    """The cheapest set below `price` among `SEARCHED` examined sets; None without one.

    Depth first by rising unit price, pruned by the price with fractional workers.
    """
    best: tuple[Worker, ...] | None = None
    open_sets: list[tuple[int, float, float, tuple[Worker, ...]]] = [(0, 0.0, rate, ())]
    for _ in range(SEARCHED):
        if not open_sets:
            break
        index, spent, missing, taken = open_sets.pop()
        if missing <= rate * ROUNDING:
            if spent < price:
                best, price = taken, spent
            continue
        if index == len(ranked) or spent + missing * _unit_price(ranked[index])[0] >= price:
            continue
        worker = ranked[index]
        open_sets.append((index + 1, spent, missing, taken))
        open_sets.append((index + 1, spent + worker.price, missing - worker.effective_rate, (*taken, worker)))
    return best


def _unit_price(worker: Worker) -> tuple[float, str]:
    return worker.price / worker.effective_rate, worker.name


def _cheaper(first: tuple[Worker, ...] | None, second: tuple[Worker, ...]) -> tuple[Worker, ...]:
    return second if first is None or _hourly(second) < _hourly(first) else first


def _without_spares(workers: Sequence[Worker], rate: float) -> tuple[Worker, ...]:
    """Remove redundant workers, the most expensive first."""
    kept = list(workers)
    for worker in sorted(workers, key=lambda each: -each.price):
        if pool_rate(kept) - worker.effective_rate >= rate * (1 - ROUNDING):
            kept.remove(worker)
    return tuple(kept)


def _hourly(workers: Iterable[Worker]) -> float:
    return sum(worker.price for worker in workers)


def bubble_ratio(demand: Demand, rate: float) -> float:
    """Fraction of its time that the learner waits for rollouts, wait / (train + wait), in [0, 1]."""
    busy_s = demand.publish_every * demand.train_s
    return max(0.0, 1.0 - busy_s / period_s(demand, rate))


def step_s(demand: Demand, rate: float) -> float:
    """Seconds from one learner step to the next, waiting included."""
    return max(demand.train_s, period_s(demand, rate) / demand.publish_every)


def cost_per_step(demand: Demand, workers: Sequence[Worker], learner_price: float = 0.0) -> float:
    """Price of a learner step: the hourly prices of learner and workers times the duration of the step."""
    return (learner_price + _hourly(workers)) * step_s(demand, pool_rate(workers)) / 3600


def staleness_bound(demand: Demand, rate: float) -> int:
    """S_max <= kappa + k* - 1, k* = ceil((broadcast_s + R / mu) / train_s): the worst case, whatever the overlap.

    k* is the first step that can have R rollouts of a new snapshot if none is sampled before the broadcast completes.
    Source: arXiv:2602.02192, appendix A.2.
    """
    if rate <= 0:
        raise ValueError(f"rate must be positive, got {rate}")
    waited = (demand.broadcast_s + demand.rollouts / rate) / demand.train_s
    return demand.publish_every + max(1, math.ceil(waited - ROUNDING)) - 1


def tightened_staleness_bound(demand: Demand) -> int:
    """The same for every rate of `required_rate` or more: k* <= ceil(1 + (1 - 1 / kappa) broadcast_s / train_s).

    Source: arXiv:2602.02192, appendix A.3.
    """
    slack = (1 - 1 / demand.publish_every) * demand.broadcast_s / demand.train_s
    return demand.publish_every + math.ceil(1 + slack - ROUNDING) - 1


NEEDED = (
    "a plan needs --rollouts R (completions per step), --train-s SECONDS (per step), --broadcast-s SECONDS (until the "
    "workers have new weights), --worker for each kind of worker, and --max-staleness S or --publish-every KAPPA; for "
    "example: swarm plan --rollouts 512 --train-s 20 --broadcast-s 5 --max-staleness 4 --worker 24x1.5@0.40"
)
WORKER = re.compile(r"(?:(\d+)x)?([0-9.eE+-]+)(?:@([0-9.eE+-]+))?(?:\*([0-9.eE+-]+))?")


@dataclass(frozen=True)
class CapacityPlan:
    """A learner's demand, the available workers and the chosen ones."""

    demand: Demand
    headroom: float
    learner_price: float
    pool: tuple[Worker, ...]
    max_staleness: int | None = None
    """S; None without a bound."""

    @property
    def required(self) -> float | None:
        """mu_min, rollouts per second, and enough to keep the staleness within S; None when no rate suffices."""
        needed = [required_rate(self.demand)]
        if self.max_staleness is not None:
            needed.append(rate_within(self.demand, self.max_staleness))
        known = [rate for rate in needed if rate is not None]
        return max(known) if len(known) == len(needed) else None

    @property
    def active(self) -> tuple[Worker, ...]:
        """The cheapest set that reaches the required rate with headroom, or all workers if none does."""
        if self.required is None:
            return self.pool
        return cheapest(self.pool, self.headroom * self.required) or self.pool

    @property
    def feasible(self) -> bool:
        """Whether the active workers keep the learner busy with rollouts that are not too old."""
        return self.required is not None and pool_rate(self.active) >= self.required * (1 - ROUNDING)


def demand_of(rollouts: int, train_s: float, broadcast_s: float, period: int | None, staleness: int | None) -> Demand:
    """A demand with this kappa, or that of the staleness bound. Raises `ConfigError`."""
    if period is None and staleness is None:
        raise ConfigError("set --max-staleness (S), which determines --publish-every (kappa), or kappa, or both")
    try:
        return Demand(rollouts, train_s, broadcast_s, period or publish_every(staleness or 0))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def parse_workers(texts: Sequence[str]) -> tuple[Worker, ...]:
    """Workers from `[COUNTx]RATE[@PRICE][*AVAILABILITY]` each. Raises `ConfigError`."""
    workers: list[Worker] = []
    for text in texts:
        found = WORKER.fullmatch(text.strip())
        try:
            if found is None:
                raise ValueError
            count, rate, price, availability = (float(part) if part else None for part in found.groups())
            worker = Worker("", rate or 0.0, price or 0.0, 1.0 if availability is None else availability)
            if count == 0 or not (
                0 < worker.rate < math.inf and 0 <= worker.price < math.inf and 0 <= worker.availability <= 1
            ):
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"--worker must be [COUNTx]RATE[@PRICE][*AVAILABILITY], as in 8x1.5@0.40*0.95 for eight workers of 1.5 "
                f"rollouts per second, 0.40 per hour and present 95% of the time; got {text!r}"
            ) from None
        numbers = range(len(workers), len(workers) + int(count or 1))
        workers += [replace(worker, name=f"{text.strip()} #{number}") for number in numbers]
    return tuple(workers)


def show_plan(plan: CapacityPlan, as_json: bool, console: Console) -> None:
    """Print the requirement, the cheapest set and its expected behaviour."""
    if as_json:
        console.print_json(json.dumps(_figures(plan)))
    else:
        console.print(_table(plan))
        for advice in _advice(plan):
            console.print(advice, highlight=False)


def _figures(plan: CapacityPlan) -> dict[str, object]:
    demand, rate = plan.demand, pool_rate(plan.active)
    return {
        "publish_every": demand.publish_every,
        "max_staleness": plan.max_staleness,
        "required_rollouts_per_s": plan.required,
        "headroom": plan.headroom,
        "feasible": plan.feasible,
        "active": dict(Counter(worker.name.rpartition(" #")[0] for worker in plan.active)),
        "active_rollouts_per_s": rate,
        "bubble_ratio": bubble_ratio(demand, rate),
        "step_s": step_s(demand, rate) if rate > 0 else None,
        "cost_per_step": cost_per_step(demand, plan.active, plan.learner_price) if rate > 0 else None,
        "staleness_bound": staleness_bound(demand, rate) if rate > 0 else None,
        "staleness_bound_with_overlap": tightened_staleness_bound(demand),
        "advice": _advice(plan),
    }


def _table(plan: CapacityPlan) -> Table:
    demand, rate = plan.demand, pool_rate(plan.active)
    table = Table(box=None, show_header=False, pad_edge=False)
    needed = "impossible" if plan.required is None else f"{plan.required:.4g} rollouts/s"
    table.add_row("needed (mu_min)", f"{needed}, a snapshot every {demand.publish_every} steps")
    if plan.required is not None:
        table.add_row("target", f"{plan.headroom * plan.required:.4g} rollouts/s, {plan.headroom:g} times that")
    for name, count in Counter(worker.name.rpartition(" #")[0] for worker in plan.active).items():
        table.add_row("activate", f"{count} of the workers {name}")
    table.add_row("they give", f"{rate:.4g} rollouts/s")
    if rate > 0:
        bound, allowed = staleness_bound(demand, rate), plan.max_staleness
        beyond = allowed is not None and bound > allowed
        waits = f"{bubble_ratio(demand, rate):.1%} of its time"
        table.add_row("learner waits", f"at least {waits}" if beyond else waits)
        table.add_row("a step", f"{step_s(demand, rate):.4g} s")
        table.add_row("costs", f"{cost_per_step(demand, plan.active, plan.learner_price):.4g} a step")
        dropped = f"; beyond {allowed} the learner drops rollouts, and waits for others" if beyond else ""
        table.add_row("staleness", f"at most {bound} steps{dropped}")
    return table


def _advice(plan: CapacityPlan) -> list[str]:
    """Changes that would keep the learner busy; empty when it already is."""
    if plan.feasible:
        return []
    everyone = pool_rate(plan.pool)
    advice = []
    if plan.required is None:
        if (longest_s := _longest_broadcast_s(plan)) > 0:
            advice.append(f"the broadcast must take less than {longest_s:.4g} s, got {plan.demand.broadcast_s:g} s")
    elif everyone < plan.required:
        advice.append(f"{plan.required - everyone:.4g} rollouts/s are missing: add workers")
    if everyone > 0:
        advice += [f"or {line}" for line in (*_other_periods(plan, everyone), *_other_steps(plan, everyone))]
    return [line.removeprefix("or ") if index == 0 else line for index, line in enumerate(advice)]


def _longest_broadcast_s(plan: CapacityPlan) -> float:
    """With which some rate would do: kappa x train, and what S allows."""
    longest_s = plan.demand.publish_every * plan.demand.train_s
    return longest_s if plan.max_staleness is None else min(longest_s, longest_wait_s(plan.demand, plan.max_staleness))


def _other_periods(plan: CapacityPlan, rate: float) -> Iterator[str]:
    """Another kappa with which workers of this rate keep the learner busy, and the S that it needs."""
    demand, allowed = plan.demand, plan.max_staleness
    period = smallest_feasible_period(demand, rate)
    if period is None:
        return
    bound = staleness_bound(replace(demand, publish_every=period), rate)
    changed = f"publish every {period} steps instead of {demand.publish_every}"
    if allowed is None or bound <= allowed:
        yield f"{changed}: staleness up to {bound}"
    else:
        also = f"{changed}, and " if period != demand.publish_every else ""
        yield f"{also}allow a staleness of {bound} instead of {allowed}"


def _other_steps(plan: CapacityPlan, rate: float) -> Iterator[str]:
    """Longer or smaller steps for which workers of this rate suffice."""
    demand, allowed = plan.demand, plan.max_staleness
    sampled_s = demand.rollouts / rate
    train_s = sampled_s + demand.broadcast_s / demand.publish_every
    spare_s = demand.train_s - demand.broadcast_s / demand.publish_every
    if allowed is not None:
        waits = allowed - demand.publish_every + 1
        if waits < 1:
            return
        train_s = max(train_s, (sampled_s + demand.broadcast_s) / waits)
        spare_s = min(spare_s, longest_wait_s(demand, allowed) - demand.broadcast_s)
    yield f"lengthen a step to {train_s:.4g} s instead of {demand.train_s:g} s"
    if (kept := math.floor(rate * spare_s)) >= 1:
        yield f"train on {kept} rollouts per step instead of {demand.rollouts}"
