"""`swarm plan`: computes the workers that a learner needs, before you rent any."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from swarm.errors import ConfigError
from swarm.extras.learner.capacity import (
    ROUNDING,
    Demand,
    Worker,
    bubble_ratio,
    cheapest,
    cost_per_step,
    longest_wait_s,
    pool_rate,
    rate_within,
    required_rate,
    smallest_feasible_period,
    staleness_bound,
    step_s,
    tightened_staleness_bound,
)
from swarm.following import publish_every

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
