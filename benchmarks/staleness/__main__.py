"""The effect of stale rollouts on each objective: best and last accuracy when updates use an old policy's rollouts.

One process and one policy. Update t uses rollouts of the policy after t - lag updates (the initial one while t < lag),
with that policy's log-probabilities. The lag is fixed or that of samplers with random delays. Engine, verifier and
updater are real. Each method has the learning rate that suits it on-policy. Cells (one method, delay and seed)
are stored in a folder, finished or not, so that a run can be interrupted and resumed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.common import halving
from benchmarks.common.report import Report, Row
from benchmarks.common.running import at_least_one, conclude, option_parser, wide_console
from benchmarks.staleness.arms import ARMS, ASKED, ASKED_DELAYS, EVERY_DELAY
from benchmarks.staleness.cell import Bench, Cell
from benchmarks.staleness.delays import check
from benchmarks.staleness.rates import SEEDS, choose
from benchmarks.staleness.run import Plan
from benchmarks.staleness.subject import Subject, configured, counting_bits
from benchmarks.staleness.table import notes, rows
from nodes.simulation.configs import as_fields, real_model
from swarm.config import NodeConfig, load_config
from swarm.errors import SwarmError
from swarm.machine import num_cores
from swarm.policy.config import check_model_path

LORA_RANK = 16


@dataclass(frozen=True)
class Size:
    """The size of a whole run."""

    plan: Plan = Plan()
    choosing: Plan = Plan(num_final=16)
    """Of the runs that choose a learning rate; their final questions do not matter."""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    choosing_seeds: tuple[int, ...] = SEEDS
    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    divergence: float | None = None
    """Choose learning rates by this divergence from the sampler, nats a token, instead of by accuracy on-policy."""
    warm_start: halving.WarmStart = halving.WarmStart()


FULL = Size()
SMALL = Plan(updates=4, window_updates=4, questions=2, evaluate_every=2, num_evaluation=16, num_final=16)
QUICK = Size(
    plan=SMALL,
    choosing=replace(SMALL, updates=2),
    seeds=(1,),
    choosing_seeds=(101,),
    rates=(1e-4, 3e-4),
    warm_start=halving.WarmStart(steps=120),
)
MODEL = Size(
    plan=Plan(updates=64, evaluate_every=16, num_evaluation=64, num_final=128),
    choosing=Plan(updates=24, evaluate_every=24, num_evaluation=8, num_final=8),
    seeds=(1,),
    choosing_seeds=(101,),
    rates=(1e-5, 3e-5, 1e-4, 3e-4),
    divergence=0.0025,
)
"""One run each at the paper's divergence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are missing, then print and write the table."""
    options = _options().parse_args(arguments)
    torch.set_num_threads(1)
    report, console = Report("staleness", peer="start"), wide_console()
    try:
        size = _size(options)
        subject = _subject(options, size, console)
    except SwarmError as error:
        console.print(f"{error}", style="red", markup=False)
        return 2

    def take() -> int:
        try:
            _measure(options, size, subject, report, console)
        except SwarmError as error:
            console.print(f"{error}", style="red", markup=False)
            return 1
        return 0

    return conclude(take, report, options, console)


def _options() -> argparse.ArgumentParser:
    parser = option_parser("staleness", __doc__, ARMS, default=" | ".join(ASKED))
    parser.add_argument("--full", action="store_true", help="every method at every delay: hours")
    delays = " | ".join(EVERY_DELAY)
    parser.add_argument("--delays", nargs="+", type=_delay, metavar="DELAY", help=f"any number of updates, or {delays}")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--updates", type=at_least_one, help="updates a cell")
    parser.add_argument("--rates", nargs="+", type=float, metavar="RATE", help="learning rates to choose from")
    parser.add_argument(
        "--divergence",
        type=float,
        metavar="NATS",
        help="choose the learning rates by this divergence from the sampler a token, not by accuracy on-policy",
    )
    parser.add_argument(
        "--model",
        help=f"train smollm2, a directory or a hub id, on the tasks of `swarm demo --model` with LoRA of rank "
        f"{LORA_RANK}, unless --config says otherwise",
    )
    parser.add_argument("--config", type=Path, help="policy, tasks and generation of a node's configuration")
    parser.add_argument("--cells", type=Path, default=Path("runs/staleness"), help="folder of cells, finished or not")
    return parser


def _delay(text: str) -> str:
    try:
        return check(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _size(options: argparse.Namespace) -> Size:
    """The size that the options ask for."""
    size = MODEL if options.model or options.config else FULL
    if options.quick:
        size = replace(QUICK, divergence=size.divergence)
    if options.updates:
        size = replace(size, plan=replace(size.plan, updates=options.updates))
    changes = {"seeds": options.seeds, "rates": options.rates, "divergence": options.divergence}
    return replace(size, **{name: value for name, value in changes.items() if value is not None})


def _subject(options: argparse.Namespace, size: Size, console: Console) -> Subject:
    """What is trained. Raises `ConfigError`, `TaskError`."""
    if not (options.model or options.config):
        return counting_bits(size.warm_start, options.cells, console)
    config = _config(options.model, options.config)
    check_model_path(config.policy)
    return configured(config)


def _config(model: str | None, file: Path | None) -> NodeConfig:
    """The file's, with the model; without a file the tasks and lengths of `swarm demo --model`, trained with LoRA.

    Raises `ConfigError`.
    """
    chosen = [("policy.model", model)] if model else []
    if model and file is None:
        # The embedded policies' tasks want tags, which a small model hardly ever writes. One thread, as all cells.
        demo = real_model(model, MODEL.plan.questions, num_nodes=num_cores())
        chosen = [*as_fields(demo), ("policy.lora.rank", str(LORA_RANK))]
    return load_config(file, command_line=chosen).config


def _measure(options: argparse.Namespace, size: Size, subject: Subject, report: Report, console: Console) -> None:
    """Choose learning rates, then run the cells; an interrupted run reports what is finished."""
    arms = options.only or (list(ARMS) if options.full else ASKED)
    delays = options.delays or (EVERY_DELAY if options.full else ASKED_DELAYS)
    choosing = Bench(size.choosing, subject, options.cells, console)
    bench = Bench(size.plan, subject, options.cells, console)
    cells: dict[tuple[str, str], list[Cell]] = {(arm, delay): [] for delay in delays for arm in arms}
    found: list[Row] = []
    try:
        rates = {}
        for arm in arms:
            choice = choose(choosing, arm, size.rates, size.choosing_seeds, size.divergence)
            rates[arm] = choice.learning_rate
            found += choice.rows()
        for seed in size.seeds:
            for arm, delay in cells:
                cells[arm, delay].append(bench.cell(arm, delay, seed, rates[arm]))
    finally:
        found += rows(cells)
        # Targets apply to full sizes only.
        report.add(
            [replace(row, target=None, met=None) for row in found] if options.quick else found,
            notes(cells, size.plan, subject.about),
        )


if __name__ == "__main__":
    sys.exit(main())
