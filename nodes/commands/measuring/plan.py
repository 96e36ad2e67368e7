"""`swarm plan`: computes the workers that a learner needs, before you rent any."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from nodes import exits
from swarm.central.capacity import (
    Demand,
    Worker,
    bubble_ratio,
    cheapest,
    cost_per_step,
    pool_rate,
    publish_every,
    required_rate,
    smallest_feasible_period,
    staleness_bound,
    step_s,
    tightened_staleness_bound,
)
from swarm.errors import ConfigError

WORKER = re.compile(r"(?:(\d+)x)?([0-9.eE+-]+)(?:@([0-9.eE+-]+))?(?:\*([0-9.eE+-]+))?")


@dataclass(frozen=True)
class CapacityPlan:
    """A learner's demand, the available workers and the chosen ones."""

    demand: Demand
    headroom: float
    learner_price: float
    pool: tuple[Worker, ...]

    @property
    def required(self) -> float | None:
        """mu_min, rollouts per second."""
        return required_rate(self.demand)

    @property
    def active(self) -> tuple[Worker, ...]:
        """The cheapest set that reaches the required rate with headroom, or all workers if none does."""
        if self.required is None:
            return self.pool
        return cheapest(self.pool, self.headroom * self.required) or self.pool

    @property
    def feasible(self) -> bool:
        """Whether the active workers keep the learner busy."""
        return self.required is not None and pool_rate(self.active) >= self.required


def demand_of(rollouts: int, train_s: float, broadcast_s: float, period: int | None, staleness: int | None) -> Demand:
    """A demand from kappa or from the staleness bound. Raises `ConfigError`."""
    if (period is None) == (staleness is None):
        raise ConfigError("set either --publish-every (kappa) or --max-staleness (S), which determines it")
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


def show_plan(plan: CapacityPlan, as_json: bool, console: Console) -> int:
    """Print the requirement, the cheapest set and its expected behaviour; returns 1 when the learner must wait."""
    if as_json:
        console.print_json(json.dumps(_figures(plan)))
    else:
        console.print(_table(plan))
        for advice in _advice(plan):
            console.print(advice, highlight=False)
    return exits.DONE if plan.feasible else exits.FAILED


def _figures(plan: CapacityPlan) -> dict[str, object]:
    demand, rate = plan.demand, pool_rate(plan.active)
    return {
        "publish_every": demand.publish_every,
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
        table.add_row("learner waits", f"{bubble_ratio(demand, rate):.1%} of its time")
        table.add_row("a step", f"{step_s(demand, rate):.4g} s")
        table.add_row("costs", f"{cost_per_step(demand, plan.active, plan.learner_price):.4g} a step")
        table.add_row("staleness", f"at most {staleness_bound(demand, rate)} steps")
    return table


def _advice(plan: CapacityPlan) -> list[str]:
    """Changes that would keep the learner busy; empty when it already is."""
    if plan.feasible:
        return []
    demand, everyone = plan.demand, pool_rate(plan.pool)
    advice = []
    if plan.required is None:
        longest_s = demand.publish_every * demand.train_s
        advice.append(
            f"the broadcast must take less than {longest_s:.4g} s (kappa x train), got {demand.broadcast_s:g} s"
        )
    elif everyone < plan.required:
        advice.append(f"{plan.required - everyone:.4g} rollouts/s are missing: add workers")
    period = smallest_feasible_period(demand, everyone)
    if period is not None:
        advice.append(
            f"or publish every {period} steps instead of {demand.publish_every}: staleness up to "
            f"{staleness_bound(replace(demand, publish_every=period), everyone)}"
        )
    if everyone > 0:
        train_s = demand.rollouts / everyone + demand.broadcast_s / demand.publish_every
        advice.append(f"or lengthen a step to {train_s:.4g} s instead of {demand.train_s:g} s")
        kept = everyone * (demand.train_s - demand.broadcast_s / demand.publish_every)
        if kept >= 1:
            advice.append(f"or train on {math.floor(kept)} rollouts per step instead of {demand.rollouts}")
    return [line.removeprefix("or ") if index == 0 else line for index, line in enumerate(advice)]
