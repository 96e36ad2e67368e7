"""`swarm sweep`: which mix of own and others' groups is best for a configuration? One swarm for each mix and seed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from nodes import exits
from nodes.simulation.cells import Cell, CellStore, Values, alike, complete, run_cells, write
from nodes.simulation.children import on_loopback
from nodes.simulation.configs import Fields, mix_configs
from nodes.stop import StopRequest
from swarm.config import NodeConfig
from swarm.distribution import versions
from swarm.policy.config import EMBEDDED, check_model_path, check_peft
from swarm.telemetry.benefit.comparison import ComparedRow, SwarmOutcome, compare, markdown, stops_in_words, table
from swarm.telemetry.benefit.picture import Section, write_comparisons

CELLS = "cells"
TABLE_FILE = "sweep.md"
JSON_FILE = "sweep.json"
PICTURE_FILE = "sweep.png"
ROUNDS = 100


class SweepOptions(Struct, frozen=True):
    """Options of the command line."""

    file: Path | None
    fields: Fields
    mixes: Sequence[str]
    """The first is the baseline."""
    num_seeds: int
    peers: int
    rounds: int | None
    """None: the configuration's, or else `ROUNDS`."""
    out: Path
    transport: Literal["memory", "hivemind"]
    jobs: int
    """Swarms at a time."""


class SweepFile(Struct, frozen=True):
    """`sweep.json`."""

    baseline: str
    rows: list[ComparedRow]
    cells: list[SwarmOutcome]
    config: Values
    """The configuration of the first mix."""
    versions: dict[str, str]


def sweep(options: SweepOptions, console: Console) -> int:
    """Run what is missing, then draw the table of all that has finished. Returns the exit code."""
    stop = StopRequest()
    cells = sweep_cells(options)
    _check_memory(options, cells)
    store = CellStore(options.out / CELLS)
    failed = run_cells(cells, store, options.jobs, stop, console)
    outcomes = store.results(cells)
    if outcomes:
        _report(options, cells, outcomes, console)
    else:
        console.print("no swarm has finished: there is nothing to compare")
    if stop():
        return exits.INTERRUPTED
    return exits.FAILED if failed else exits.DONE


def sweep_cells(options: SweepOptions) -> list[Cell]:
    """Every mix with every seed, seed by seed: a sweep that was stopped has compared some. Raises `ConfigError`."""
    rounds = [] if options.rounds is None else [("rounds", str(options.rounds))]
    configs = mix_configs(options.mixes, options.file, os.environ, [*options.fields, *rounds])
    for config in configs.values():
        check_model_path(config.policy)
        check_peft(config.policy.lora)
    return [
        Cell(mix, seed, _values(config, options.transport), alike(options.peers, seed), (), options.transport)
        for seed in range(options.num_seeds)
        for mix, config in configs.items()
    ]


def _check_memory(options: SweepOptions, cells: Sequence[Cell]) -> None:
    """Raises `ConfigError` when this machine cannot hold the swarms that run at a time."""
    config = cells[0].members(options.out)[0].config
    if config.policy.model in EMBEDDED:
        return
    from swarm.preflight.check import check_nodes  # imports torch, for which the embedded policy need not wait

    check_nodes(config, options.peers, options.transport == "memory", min(options.jobs, len(cells)))


def _values(config: NodeConfig, transport: str) -> Values:
    values = complete(config) | {"rounds": config.rounds or ROUNDS}
    return on_loopback(values) if transport == "hivemind" else values


def _report(options: SweepOptions, cells: Sequence[Cell], outcomes: Sequence[SwarmOutcome], console: Console) -> None:
    baseline = options.mixes[0]
    by_mix = {mix: [outcome for outcome in outcomes if outcome.row == mix] for mix in options.mixes}
    rows = compare(by_mix)
    result = SweepFile(baseline, rows, list(outcomes), cells[0].config, versions())
    write(options.out / JSON_FILE, result)
    stops = stops_in_words(outcomes)
    (options.out / TABLE_FILE).write_text("\n".join([markdown(rows, baseline), *stops]))
    write_comparisons(options.out / PICTURE_FILE, [Section("Mixes", by_mix)])
    head, *body = table(rows, baseline)
    shown = Table(*head, box=None, pad_edge=False)
    for line in body:
        shown.add_row(*line)
    console.print(shown)
    if stops:
        console.print(*stops, highlight=False, markup=False)
    console.print(
        f"means over {options.peers} nodes and the seeds, with bootstrap 95% intervals over the seeds; written to "
        f"{options.out / TABLE_FILE}, {JSON_FILE} and {PICTURE_FILE}",
        highlight=False,
        soft_wrap=True,
    )
