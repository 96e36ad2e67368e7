"""Poker against scripted opponents, learned by swarms of four embedded policies in one process each.

Before the first round and after the last every node plays held-out hands against each opponent of the example's suite.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import hypot
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.common.report import Report, Row, row
from benchmarks.common.running import Result, at_least_one, conclude, measure, option_parser, scratch, wide_console
from benchmarks.poker.exact import best_response, value
from nodes.simulation.in_memory import MemoryRun, Turns, take_turns
from nodes.simulation.members import Member
from nodes.simulation.seeds import node_seed
from swarm.config import NodeConfig, load_config
from swarm.extras.poker.heads_up import net_chips
from swarm.extras.poker.kuhn import STACK
from swarm.extras.poker.tasks import STRATEGIES, HoldemTask, KuhnTask
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, SuiteScores
from swarm.types import Estimate

EXAMPLES = Path(__file__).parents[2] / "examples"
SUITE = "opponents"
MEAN = "avg@1"
UNIT = "chips"
"""Won in a hand."""


@dataclass(frozen=True)
class Plan:
    """The size of the runs."""

    seeds: Sequence[int] = (0, 1, 2)
    nodes: int = 4
    rounds: int = 80
    hands: int = 100
    """Held out, for each node and opponent."""


@dataclass(frozen=True)
class Returns:
    """What the nodes of a swarm win on average; an interval is that of the mean of nodes that play other hands each."""

    opponents: dict[str, float]
    all: Estimate


@dataclass(frozen=True)
class Outcome:
    """What became of a swarm."""

    untrained: Returns
    trained: Returns
    used_external: int
    """Groups of others in the updates of the node with the fewest."""


def learn(config: NodeConfig, plan: Plan, seed: int) -> Outcome:
    """Run one swarm."""
    with scratch() as folder:
        outs = [Path(folder) / f"peer-{k}" for k in range(plan.nodes)]
        members = [Member(_member(config, out, node_seed(seed, k))) for k, out in enumerate(outs)]
        turns = Turns()
        take_turns([MemoryRun(members, lambda: False, turns)], turns, lambda: False)
        nodes = [PeerHistory.read(out / METRICS_FILE) for out in outs]
    before = [event for node in nodes if (event := node.suite_before(SUITE)) is not None]
    after = [node.suite_after(SUITE) for node in nodes]
    in_chips = partial(returns, stack=_stack(config))
    return Outcome(
        untrained=in_chips([event.scores for event in before], [event.tasks for event in before]),
        trained=in_chips([event.scores for event in after], [event.tasks for event in after]),
        used_external=min(node.rounds[max(node.rounds)].groups["used_external"] for node in nodes),
    )


def _member(config: NodeConfig, out: Path, seed: int) -> NodeConfig:
    """A node with held-out hands of its own: four times as many as if all played the same."""
    evaluation = config.evaluation.model_copy(update={"seed": seed})
    return config.model_copy(update={"out": out, "seed": seed, "evaluation": evaluation})


def returns(scores: Sequence[SuiteScores], tasks: Sequence[Mapping[str, SuiteScores]], stack: int) -> Returns:
    """Of nodes' scores, over all opponents and by opponent."""

    def mean(found: Sequence[SuiteScores]) -> float:
        return fmean(each.figures[MEAN].value for each in found)

    opponents = {name: net_chips(mean([each[name] for each in tasks]), stack) for name in tasks[0]}
    figures = [each.figures[MEAN] for each in scores]
    value = mean(scores)
    low = value - hypot(*(each.value - each.low for each in figures)) / len(figures)
    high = value + hypot(*(each.high - each.value for each in figures)) / len(figures)
    return Returns(opponents, Estimate(*(net_chips(end, stack) for end in (value, low, high))))


def _stack(config: NodeConfig) -> int:
    (task,) = config.tasks
    return task.stack if isinstance(task, HoldemTask) else STACK


def rows(game: str, seeds: Sequence[int], outcomes: Sequence[Outcome]) -> list[Row]:
    """By opponent over all seeds; by seed over all opponents, with the interval over hands."""
    found = [
        row(
            f"{game} against {name}",
            [each.trained.opponents[name] for each in outcomes],
            UNIT,
            baseline=[each.untrained.opponents[name] for each in outcomes],
        )
        for name in outcomes[0].trained.opponents
    ]
    for seed, each in zip(seeds, outcomes, strict=True):
        ours, theirs = each.trained.all, each.untrained.all
        line = row(f"{game} against all, seed {seed}", [ours.value], UNIT, baseline=[theirs.value], target=theirs.high)
        found.append(replace(line, spread=(ours.low, ours.high), met=ours.low > theirs.high))
    used = [float(each.used_external) for each in outcomes]
    found = [replace(each, ratio=None) for each in found]  # of gains and losses a ratio says nothing
    return [*found, row(f"{game}: others' groups used, fewest of a node", used, "groups", target=1)]


def measure_game(example: str, plan: Plan) -> Result:
    """The swarms of one example, one for each seed."""
    changes = [("rounds", str(plan.rounds)), ("checkpoint.every_rounds", str(10 * plan.rounds))]
    config = _with_hands(load_config(EXAMPLES / example, None, {}, changes).config, plan.hands)
    outcomes = [learn(config, plan, seed) for seed in plan.seeds]
    notes = [
        f"Chips won in a hand: {plan.nodes} nodes, {plan.rounds} rounds, {plan.hands} held-out hands for each node and "
        "opponent; by opponent, median and range over seeds; by seed, the interval over hands, to lie above the "
        "untrained policy's."
    ]
    return [*rows(config.run_name, plan.seeds, outcomes), *_references(config)], notes


def _with_hands(config: NodeConfig, hands: int) -> NodeConfig:
    suite = config.evaluation.suites[SUITE].model_copy(update={"questions": hands})
    evaluation = config.evaluation.model_copy(update={"suites": {SUITE: suite}})
    return config.model_copy(update={"evaluation": evaluation})


def _references(config: NodeConfig) -> list[Row]:
    """Exact values of Kuhn poker for the opponents that a run has."""
    (task,) = config.tasks
    if not isinstance(task, KuhnTask):
        return []
    opponents = [STRATEGIES[name] for name in task.opponents]
    legal = fmean(value(STRATEGIES["random"], theirs) for theirs in opponents)
    return [
        row("kuhn, the run's opponents: best response, exact", [best_response(opponents)], UNIT),
        row("kuhn, the run's opponents: random moves, exact", [legal], UNIT),
    ]


GAMES = {
    "kuhn": partial(measure_game, "kuhn-poker.yaml"),
    "holdem": partial(measure_game, "holdem.yaml"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the games."""
    parser = option_parser("poker", __doc__, GAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(Plan.seeds))
    parser.add_argument("--rounds", type=at_least_one, default=Plan.rounds)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    report, console = Report("poker", peer="untrained"), wide_console()
    plan = Plan((0,), nodes=2, rounds=4, hands=20) if options.quick else Plan(options.seeds, rounds=options.rounds)
    return conclude(
        lambda: measure(GAMES, options.only, plan, report, console, quick=options.quick), report, options, console
    )


if __name__ == "__main__":
    sys.exit(main())
